"""Run the whole chain, data to deployment: trajgym pipeline RECIPE [--sft.epochs 2 …], or look back: history [DIR]."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from trajgym.errors import ConfigError
from trajgym.trainers.pipeline_config import load_pipeline_config, pipeline_recipe_names

__all__ = ["GATE", "main"]

GATE = 3
"""Exit status when the model was not good enough for RL."""


def main(args: Sequence[str]) -> int:
    """Read the recipe and the overrides, then go through the stages; 0 done, 3 stopped at the gate."""
    if not args or args[0] in ("-h", "--help"):
        print(__doc__)
        print(f"\nRecipes: {', '.join(pipeline_recipe_names())}, or the path of a .yaml or .json file.")
        print(
            "Options: trajgym pipeline RECIPE --help. The keys of a recipe are the same. docs/pipeline.md tells more."
        )
        print("The same command goes on where it was stopped; --overwrite begins again.")
        return 0 if args else 2
    if args[0] == "history":
        return _history(args[1:])
    recipe, *overrides = args
    config = load_pipeline_config(recipe, overrides)
    from trajgym.trainers.pipeline import AgenticRLPipeline, GateNotMet

    try:
        folder = AgenticRLPipeline(config, name=Path(recipe).stem).run()
    except GateNotMet as error:
        print(f"trajgym pipeline: {error}", file=sys.stderr)
        return GATE
    print(f"\nDone. Open {folder / 'summary.html'}; everything else is beside it.", file=sys.stderr)
    return 0


def _history(args: Sequence[str]) -> int:
    if len(args) > 1 or (args and args[0].startswith("-")):
        raise ConfigError(f"history takes one folder, the one that holds the runs (runs), got {list(args)}.")
    from trajgym.trainers.pipeline_history import as_table, read_history

    path = Path(args[0] if args else "runs")
    print(as_table(read_history(path if path.suffix == ".jsonl" else path / "history.jsonl")))
    return 0
