"""The command: a table for people, JSON for programs, and an exit status that says whether it is serious."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trajgym.scripts import diagnose
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.diagnose import rules_table


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Write a run with these metrics and return its folder."""

    def write(**metrics: list[float]) -> Path:
        count = max(map(len, metrics.values()))
        rows = [{"update": i + 1} | {name: values[i] for name, values in metrics.items()} for i in range(count)]
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "config.yaml").write_text(GRPOConfig(updates=count, learning_rate=1e-5).dump())
        return tmp_path

    return write


def test_a_healthy_run(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(reward=[i / 10 for i in range(8)], kl=[0.02] * 8)
    assert diagnose.main([str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "8 updates" in out
    assert [line.split() for line in out.splitlines() if line.strip().startswith("reward")] == [
        ["reward", "0", "0.7", "0", "0.7"]
    ]
    assert out.endswith("Nothing found.\n")
    assert err == ""


def test_something_serious(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(kl=[0.05] * 5 + [0.8] * 5, tool_error_share=[0.6] * 5 + [0.0] * 5)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"update": 11, "kl"')
    assert diagnose.main([str(folder)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "kl_explosion" in out
    assert "learning_rate 1e-05 → 2e-06" in out
    assert "since update 7" in out
    assert "gone since" in out
    assert "Remark: 1 of 11 lines" in out
    assert out.endswith("Found: 1 serious, 2 note. Something serious: stop, and change what the table says.")


def test_a_warning_is_not_serious(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose.main([str(run(tool_error_share=[0.6] * 5))]) == 0
    assert "Found: 1 warning." in capsys.readouterr().out


def test_for_programs(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose.main([str(run(kl=[0.8] * 5, loss=[float("nan")] * 5)), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["updates"], found["passed"]) == ("trajgym", 5, False)
    assert {finding["rule"] for finding in found["findings"]} == {"kl_explosion", "not_a_number"}
    assert found["findings"][0]["changes"][0] == {"option": "learning_rate", "now": 1e-05, "to": 2e-06, "reason": ""}


def test_logs_of_trl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = [{"step": 5 * i, "loss": 2.0 - 0.05 * i, "grad_norm": 500.0} for i in range(1, 13)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert diagnose.main([str(tmp_path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "12 steps logged" in out
    assert "grad_explosion" in out
    assert "since step 15" in out


@pytest.mark.parametrize("damage", ["nothing\n", '{"kl": 1}\n'])
def test_what_cannot_be_read_is_no_finding(tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text(damage)
    for args in ([str(tmp_path)], [str(tmp_path / "elsewhere")], []):
        assert diagnose.main(args) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("trajgym diagnose: ")


def test_names_are_shown_as_they_are(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    diagnose.main([str(run(**{"fault_share": [0.9], "faults/[red]Odd[/]": [3.0]}))])
    assert "[red]Odd[/] 3" in " ".join(capsys.readouterr().out.split())


def test_the_rules_as_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose.main(["--rules"]) == 0
    assert capsys.readouterr().out == rules_table()
