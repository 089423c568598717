"""``trajgym audit``: what the terminal shows, and the exit status that continuous integration reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from trajgym import cli
from trajgym.envs.arithmetic import ArithmeticEnv
from trajgym.policies.exploiters import EXPLOITS, View, register_exploit
from trajgym.rewards import accuracy
from trajgym.types import Step, Task

TOOL = "ArithmeticTool-v0"


def politeness(step: Step, task: Task, history: Sequence[Step]) -> float:
    return float("please" in step.action.text)


class PoliteEnv(ArithmeticEnv):
    """Pays twice as much for a word as for the answer."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(reward={"accuracy": (accuracy, 1.0), "politeness": (politeness, 2.0)}, **kwargs)


@pytest.fixture(autouse=True)
def polite() -> Iterator[None]:
    before = dict(EXPLOITS._items)
    gymnasium.register("Polite-v0", entry_point=PoliteEnv)
    yield
    del gymnasium.registry["Polite-v0"]
    EXPLOITS._items.clear()
    EXPLOITS._items.update(before)


@pytest.fixture
def begging() -> None:
    @register_exploit("begging")
    def begging(view: View) -> str:
        """Begs."""
        return "please"


def run(*args: str) -> int:
    return cli.main(["audit", *args])


@pytest.fixture(params=[80, 140])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def test_a_sound_reward_passes(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TOOL, "--reward", "sparse", "--tasks", "6") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{TOOL}, sparse: 1×accuracy")
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    (expert,) = (line for line in lines if line.startswith(" expert "))
    assert expert.split() == ["expert", "1.00", "±0.00", "100%", "100%", "accuracy", "1.00"]
    (honest,) = (line for line in lines if line.startswith(" honest "))
    assert honest.split()[1:5] == ["0.50", "±0.00", "50%", "50%"]
    assert "flood" in out[out.index("Earned nothing: ") :]
    assert "Not played, for want of the tool: exit, forged_output, forged_session." in out
    assert out.endswith("PASSED: no exploit reaches honest work.\n\n")


def test_a_hole_is_shown_with_its_term_and_a_dialogue(
    width: int, begging: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("Polite-v0", "--tasks", "6") == 1
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    (line,) = (line for line in out.splitlines() if line.startswith(" begging "))
    assert line.split() == ["begging", "2.00", "±0.00", "200%", "0%", "politeness", "2.00", "FINDING"]
    finding = out[out.index("Finding: ") :]
    assert finding.startswith(
        "Finding: as good as honest work, by the term 'politeness'.\n  By begging.\n  begging: earns"
    )
    assert "\n  An episode of begging:\n    user      │ " in finding
    assert "    assistant │ please\n              │ reward 2 (politeness +2)  [answered]\n" in finding
    assert out.endswith("FAILED: 1 exploit pays.\n\n")


def test_without_the_exploit_the_hole_is_not_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Polite-v0", "--tasks", "6") == 0


def test_several_environments_and_rewards(begging: None, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tasks", "5", "--exploits", "short,begging"]
    assert run(TOOL, "Arithmetic-v0", "--reward", "sparse,hybrid", *options) == 0
    out = capsys.readouterr().out
    titles = [line.split(":")[0] for line in out.splitlines() if "×accuracy" in line]
    assert titles == [f"{env}, {reward}" for env in (TOOL, "Arithmetic-v0") for reward in ("sparse", "hybrid")]
    assert out.endswith("4 of 4 audits passed.\n")
    assert run("Polite-v0", TOOL, *options) == 1
    assert capsys.readouterr().out.endswith("1 of 2 audits passed.\n")


def test_json(begging: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["Polite-v0", "--tasks", "5", "--seed", "7", "--exploits", "begging", "--env-kwargs", '{"difficulty": 2}']
    assert run(*options, "--gamma", "0.9", "--json", str(tmp_path / "audit.json")) == 1
    table = capsys.readouterr().out
    data = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert data["passed"] is False
    (one,) = data["audits"]
    assert (one["env"], one["env_kwargs"], one["passed"]) == ("Polite-v0", {"difficulty": 2}, False)
    assert (one["gamma"], one["tasks"], one["seed"]) == (0.9, 5, 7)
    assert one["findings"][0]["exploit"] == "begging"
    assert one["findings"][0]["verdict"]["term"] == "politeness"
    assert one["findings"][0]["example"].splitlines()[-1].strip() in table
    assert run(*options, "--gamma", "0.9", "--json", "-") == 1
    assert json.loads(capsys.readouterr().out) == data


def test_strict_counts_leaks(capsys: pytest.CaptureFixture[str]) -> None:
    @register_exploit("asking_once")
    def asking_once(view: View) -> str:
        """Asks for it, for a small bonus."""
        return "please"

    gymnasium.register(
        "Slightly-v0",
        entry_point=lambda **kwargs: ArithmeticEnv(
            reward={"accuracy": (accuracy, 1.0), "politeness": (politeness, 0.2)}, **kwargs
        ),
    )
    try:
        options = ["Slightly-v0", "--tasks", "5", "--exploits", "asking_once"]
        assert run(*options) == 0
        out = capsys.readouterr().out
        assert "Leak: pay beyond that for the work, by the term 'politeness'.\n  By asking_once.\n" in out
        assert out.endswith("PASSED: no exploit reaches honest work.\n\n")
        assert "An episode of" not in out
        assert run(*options, "--strict") == 1
        out = capsys.readouterr().out
        assert "An episode of asking_once" in out
        assert out.endswith("FAILED: 1 exploit pays.\n\n")
    finally:
        del gymnasium.registry["Slightly-v0"]


def test_the_list(width: int, begging: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == sorted(EXPLOITS)
    assert any(line.split() == ["begging", "Begs."] for line in lines)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Which environment?"),
        (["Nope-v0"], "Unknown environment 'Nope-v0'"),
        ([TOOL, "--reward", "hybird"], "Did you mean 'hybrid'?"),
        ([TOOL, "--exploits", "floods"], "Did you mean 'flood'?"),
        ([TOOL, "--tasks", "2"], "tasks must be a whole number of at least 5"),
        ([TOOL, "--gamma", "2"], "gamma must lie in"),
        ([TOOL, "--env-kwargs", '{"dificulty": 3}'], "Did you mean 'difficulty'?"),
        ([TOOL, "--reward", "sparse", "--env-kwargs", '{"reward": "dense"}'], "The reward is given twice"),
        ([TOOL, "--env-kwargs", '{"max_turns": 1}'], "The demonstrations solve 0 of 20 tasks"),
        (["CartPole-v1"], "CartPoleEnv is not a trajgym.envs.base.ToolEnv"),
        (["GSM8K-v0", "--env-kwargs", '{"path": "nowhere.jsonl"}'], "No GSM8K data"),
        ([TOOL, "--tasks", "5", "--exploits", "short", "--json", "no/such/folder/x.json"], "--json cannot write"),
    ],
)
def test_what_cannot_be_done_is_not_taken_for_a_finding(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*args) == 2
    err = capsys.readouterr().err
    assert err.startswith("trajgym audit: ")
    assert message in err


@pytest.mark.parametrize("option", ["--reward", "--exploits"])
@pytest.mark.parametrize("names", ["", ",", "sparse,", "short,,long", " , "])
def test_names_that_are_none_are_not_left_out(option: str, names: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(TOOL, option, names)
    assert f"argument {option}: must be names with a comma between them" in capsys.readouterr().err


def test_what_the_reward_is_like(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TOOL, "--reward", "hybrid", "--tasks", "5", "--exploits", "short,flood,stop_early") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Defined success: a solved task earns more than an unsolved one in 100% of the pairs." in out
    assert "Gradient signal: returns differ in 100% of the groups" in out
    assert re.search(r"Bounded variance: returns from 0\.00 to 1\.\d\d, .* times what success is worth\.", out)
    shares = re.search(r"their shares of the variance: accuracy (\d+)%, tool_success (\d+)%\.", out)
    assert shares is not None
    assert sum(map(int, shares.groups())) == pytest.approx(100, abs=1)
    assert "Warning" not in out


def test_a_reward_that_pays_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    calls = json.dumps({"reward": {"tool_success": 0.1}})  # and there are no tools
    assert run("Arithmetic-v0", "--env-kwargs", calls, "--tasks", "5", "--exploits", "short") == 1
    out = capsys.readouterr().out
    assert "Warning: No group has two different returns: there is nothing to learn from." in out
    assert "Finding: nobody earns anything.\n  By wrong_answer.\n" in out
    assert out.endswith("FAILED: the reward pays nothing here.\n\n")


@pytest.mark.parametrize("args", [["--tasks", "x"], ["--env-kwargs", "[1]"], ["--env-kwargs", "{"], ["--gama", "1"]])
def test_wrong_arguments(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(TOOL, *args)
    assert "usage: trajgym audit" in capsys.readouterr().err
