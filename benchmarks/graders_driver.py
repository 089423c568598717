"""Run inside another grader's environment: say for each completion whether that grader pays it.

Reads one JSON object a line, ``{"completion": …, "truth": …}``, and answers each with ``{"correct": …}`` or
``{"error": …}``. Every grader is called as its own project calls it for GSM8K, with the settings that ship.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

__all__ = ["GRADERS", "main"]

Grader = Callable[[str, str], bool]


def lm_eval(filter_name: str) -> Grader:
    """The harness's task ``gsm8k``: its stop strings, one of its filters, its metric."""
    import yaml

    root = folder_of("lm_eval")
    for package in ("lm_eval", "lm_eval.api", "lm_eval.filters"):
        without_init(package)
    sys.modules["sacrebleu"] = ModuleType("sacrebleu")  # for other metrics
    filters = importlib.import_module("lm_eval.filters.extraction")
    metrics = importlib.import_module("lm_eval.api.metrics")
    task = yaml.safe_load((root / "tasks" / "gsm8k" / "gsm8k.yaml").read_text(encoding="utf-8"))
    (steps,) = [entry["filter"] for entry in task["filter_list"] if entry["name"] == filter_name]
    options = {name: value for name, value in steps[0].items() if name != "function"}
    regex = filters.RegexFilter(**options)
    metric = {k: v for k, v in task["metric_list"][0].items() if k not in ("metric", "aggregation", "higher_is_better")}

    def grade(completion: str, truth: str) -> bool:
        for stop in task["generation_kwargs"]["until"]:  # generation would have ended there
            completion = completion.split(stop)[0]
        ((found,),) = regex.apply([[completion]], [{}])
        score = metrics.exact_match_hf_evaluate(predictions=[found], references=[f"#### {truth}"], **metric)
        return bool(score["exact_match"] == 1)

    return grade


def verl(method: str) -> Grader:
    """``reward_score.gsm8k`` of verl."""
    path = folder_of("verl") / "utils" / "reward_score" / "gsm8k.py"
    spec = importlib.util.spec_from_file_location("verl_gsm8k", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda completion, truth: module.compute_score(completion, truth, method=method) == 1.0


def math_verify() -> Grader:
    """Math-Verify with its defaults."""
    module = importlib.import_module("math_verify")
    return lambda completion, truth: bool(module.verify(module.parse(truth), module.parse(completion)))


GRADERS: dict[str, Callable[[], Grader]] = {
    "lm_eval_strict": lambda: lm_eval("strict-match"),
    "lm_eval_flexible": lambda: lm_eval("flexible-extract"),
    "verl_strict": lambda: verl("strict"),
    "verl_flexible": lambda: verl("flexible"),
    "math_verify": math_verify,
}


def folder_of(package: str) -> Path:
    """Return where a package is installed, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}")
    return Path(next(iter(spec.submodule_search_locations)))


def without_init(package: str) -> None:
    """Put an empty package in the place of one whose ``__init__`` imports what grading does not need."""
    module = ModuleType(package)
    module.__path__ = [str(folder_of(package))]
    sys.modules[package] = module


def main(name: str) -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a grader prints is no answer
    grade = GRADERS[name]()
    for line in sys.stdin:
        row = json.loads(line)
        try:
            answer: dict[str, object] = {"correct": grade(row["completion"], row["truth"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:200]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
