"""The classes of error of the completions that were published with GSM8K, and wrong equations in its own solutions.

    python benchmarks/error_classes.py --data FOLDER

The folder holds ``gsm8k/example_model_solutions.jsonl`` (default: ``$TRAJGYM_DATA``).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

from trajgym.envs.gsm8k_tasks import GSM8KTasks
from trajgym.evaluation.equations import equations
from trajgym.evaluation.faults import Fault, diagnose, distribution
from trajgym.rewards.answer import correct
from trajgym.types import Action, Observation, Step, StopReason, Trajectory

__all__ = ["classified", "main", "wrong_solutions"]

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


def classified(folder: Path, every: int = 1) -> Iterator[tuple[bool, bool, Fault | None]]:
    """Yield for each completion whether it was graded as right, whether we call it right, and its class of error.

    Args:
        folder: Holds the data set's files.
        every: Take the completions of each so-many-th problem alone.
    """
    tasks = {task.question: task for task in GSM8KTasks("test", path=folder)}
    text = (folder / "example_model_solutions.jsonl").read_text(encoding="utf-8")
    for row in [json.loads(line) for line in text.split("\n")[::every] if line]:
        task = tasks[row["question"]]
        for reply in (row[model] for model in MODELS):
            step = Step(Action(reply["solution"]), Observation(), terminated=True, stop_reason=StopReason.ANSWERED)
            right = correct(reply["solution"], task.answer)
            yield reply["is_correct"], right, diagnose(Trajectory(task, (), (step,)), right=right)


def wrong_solutions(folder: Path, split: str, every: int = 1) -> tuple[int, int]:
    """Return how many of the data set's solutions hold an equation that is called wrong, and of how many."""
    tasks = list(GSM8KTasks(split, path=folder))[::every]
    return sum(any(e.wrong for e in equations(str(t.metadata["full_answer"]))) for t in tasks), len(tasks)


def main() -> int:
    """Print both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("TRAJGYM_DATA"), metavar="FOLDER")
    options = parser.parse_args()
    if options.data is None:
        parser.error("give --data, or set TRAJGYM_DATA")
    rows = list(classified(options.data / "gsm8k"))
    print(f"{len(rows):,} completions; graded otherwise than published: {sum(g != r for g, r, _ in rows)}")
    faults = [fault.kind for _, _, fault in rows if fault]
    for kind, (count, share) in distribution(faults).items():
        print(f"{kind:14} {count:5,}  {share:6.1%}")
    counts = [wrong_solutions(options.data / "gsm8k", split) for split in ("train", "test")]
    print(
        f"{sum(n for n, _ in counts)} of {sum(m for _, m in counts):,} solutions hold an equation that is called wrong"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
