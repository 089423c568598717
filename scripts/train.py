"""Train a policy with GRPO or PPO on whole trajectories: trajgym train RECIPE [--gamma 0.95 …]."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trajgym.trainers.config import GRPOConfig, load_config, recipe_names

__all__ = ["main"]


def main(args: Sequence[str]) -> int:
    """Read the recipe and the overrides, then train."""
    if not args or args[0] in ("-h", "--help"):
        print(__doc__)
        print(f"\nRecipes: {', '.join(recipe_names())}, or the path of a .yaml file.")
        print("Options: trajgym train RECIPE --help. The keys of a recipe are the same.")
        return 0 if args else 2
    recipe, *overrides = args
    config = load_config(recipe, overrides)
    from trajgym.trainers.grpo import train

    speaks = os.environ.get("RANK", "0") == "0"  # of several processes, one
    if speaks:
        print(_summary(recipe, config), flush=True)
    folder = train(config, name=Path(recipe).stem)
    if speaks:
        print(f"\nDone. Everything is in {folder}; tensorboard --logdir {folder} shows the curves.", file=sys.stderr)
    return 0


def _summary(recipe: str, config: GRPOConfig) -> str:
    length = f"{config.updates} updates" if config.updates else f"{config.epochs:g} epochs"
    credit = config.estimator + (f"/{config.baseline}" if config.baseline else "")
    adapters = f", LoRA {config.lora_rank}/{config.lora_alpha}" if config.use_lora else ""
    return (
        f"{recipe}: {config.model}{adapters} on {config.env}, {length} of {config.groups_per_update} tasks × "
        f"{config.num_generations} trajectories, {credit}, γ = {config.gamma:g}, β = {config.kl_coef:g}"
    )
