"""Rubric: named terms with weights, each part finite or the term is named."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError, EnvironmentFault, RewardError, UnknownNameError
from trajgym.rewards import REWARDS, Rubric, accuracy, get_rubric, register_rubric, tool_success
from trajgym.types import Action, Observation, Step, StopReason, Task

TASK = Task("sum", "48 + 24?", "72")
STEP = Step(Action("#### 72"), Observation(), terminated=True, stop_reason=StopReason.ANSWERED)


def constant(value: Any) -> Any:
    return lambda step, task, history: value


def test_each_part_is_value_times_weight() -> None:
    rubric = Rubric({"right": (accuracy, 2), "long": (lambda s, t, h: len(s.action.text), -0.5)})
    assert rubric.score(STEP, TASK, []) == {"right": 2.0, "long": -3.5}
    assert rubric.weights == {"right": 2.0, "long": -0.5}
    assert repr(rubric) == "Rubric(right×2, long×-0.5)"


def test_a_term_sees_the_step_the_task_and_what_was_before() -> None:
    seen: list[Any] = []
    rubric = Rubric({"spy": (lambda *given: seen.append(given) or 0.0, 1.0)})
    rubric.score(STEP, TASK, [STEP, STEP])
    assert seen == [(STEP, TASK, [STEP, STEP])]


def test_it_is_a_mapping_of_its_terms() -> None:
    terms = {"right": (accuracy, 1.0), "tools": (tool_success, 0.1)}
    rubric = Rubric(terms)
    assert dict(rubric) == terms
    assert (len(rubric), "right" in rubric, "wrong" in rubric) == (2, True, False)
    assert Rubric(rubric) == rubric  # one may be made from another
    assert Rubric({}).score(STEP, TASK, []) == {}


@given(st.dictionaries(st.text(max_size=4), st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), max_size=4))
def test_parts_add_up(values: dict[str, tuple[float, float]]) -> None:
    parts = Rubric({n: (constant(v), w) for n, (v, w) in values.items()}).score(STEP, TASK, [])
    assert parts == {n: v * w for n, (v, w) in values.items()}


@pytest.mark.parametrize(("value", "paid"), [(True, 1.0), (3, 3.0), (Fraction(1, 4), 0.25), (np.float32(0.5), 0.5)])
def test_any_real_number_will_do(value: Any, paid: float) -> None:
    got = Rubric({"x": (constant(value), 1.0)}).score(STEP, TASK, [])["x"]
    assert (type(got), got) == (float, paid)


@pytest.mark.parametrize(
    ("value", "weight"),
    [(float("nan"), 1), (float("inf"), 0), ("1", 1), (None, 1), (1j, 1), ([1.0], 1), (10**400, 1), (1e308, 10)],
)
def test_anything_else_is_the_terms_fault(value: Any, weight: float) -> None:
    rubric = Rubric({"fine": (constant(1), 1.0), "odd": (constant(value), weight)})
    with pytest.raises(RewardError, match=r"'odd' returned .* for task 'sum'"):
        rubric.score(STEP, TASK, [])


def test_a_term_that_raises_is_named_and_an_outage_is_passed_on() -> None:
    def broken(*_: Any) -> float:
        raise KeyError("gold")

    def down(*_: Any) -> float:
        raise EnvironmentFault("the judge is down")

    with pytest.raises(RewardError, match=r"'broken' raised KeyError: 'gold' \(task 'sum'\)"):
        Rubric({"broken": (broken, 1.0)}).score(STEP, TASK, [])
    with pytest.raises(EnvironmentFault, match="judge"):
        Rubric({"judge": (down, 1.0)}).score(STEP, TASK, [])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (1.0, "pair"),
        ((accuracy,), "pair"),
        ([accuracy, 1.0], "pair"),
        (("accuracy", 1.0), "pair"),
        ((accuracy, "1"), "weight"),
        ((accuracy, None), "weight"),
        ((accuracy, True), "weight"),
        ((accuracy, float("nan")), "weight"),
        ((accuracy, float("inf")), "weight"),
    ],
)
def test_wrong_entries_are_refused_when_the_rubric_is_made(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"'mine' .*{message}"):
        Rubric({"mine": entry})


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("sparse", {"accuracy": 1.0}),
        ("dense", {"tool_success": 0.1}),
        ("hybrid", {"accuracy": 1.0, "tool_success": 0.1}),
    ],
)
def test_the_three_that_ship(name: str, weights: dict[str, float]) -> None:
    assert get_rubric(name).weights == weights
    assert get_rubric(name) is not get_rubric(name)


def test_by_name_as_a_rubric_or_as_terms() -> None:
    rubric = Rubric({"right": (accuracy, 1.0)})
    assert get_rubric(rubric) is rubric
    assert get_rubric({"right": (accuracy, 1.0)}) == rubric
    with pytest.raises(UnknownNameError, match=r"Did you mean 'sparse'.*register_rubric"):
        get_rubric("sparze")
    for thing in (3, None, accuracy, [("right", accuracy)]):
        with pytest.raises(ConfigError, match="name or a Rubric"):
            get_rubric(thing)  # type: ignore[arg-type]


def test_names_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REWARDS, "_items", dict(REWARDS))
    register_rubric("mine", lambda: Rubric({"right": (accuracy, 3.0)}))
    assert get_rubric("mine").weights == {"right": 3.0}
    with pytest.raises(ConfigError, match="exists already"):
        register_rubric("mine", lambda: Rubric({}))
    register_rubric("mine", lambda: Rubric({}), replace=True)
    assert get_rubric("mine").weights == {}


def test_installed_packages_add_rubrics(tmp_path: Path) -> None:
    """In a fresh interpreter, with a package on its path that has an entry point."""
    (tmp_path / "theirs.py").write_text(
        "from trajgym.rewards import Rubric, accuracy\ndef make(): return Rubric({'right': (accuracy, 4.0)})\n"
    )
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[trajgym.rewards]\nmine = theirs:make\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); from trajgym.rewards import get_rubric"
    command = [sys.executable, "-c", f"{code}; print(get_rubric('mine').weights)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("{'right': 4.0}\n", "")
