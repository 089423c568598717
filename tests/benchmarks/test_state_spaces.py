"""The enumeration against numbers worked out by hand."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from trajgym.envs.choice_tasks import ChoiceTasks

ROOT = Path(__file__).resolve().parents[2]
DEEP = ChoiceTasks("train", 6).get("choice/train/6/3/0")


@pytest.fixture(scope="module")
def spaces() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("state_spaces")
    sys.modules.pop("state_spaces", None)


def test_one_turn_is_one_state_and_a_guess(spaces: ModuleType) -> None:
    space = spaces.explore(DEEP, agentic=False, max_turns=9)
    p = 1 / 900
    assert (space.horizon, space.states, space.branching, space.trajectories, space.best) == (1, 1, 900, 900, 1.0)
    assert space.blind == pytest.approx((p, p * (1 - p)))
    assert space.reader == space.blind


def test_two_turns_by_hand(spaces: ModuleType) -> None:
    space = spaces.explore(DEEP, agentic=True, max_turns=2)
    # The start; what three tools answer; the place opened; the place found closed, by either tool in it.
    assert space.states == 6
    assert space.trajectories == 900 + 6 * 906
    assert space.blind[0] == pytest.approx(1 / 906 + 6 / 906 * 1 / 906)
    # Three calls show a number, a wrong one here; behind the other three the reader still guesses.
    guess = 1 / 7 * 1 / 900
    assert space.reader[0] == pytest.approx(guess + 3 / 7 * guess)
    assert space.reader[1] == pytest.approx(space.reader[0] * (1 - space.reader[0]))


def test_discounting_takes_from_what_comes_later(spaces: ModuleType) -> None:
    now, later = (spaces.explore(DEEP, agentic=True, max_turns=2, gamma=gamma) for gamma in (1.0, 0.5))
    assert later.reader[0] == pytest.approx(1 / 7 / 900 + 0.5 * 3 / 7 / 7 / 900)
    assert later.states == now.states


def test_the_page_shows_what_the_script_prints(spaces: ModuleType) -> None:
    page = (ROOT / "docs" / "state_spaces.md").read_text(encoding="utf-8")
    for row in spaces.table(3, 1, 1.0)[2:4]:  # the two short ones, which do not depend on the problem
        assert row in page
