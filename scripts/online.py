"""Learn from logged trajectories without forgetting: trajgym online CONFIG.yaml | --logs RUN [--mode M]."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trajgym.trainers.online_config import load_online_config

__all__ = ["main"]


def main(args: Sequence[str]) -> int:
    """Read the options, learn, and say which model to use; 1: the model became worse and was rolled back."""
    if not args or args[0] in ("-h", "--help"):
        print(__doc__)
        print(
            "\nOptions: trajgym online --logs RUN --help. The keys of a file are the same. docs/online.md tells more."
        )
        return 0 if args else 2
    config = load_online_config({}, args) if args[0].startswith("-") else load_online_config(args[0], args[1:])
    from trajgym.trainers.online import train_online

    result = train_online(config)
    print(f"Tasks of the log: {result.target.comparison}\nTasks to keep: {result.guard.comparison}")
    if result.guard.unknown or result.target.unknown:
        print("A loss beyond guard_tolerance cannot be ruled out: there are too few eval_tasks.")
    if result.rolled_back:
        print(f"It is clearly worse than before, so use the model as it was: {result.model}", file=sys.stderr)
        return 1
    print(f"\nDone. Use {result.model}; {result.folder}/audit.json says what it has learned from.", file=sys.stderr)
    return 0
