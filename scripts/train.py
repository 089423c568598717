"""Train a policy with GRPO or PPO on whole trajectories: trajgym train RECIPE [--gamma 0.95 …].

With --curriculum FILE.yaml, train in stages: see docs/curriculum.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trajgym.errors import ConfigError
from trajgym.trainers.config import GRPOConfig, load_config, recipe_names

__all__ = ["main"]


def main(args: Sequence[str]) -> int:
    """Read the recipe and the overrides, then train."""
    if not args or args[0] in ("-h", "--help"):
        print(__doc__)
        print(f"\nRecipes: {', '.join(recipe_names())}, or the path of a .yaml file.")
        print("Options: trajgym train RECIPE --help. The keys of a recipe are the same.")
        print("Stages: --curriculum FILE.yaml.")
        return 0 if args else 2
    recipe, *overrides = args
    stages = _take(overrides, "--curriculum")
    config = load_config(recipe, overrides)
    if stages is not None:
        from trajgym.trainers.curriculum import load_curriculum, train_curriculum

        folder = train_curriculum(config, load_curriculum(stages), name=Path(recipe).stem)
        print(f"\nDone. Everything is in {folder}.", file=sys.stderr)
        return 0
    from trajgym.trainers.grpo import train
    from trajgym.trainers.telling import say

    speaks = os.environ.get("RANK", "0") == "0"  # of several processes, one
    if speaks:
        say(_summary(recipe, config))
    folder = train(config, name=Path(recipe).stem)
    if speaks:
        curves = f"; tensorboard --logdir {folder} shows the curves" if "tensorboard" in config.monitors else ""
        print(f"\nDone. Everything is in {folder}{curves}.", file=sys.stderr)
    return 0


def _take(args: list[str], option: str) -> str | None:
    """Take an option and its value out of the command line; the others are those of the recipe."""
    for i, arg in enumerate(args):
        name, given, value = arg.partition("=")
        if name == option:
            if not given and i + 1 == len(args):
                raise ConfigError(f"{option} needs the path of a .yaml file.")
            taken = value if given else args[i + 1]
            del args[i : i + (1 if given else 2)]
            return taken
    return None


def _summary(recipe: str, config: GRPOConfig) -> str:
    length = f"{config.updates} updates" if config.updates else f"{config.epochs:g} epochs"
    credit = config.estimator + (f"/{config.baseline}" if config.baseline else "")
    adapters = f", LoRA {config.lora_rank}/{config.lora_alpha}" if config.use_lora else ""
    return (
        f"{recipe}: {config.model}{adapters} on {config.env}, {length} of {config.groups_per_update} tasks × "
        f"{config.num_generations} trajectories, {credit}, γ = {config.gamma:g}, β = {config.kl_coef:g}"
    )
