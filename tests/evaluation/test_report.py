"""The report as JSON, as Markdown, and as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trajgym.errors import StorageError
from trajgym.evaluation.compare import compare_all
from trajgym.evaluation.evaluate import Evaluation
from trajgym.evaluation.records import read_trajectories
from trajgym.evaluation.report import (
    Report,
    Result,
    as_json,
    as_markdown,
    forgetting_verdict,
    shown_measure,
    write_report,
)
from trajgym.evaluation.robustness import check_forgetting
from trajgym.evaluation.samples import samples_of
from trajgym.evaluation.summary import Measure, summarise

MakeEvaluation = Callable[..., Evaluation]


def result(name: str, evaluation: Evaluation) -> Result:
    samples = samples_of(evaluation)
    return Result(name, evaluation, samples, summarise(samples), {"model": name})


@pytest.fixture
def report(make_evaluation: MakeEvaluation) -> Report:
    before, after = result("before", make_evaluation(["1"] * 9 + ["72"])), result("after", make_evaluation(["72"] * 10))
    rows = {r.name: r.samples for r in (before, after)}
    comparisons = compare_all(rows)
    forgetting = [check_forgetting(("after", after.samples), ("before", before.samples))]
    return Report("Title", [before, after], {"environment": "E-v0"}, comparisons, {"after": comparisons}, forgetting)


def test_json_holds_every_number(report: Report) -> None:
    found = json.loads(as_json(report))
    assert found["settings"] == {"environment": "E-v0"}
    first, second = found["results"]
    assert (first["name"], first["tasks"], second["measures"]["accuracy"]["value"]) == ("before", 10, 1.0)
    assert first["measures"]["cost"]["value"] is None
    assert first["strata"]["medium"]["right"] == 1
    assert first["errors"]["calculation"]["count"] == 9
    assert found["comparisons"][0]["significant"] is True
    assert found["forgetting"][0]["forgot"] is True
    assert "NaN" not in as_json(report)
    assert "Infinity" not in as_json(report)


def test_markdown_is_for_reading(report: Report) -> None:
    text = as_markdown(report)
    assert "| measure | before | after |" in text
    assert "| accuracy | 10.0 % (1.8 … 40.4) | 100.0 % (72.2 … 100.0) |" in text
    assert "| medium | 10.0 % of 10 (1.8 … 40.4) |" in text
    assert "| calculation | 9 (100.0 %) | 0 (0.0 %) |" in text
    assert "- 100.0% of the errors are calculation." in text
    assert "before → after: +90.0 points" in text
    assert "**forgotten**" in text
    assert "| cost |" not in text, "what nobody measured is left out"


def test_names_cannot_break_a_table(make_evaluation: MakeEvaluation) -> None:
    text = as_markdown(Report("a\n# b", [result("x|y`<script>\n", make_evaluation(["72"]))], {"k`": "v\n"}))
    assert "| measure | x\\|y'&lt;script>  |" in text
    assert "\n# b" not in text


@pytest.mark.parametrize(
    ("measure", "shown"),
    [
        (Measure(None, None, None, "share", 0), "–"),
        (Measure(0.25, 0.1, 0.5, "share", 4), "25.0 % (10.0 … 50.0)"),
        (Measure(0.25, None, None, "share of calls", 4), "25.0 % of calls"),
        (Measure(1234.5, 1, 2, "tokens", 4), "1,234.50 tokens (1.00 … 2.00)"),
        (Measure(0.00012, None, None, "$ per episode", 4), "0.00012 $ per episode"),
        (Measure(0.5, None, None, "", 4), "0.50"),
    ],
)
def test_measures_are_shown_with_unit_and_interval(measure: Measure, shown: str) -> None:
    assert shown_measure(measure) == shown


def test_a_verdict_on_too_few_tasks_is_none(make_evaluation: MakeEvaluation) -> None:
    one, other = samples_of(make_evaluation(["72", "72", "72"])), samples_of(make_evaluation(["72", "72", "1"]))
    assert forgetting_verdict(check_forgetting(("a", one), ("b", other))) == "too few tasks to tell"
    assert forgetting_verdict(check_forgetting(("a", one), ("b", one))) == "not forgotten"


def test_files(report: Report, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "report"
    files = write_report(report, folder)
    assert [path.name for path in files] == ["report.json", "report.md", "report.html"]
    assert all(path.stat().st_size > 500 for path in files)
    played = report.results[0].evaluation.trajectories
    assert read_trajectories(folder / "model-1" / "trajectories.jsonl") == list(played)
    rows = [json.loads(line) for line in (folder / "model-1" / "samples.jsonl").read_text().splitlines()]
    assert len(rows) == 10
    assert {"model", "question", "prediction", "ground_truth", "steps", "correct", "rule"} <= set(rows[0])
    errors = (folder / "model-1" / "errors.jsonl").read_text().splitlines()
    assert len(errors) == 9
    assert write_report(report, folder) == files, "a second report replaces the first"
    assert not list(folder.rglob("*.partial"))


def test_a_folder_that_cannot_be_written(report: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Set another folder with --out"):
        write_report(report, tmp_path / "file")


def test_figures_of_others_are_labelled_as_quoted(make_evaluation: MakeEvaluation) -> None:
    report = Report("T", [result("Qwen/Qwen3-0.6B", make_evaluation(["72"]))], {"environment": "GSM8KTool-v0"})
    text = as_markdown(report)
    assert "## Quoted for reference\n\n- Qwen3-0.6B after supervised fine-tuning: 40 to 50 %" in text
    assert text.count("not measured here") == 2
    assert "not measured here" not in as_json(report), "figures of others are no data of ours"
    other = Report("T", report.results, {"environment": "CodeTool-v0"})
    assert "Quoted for reference" not in as_markdown(other)
