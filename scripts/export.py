"""Write a trained model as a folder that loads anywhere: trajgym export RUN OUT."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(args: Sequence[str]) -> int:
    """Merge, write and say what was written; 0: done."""
    parser = argparse.ArgumentParser(prog="trajgym export", description=__doc__, epilog="docs/serving.md tells more.")
    parser.add_argument("source", metavar="RUN", help="a run's folder, a model's, an adapter's, 'tiny', or a hub id")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write")
    parser.add_argument("--checkpoint", metavar="NAME", help="which of the run's checkpoints (the newest)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="precision of the weights (the run's own)")
    parser.add_argument(
        "--device-map", metavar="MAP", help="where the model lies meanwhile: auto, or a JSON object (RAM)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a model that is in OUT")
    options = parser.parse_args(args)
    from trajgym.trainers.export import export
    from trajgym.trainers.placement import read_device_map

    done = export(
        options.source,
        options.out,
        checkpoint=options.checkpoint,
        dtype=options.dtype,
        device_map=read_device_map(options.device_map),
        overwrite=options.overwrite,
    )
    if done.difference is not None:
        print(f"Adapters merged; logits differ by at most {done.difference:.1e} of the largest one.")
    print(f"Written: {done.folder}. Serve it with: trajgym serve {done.folder}")
    return 0
