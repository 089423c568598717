"""Values of command-line options that several commands read in the same way."""

from __future__ import annotations

import argparse
import json
from typing import Any

__all__ = ["env_kwargs"]


def env_kwargs(text: str) -> dict[str, Any]:
    """Read the arguments of an environment.

    Args:
        text: A JSON object.

    Raises:
        argparse.ArgumentTypeError: When it is none.
    """
    try:
        value = json.loads(text, object_pairs_hook=_once_each, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('must be an object such as {"difficulty": 3}')
    return value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a name stands twice among {', '.join(repr(name) for name, _ in pairs)}")
    return found


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")
