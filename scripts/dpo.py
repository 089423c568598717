"""Train a policy on preference pairs with DPO: trajgym dpo CONFIG.yaml | --pairs FILE [--beta 0.1 …]."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trajgym.trainers.preference_config import load_dpo_config

__all__ = ["main"]


def main(args: Sequence[str]) -> int:
    """Read the options, then train."""
    if not args or args[0] in ("-h", "--help"):
        print(__doc__)
        print(
            "\nPairs: a file {prompt, chosen, rejected}, or a run folder, of which right answers are paired with wrong"
        )
        print("ones. Options: trajgym dpo --pairs FILE --help. The keys of a file are the same.")
        return 0 if args else 2
    config = load_dpo_config({}, args) if args[0].startswith("-") else load_dpo_config(args[0], args[1:])
    from trajgym.trainers.dpo import train_dpo

    folder = train_dpo(config)
    print(f"\nDone. The model is {folder}/model.", file=sys.stderr)
    return 0
