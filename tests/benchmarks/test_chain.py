from __future__ import annotations

import hashlib
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
    "config": {"model": {"base_model": "/somewhere/model"}, "output_dir": "runs"},
    "hashes": {"config": "sha256:of the local one", "sft weights": "sha256:w"},
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


@pytest.fixture
def run(chain: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run, with an older GRPO stage that is no part of its results."""
    monkeypatch.setattr(chain, "PUBLISHED", tmp_path / "published")
    folder = tmp_path / "runs" / "t"
    line = {"update": 1, "loss": 1 / 3, "tokens": 7.0, "entropy": None, "reward": 1.0}
    for stage in ("sft", "grpo"):
        (folder / stage).mkdir(parents=True)
        (folder / stage / "metrics.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    text = json.dumps(RESULTS).replace("runs", str(tmp_path / "runs"))
    (folder / "results.json").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("relative", [False, True])
def test_paths_of_a_machine_are_not_published(
    chain: ModuleType, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "published" / "tiny"
    target.mkdir(parents=True)
    (target / "grpo.jsonl").write_text("of an earlier publication", encoding="utf-8")
    assert chain.main(Path("runs/t") if relative else run, publish="tiny", model="some/hub-id") == 0
    kept = json.loads((target / "results.json").read_text(encoding="utf-8"))
    assert kept["config"] == {"model": {"base_model": "some/hub-id"}}
    assert kept["stages"]["sft"]["model"] == "t/sft/model"
    assert kept["machine"].keys() == {"processor", "cores"}
    assert str(tmp_path) not in "".join(path.read_text(encoding="utf-8") for path in target.iterdir())
    assert json.loads((target / "sft.jsonl").read_text(encoding="utf-8")) == {"update": 1, "loss": 0.33333}
    assert not (target / "grpo.jsonl").exists()


def test_the_hash_of_the_options_is_that_of_the_published_ones(chain: ModuleType, run: Path, tmp_path: Path) -> None:
    chain.main(run, publish="tiny", model="some/hub-id")
    kept = json.loads((tmp_path / "published" / "tiny" / "results.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256(b'{"model": {"base_model": "some/hub-id"}}').hexdigest()
    assert kept["hashes"] == {"config": f"sha256:{digest}", "sft weights": "sha256:w"}


def test_what_still_names_a_place_is_refused_and_nothing_is_written(
    chain: ModuleType, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    results["config"]["data"] = {"env_kwargs": {"path": "/home/me/problems.jsonl"}}
    results["decision"] = {"next": "trajgym serve ~/models/best, see https://example.org/a/b; 3/4 of it"}
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    assert chain.main(run, publish="tiny", model="some/hub-id") == 1
    assert "/home/me/problems.jsonl, ~/models/best would tell" in capsys.readouterr().out
    assert not (tmp_path / "published").exists()


@pytest.mark.parametrize("name", ["../learning", ".", "..", "a/b", ""])
def test_nothing_but_a_chain_of_that_name_is_replaced(chain: ModuleType, run: Path, tmp_path: Path, name: str) -> None:
    kept = tmp_path / "published" / "other" / "results.json"
    kept.parent.mkdir(parents=True)
    kept.touch()
    beside = tmp_path / "learning"
    beside.mkdir()
    assert chain.main(run, publish=name, model="some/hub-id") == 1
    assert kept.exists()
    assert beside.exists()
