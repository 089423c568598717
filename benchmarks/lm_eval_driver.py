"""Run inside the harness's own environment: its task ``gsm8k``, on local data, with a model or with given completions.

Reads a job as JSON from standard input, and writes one JSON object a line: the graded problems of each run, then what
the harness itself sums them up to. Prompts, stop strings, filters and the metric are those of the task file that
ships; only the data set is put in the place of the hub's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

__all__ = ["main"]

STRICT, FLEXIBLE = "strict-match", "flexible-extract"


def main() -> None:
    """Do the job's runs one after another."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the harness prints is no answer
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    job = json.load(sys.stdin)
    for run in job["runs"]:
        for line in evaluated(run, Path(job["data"])):
            answers.write(json.dumps({"run": run["name"], **line}) + "\n")
        answers.flush()


def evaluated(run: dict[str, Any], data: Path) -> list[dict[str, Any]]:
    """Let the harness evaluate, and return a line for each problem and one for the sums.

    Args:
        run: ``model`` is a folder or a hub id to generate with; or ``completions`` are given, one for each of the first
            problems. ``limit`` says how many problems there are, ``batch_size`` how many are generated together.
        data: Folder with ``train.jsonl`` and ``test.jsonl``.
    """
    from lm_eval import evaluator

    evaluator.add_env_info = lambda storage: None  # a list of all packages, which takes longer than the grading
    model: Any = "hf" if "model" in run else _given(run["completions"])
    arguments = {"pretrained": run["model"], "dtype": "float32"} if "model" in run else None
    found: Any = evaluator.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[_task(data)],
        num_fewshot=None if "model" in run else 0,  # given completions have had their prompts already
        limit=run["limit"],
        device="cpu" if "model" in run else None,
        batch_size=run.get("batch_size", 1),
        bootstrap_iters=0,
    )
    lines: dict[int, dict[str, Any]] = {}
    for sample in found["samples"]["gsm8k"]:
        line = lines.setdefault(
            sample["doc_id"],
            {
                "problem": sample["doc_id"],
                "question": sample["doc"]["question"],
                "target": sample["target"],
                "prompt": sample["arguments"][0][0],
                "completion": sample["resps"][0][0],
                "found": {},
                "paid": {},
            },
        )
        line["found"][sample["filter"]] = sample["filtered_resps"][0]
        line["paid"][sample["filter"]] = bool(sample["exact_match"] == 1)
    sums = {name: float(found["results"]["gsm8k"][f"exact_match,{name}"]) for name in (STRICT, FLEXIBLE)}
    return [*(lines[number] for number in sorted(lines)), {"sums": sums}]


def _task(data: Path) -> dict[str, Any]:
    """Return the task as it ships, with its two splits taken from files."""
    import lm_eval
    import yaml

    path = Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k.yaml"
    task: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    files = {split: str(data / f"{split}.jsonl") for split in ("train", "test")}
    return {**task, "dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}


def _given(completions: list[str]) -> Any:
    """Return a model that says what it is told to, cut where the harness's own models cut."""
    from lm_eval.api.model import LM
    from lm_eval.models.utils import postprocess_generated_text

    class Given(LM):  # type: ignore[misc]  # the harness is not installed where types are checked
        def generate_until(self, requests: list[Any]) -> list[str]:
            return [postprocess_generated_text(completions[r.doc_id], r.args[1]["until"], None) for r in requests]

        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            raise NotImplementedError("the task gsm8k generates")

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            raise NotImplementedError("the task gsm8k generates")

    return Given()


if __name__ == "__main__":
    main()
