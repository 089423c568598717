"""Train a reward model on preference pairs: trajgym reward-model CONFIG.yaml | --pairs FILE [--epochs 2 …]."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trajgym.trainers.preference_config import load_reward_config

__all__ = ["main"]


def main(args: Sequence[str]) -> int:
    """Read the options, then train."""
    if not args or args[0] in ("-h", "--help"):
        print(__doc__)
        print(
            "\nPairs: a file {prompt, chosen, rejected}, or a run folder, of which right answers are paired with wrong"
        )
        print("ones. Options: trajgym reward-model --pairs FILE --help. The keys of a file are the same.")
        return 0 if args else 2
    config = load_reward_config({}, args) if args[0].startswith("-") else load_reward_config(args[0], args[1:])
    from trajgym.trainers.reward_model import train_reward_model

    folder = train_reward_model(config)
    print(f"\nDone. The reward is {folder}; docs/preferences.md says how to use it.", file=sys.stderr)
    return 0
