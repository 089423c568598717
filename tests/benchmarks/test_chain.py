from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def chain() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("chain")
    sys.modules.pop("chain", None)


def measures(accuracy: float) -> dict[str, Any]:
    share = {"value": accuracy, "low": accuracy - 0.05, "high": accuracy + 0.05, "unit": "share"}
    none = {"value": None, "low": None, "high": None, "unit": "share"}
    return {
        "measures": {"accuracy": share, "format": none, "turns": {"value": 2.5, "low": None, "high": None, "unit": ""}}
    }


RESULTS = {
    "run": "t",
    "config": {"model": {"base_model": "/somewhere/model"}},
    "models": {"before": measures(0.1), "sft": measures(0.3)},
    "stages": {"sft": {"seconds": 90.0, "folder": "runs/t/sft", "model": "runs/t/sft/model"}},
    "comparisons": [
        {"before": "before", "after": "sft", "tasks": 300, "difference": 0.2, "low": 0.1, "high": 0.3, "fixed": 70,
         "broken": 10, "p_value": 0.001, "significant": True}
    ],
}  # fmt: skip


def test_the_table_has_measures_with_intervals_and_comparisons(chain: ModuleType) -> None:
    assert chain.table(RESULTS).splitlines() == [
        "| | before | sft |",
        "|---|---|---|",
        "| accuracy | 10.0 % [5.0 %, 15.0 %] | 30.0 % [25.0 %, 35.0 %] |",
        "| turns | 2.5 | 2.5 |",
        "",
        "- before → sft: +20.0 points (+10.0 … +30.0), 70 fixed and 10 broken of 300, p = 0.001: a clear difference.",
        "- It took: sft 2 min.",
    ]


def test_paths_of_a_machine_are_not_published(
    chain: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "PUBLISHED", tmp_path / "published")
    run = tmp_path / "runs" / "t"
    (run / "sft").mkdir(parents=True)
    text = json.dumps(RESULTS).replace("runs/t", str(run))
    (run / "results.json").write_text(text, encoding="utf-8")
    line = {"update": 1, "loss": 1 / 3, "tokens": 7.0, "entropy": None}
    (run / "sft" / "metrics.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    assert chain.main(run, publish="tiny", model="some/hub-id") == 0
    target = tmp_path / "published" / "tiny"
    kept = json.loads((target / "results.json").read_text(encoding="utf-8"))
    assert kept["config"]["model"]["base_model"] == "some/hub-id"
    assert kept["stages"]["sft"]["model"] == "t/sft/model"
    assert kept["machine"].keys() == {"processor", "cores"}
    assert str(tmp_path) not in "".join(path.read_text(encoding="utf-8") for path in target.iterdir())
    assert json.loads((target / "sft.jsonl").read_text(encoding="utf-8")) == {"update": 1, "loss": 0.33333}
    assert not (target / "grpo.jsonl").exists()
