"""The founding document's switches for where a training's numbers go."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["monitors_of", "wandb_project"]


def monitors_of(*, use_tensorboard: bool = True, use_wandb: bool = False) -> tuple[str, ...]:
    """Return the names under which our trainers know them.

    >>> monitors_of(use_wandb=True)
    ('tensorboard', 'wandb')
    """
    return (*(("tensorboard",) if use_tensorboard else ()), *(("wandb",) if use_wandb else ()))


@contextlib.contextmanager
def wandb_project(name: str | None) -> Iterator[None]:
    """Let runs within the block be logged to a project of this name; ``None`` leaves it to ``$WANDB_PROJECT``."""
    before = os.environ.get("WANDB_PROJECT")
    if name is not None:
        os.environ["WANDB_PROJECT"] = name
    try:
        yield
    finally:
        if name is not None:
            os.environ.pop("WANDB_PROJECT")
            if before is not None:
                os.environ["WANDB_PROJECT"] = before
