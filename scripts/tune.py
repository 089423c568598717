"""Search options of a training by held-out accuracy: trajgym tune CONFIG.yaml | --preset grid [--recipe …]."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trajgym.trainers.tune_config import load_tune_config

__all__ = ["main"]


def main(args: Sequence[str]) -> int:
    """Read the options, then run the trials that are missing."""
    if not args or args[0] in ("-h", "--help"):
        print(__doc__)
        print(
            "\nOptions: trajgym tune --recipe quickstart --help. Keys of a file are the same. docs/tune.md tells more."
        )
        return 0 if args else 2
    config = load_tune_config({}, args) if args[0].startswith("-") else load_tune_config(args[0], args[1:])
    from trajgym.trainers.tune import tune

    result = tune(config)
    print(f"\nDone. Everything is in {result.folder}; the best is trial {result.best.number}.", file=sys.stderr)
    return 0
