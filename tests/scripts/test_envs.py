"""``trajgym envs``: the catalogue, and one environment's documentation as it reads in a terminal."""

from __future__ import annotations

import inspect
import re

import pytest

from trajgym import cli
from trajgym.envs.arithmetic import ArithmeticEnv
from trajgym.envs.base import ToolEnv
from trajgym.envs.make import ids
from trajgym.errors import UnknownNameError
from trajgym.scripts import envs


def test_every_environment_is_listed_with_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["envs"]) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if re.search(r"-v\d", line)]
    assert [re.findall(r"[\w-]+-v\d+", row)[0] for row in rows] == ids()
    assert "tools=(), max_turns=1" in rows[0]
    assert "defaults" in rows[1]
    assert "Word problems of one to eight" in rows[0]


@pytest.mark.parametrize("env_id", ids())
def test_the_documentation_stands_on_its_own(env_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert envs.main([env_id]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{env_id}\n\n")
    for heading in ("Description", "Action Space", "Observation Space", "Rewards", "Episode End", "Arguments"):
        assert out.count(f"\n\n## {heading}\n") == 1
    # From the base class, instead of a reference to it; some environments have rewards of their own.
    assert "the right answer at the end pays 1" in out or '"sparse": at the end, 1 for the' in out
    assert "turn budget ran out" in out
    assert re.search(r"Args of every environment:\n.*\n    max_invalid: ", out, re.DOTALL)
    assert not re.search(r":class:|``|As in", out)


def test_nothing_of_the_docstrings_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    envs.main(["ArithmeticTool-v0"])
    words = capsys.readouterr().out.split()
    arguments = (inspect.getdoc(ToolEnv) or "").partition("Args:")[2].partition("Raises:")[0]
    for part in (inspect.getdoc(ArithmeticEnv) or "", arguments):
        plain = re.sub(r"As in :class:`[\w.]+`[.;]?|:class:`([\w.]+)`", r"\1", part).replace("``", "")
        assert [word for word in plain.split() if word not in words] == []


def test_an_unknown_id(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownNameError):
        envs.main(["ArithmeticTol-v0"])
    assert cli.main(["envs", "ArithmeticTol-v0"]) == 2
    assert "Did you mean 'ArithmeticTool-v0'?" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["envs", "--all"])
