"""``trajgym quickstart``: evaluate, train, evaluate again, and say what it came to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trajgym import cli
from trajgym.evaluation.evaluate import Evaluation
from trajgym.scripts import quickstart
from trajgym.types import Action, Message, Observation, Step, StopReason, Task, Trajectory


def played(level: int, right: bool, turns: int = 1) -> Trajectory:
    prompt = (Message("system", "Be brief."), Message("user", "48 + 24?"))
    steps = [Step(Action("call"), Observation((Message("tool", "72"),)), 0.1, {"tool_success": 0.1})] * (turns - 1)
    last = Step(
        Action("#### 72"), Observation(), float(right), {"accuracy": float(right)}, stop_reason=StopReason.ANSWERED
    )
    return Trajectory(Task(f"task-{level}", "?", "72", difficulty=level), prompt, (*steps, last))


def test_the_whole_way(short_run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("quickstart-seed3", "quickstart-seed3-2"):  # a second run gets a folder of its own
        assert cli.main(["quickstart", "--problems", "4", "--seed", "3", *short_run]) == 0
        out = capsys.readouterr().out
        assert [line[:3] for line in out.splitlines() if line[1:2] == "/"] == ["1/3", "2/3", "3/3"]
        folder = tmp_path / "runs" / name
        assert f"Left in {folder}" in out
        assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "dialogues.txt").is_file()
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [m["update"] for m in metrics] == [1, 2]


def test_the_table_and_the_dialogues_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "metrics.jsonl").write_text('{"update": 1, "return": 0.5}\n')
    before = Evaluation((played(1, True), played(1, False), played(2, False), played(2, False)))
    after = Evaluation((played(1, True), played(1, True), played(2, True, turns=3), played(2, False)))
    quickstart.report(before, after, tmp_path)
    out = capsys.readouterr().out
    rows = {cells[1]: cells[2:-1] for line in out.splitlines() if (cells := [c.strip() for c in line.split("│")])[2:]}
    assert rows["1"][:3] == ["2", "50 (9 … 91)", "100 (34 … 100)"]
    assert rows["2"][:2] == ["2", "0 (0 … 66)"]
    assert rows["all"][0] == "4"
    assert rows["all"][3] == "+50 (-14 … +79)"
    assert "Turns per episode 1.0 → 1.5; reward 0.25 → 0.80" in out
    dialogues = (tmp_path / "dialogues.txt").read_text()
    assert dialogues.count("===") == 4  # one task, before and after: the only one that was learned in several turns
    assert "=== task-2: after ===" in dialogues
    assert "calculator" not in dialogues
    assert "tool      │ 72" in out
    assert "failed" not in out


def test_faults_of_an_evaluation_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"update": 1, "return": 0.5}\n')
    task = Task("lost", "?", "72", difficulty=2)
    lost = Trajectory(task, (), (), fault="EnvironmentFault: the pool is gone")
    quickstart.report(Evaluation((played(1, True), played(2, True))), Evaluation((played(1, True), lost)), tmp_path)
    out = capsys.readouterr().out
    said = "1 of 2 episodes failed, the first with EnvironmentFault: the pool is gone. They count as wrong answers."
    assert f"After training, {said}" in out
    assert "Before training" not in out


@pytest.mark.parametrize("args", [["--problems", "many"], ["--gama", "1"]])
def test_wrong_options_are_said(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["quickstart", *args])
    assert args[0] in "".join(capsys.readouterr())
