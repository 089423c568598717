"""Fine-tune a model on demonstrations: trajgym sft RECIPE [--learning-rate 1e-4 …]."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from trajgym.trainers.sft_config import SFTConfig, load_sft_config, sft_recipe_names

__all__ = ["main"]


def main(args: Sequence[str]) -> int:
    """Read the recipe and the overrides, then train."""
    if not args or args[0] in ("-h", "--help"):
        print(__doc__)
        print(f"\nRecipes: {', '.join(sft_recipe_names())}, or the path of a .yaml file.")
        print("Options: trajgym sft RECIPE --help. The keys of a recipe are the same. docs/sft.md tells more.")
        return 0 if args else 2
    recipe, *overrides = args
    config = load_sft_config(recipe, overrides)
    from trajgym.trainers.sft import train_sft

    print(_summary(recipe, config), flush=True)
    folder = train_sft(config, name=Path(recipe).stem)
    print(
        f"\nDone. The model is in {folder / 'model'}; go on with: trajgym train RECIPE --model {folder / 'model'}",
        file=sys.stderr,
    )
    return 0


def _summary(recipe: str, config: SFTConfig) -> str:
    data = f"demonstrations of {config.env}" if config.dataset == "expert" else config.dataset
    adapters = f"LoRA {config.lora_rank}/{config.lora_alpha}" if config.use_lora else "all weights"
    rows = config.batch_size * config.gradient_accumulation
    return (
        f"{recipe}: {config.model} ({adapters}) on {data}, {config.epochs:g} epochs, "
        f"{rows} {'packs' if config.packing else 'rows'} per step, learning rate {config.learning_rate:g}"
    )
