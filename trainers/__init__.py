"""Training: from the rewards of every step to the weights. Imports torch only in the modules that need it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trajgym.trainers.datasets import (
        GSM8KDataset,
        create_rl_dataset,
        create_sft_dataset,
        format_math_dataset,
        register_dataset,
    )

__all__ = ["GSM8KDataset", "create_rl_dataset", "create_sft_dataset", "format_math_dataset", "register_dataset"]

# Name -> module. Looked up when first asked for, so that importing this package stays light.
_HOMES = dict.fromkeys(__all__, "datasets")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
