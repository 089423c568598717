"""Sample, judge, learn a reward, train on it: trajgym rlaif CONFIG.yaml [--judge MODEL …]."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trajgym.trainers.rlaif_config import load_rlaif_config

__all__ = ["main"]


def main(args: Sequence[str]) -> int:
    """Read the options, then do the four steps."""
    if not args or args[0] in ("-h", "--help"):
        print(__doc__)
        print("\nOptions: trajgym rlaif CONFIG.yaml --help. The keys of the file are the same.")
        return 0 if args else 2
    config = load_rlaif_config(args[0], args[1:])
    from trajgym.trainers.rlaif import run_rlaif

    result = run_rlaif(config)
    print(f"\nDone. Everything is in {result.folder}; the policy is {result.model}.", file=sys.stderr)
    return 0
