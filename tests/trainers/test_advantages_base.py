"""What holds for every estimator: shapes, order, what it may depend on, what it refuses, where it comes from."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.errors import ConfigError, RewardError, UnknownNameError
from trajgym.trainers.advantages import ESTIMATORS, Advantages, Estimator, bind, estimator

Group = tuple[list[list[float]], dict[str, Any]]

NUMBERS = st.floats(-2, 2, allow_subnormal=False)
ALL = sorted(ESTIMATORS)
# Unbiased, and with a baseline that takes nothing from its own trajectory.
APART: list[tuple[str, dict[str, Any]]] = [
    ("trajectory", {}),
    ("trajectory", {"baseline": "none"}),
    *(("return_to_go", {"baseline": b}) for b in ("step", "absorbing", "v0", "none")),
    *(("anchor", {"fallback": f}) for f in ("step", "absorbing", "none")),
    ("vine", {}),
    ("gae", {"lam": 1.0}),
]
UNBIASED = [*APART, ("return_to_go", {"baseline": "earned"})]  # which looks at what it had earned before
FORWARD = [(name, options) for name, options in [*APART, ("gae", {})] if name != "trajectory"]


@st.composite
def groups(draw: st.DrawFn) -> Group:
    lengths = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    rewards = [draw(st.lists(NUMBERS, min_size=n, max_size=n)) for n in lengths]
    states = [draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)) for n in lengths]
    values = [[*draw(st.lists(NUMBERS, min_size=n, max_size=n)), 0.0] for n in lengths]
    return rewards, {"states": states, "values": values}


def credit(name: str, options: dict[str, Any], gamma: float, rewards: Any, more: dict[str, Any]) -> Advantages:
    chosen = ESTIMATORS[name]
    return chosen(rewards, gamma=gamma, **options, **{need: more[need] for need in chosen.needs})


def close(got: Advantages, wanted: Advantages) -> bool:
    return all(np.allclose(a, b, atol=1e-9) for a, b in zip(got, wanted, strict=True))


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget afterwards what a test registers."""
    monkeypatch.setattr(ESTIMATORS, "_items", dict(ESTIMATORS._items))


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25)
@given(group=groups(), gamma=st.floats(0, 1))
def test_one_finite_number_per_turn_and_the_group_is_left_alone(name: str, group: Group, gamma: float) -> None:
    rewards, more = group
    before = [list(row) for row in rewards]
    advantages = credit(name, {}, gamma, rewards, more)
    assert [len(row) for row in advantages] == [len(row) for row in rewards]
    assert all(math.isfinite(a) for row in advantages for a in row)
    assert rewards == before


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25)
@given(group=groups(), gamma=st.floats(0, 1), data=st.data())
def test_members_may_come_in_any_order(name: str, group: Group, gamma: float, data: st.DataObject) -> None:
    rewards, more = group
    order = data.draw(st.permutations(range(len(rewards))))
    shuffled = {key: [rows[i] for i in order] for key, rows in more.items()}
    straight = credit(name, {}, gamma, rewards, more)
    assert close(credit(name, {}, gamma, [rewards[i] for i in order], shuffled), [straight[i] for i in order])


@pytest.mark.parametrize(("name", "options"), UNBIASED)
@settings(max_examples=25)
@given(group=groups(), gamma=st.floats(0, 1), factor=st.floats(-3, 3))
def test_advantages_grow_with_the_rewards(
    name: str, options: dict[str, Any], group: Group, gamma: float, factor: float
) -> None:
    rewards, more = group
    larger = {**more, "values": [[factor * v for v in row] for row in more["values"]]}
    got = credit(name, options, gamma, [[factor * r for r in row] for row in rewards], larger)
    assert close(got, [[factor * a for a in row] for row in credit(name, options, gamma, rewards, more)])


@pytest.mark.parametrize(("name", "options"), FORWARD)
@settings(max_examples=25)
@given(group=groups(), gamma=st.floats(0, 1), data=st.data())
def test_earlier_rewards_never_change_later_credit(
    name: str, options: dict[str, Any], group: Group, gamma: float, data: st.DataObject
) -> None:
    rewards, more = group
    i = data.draw(st.integers(0, len(rewards) - 1))
    k = data.draw(st.integers(0, len(rewards[i]) - 1))
    changed = [list(row) for row in rewards]
    changed[i][k] += 1.0
    before, after = (credit(name, options, gamma, r, more) for r in (rewards, changed))
    assert before[i][k + 1 :] == after[i][k + 1 :]


def test_one_mean_over_all_turns_lets_them() -> None:
    before, after = (
        ESTIMATORS["rebn"](r, gamma=1.0)[0][1] for r in ([[0.0, 0.0], [1.0, 2.0]], [[1.0, 0.0], [1.0, 2.0]])
    )
    assert before != after


@pytest.mark.parametrize(("name", "options"), APART)
@settings(max_examples=25)
@given(group=groups(), gamma=st.floats(0, 1), shifts=st.tuples(NUMBERS, NUMBERS))
def test_a_baseline_never_depends_on_its_own_trajectory(
    name: str, options: dict[str, Any], group: Group, gamma: float, shifts: tuple[float, float]
) -> None:
    """What one's own rewards change is the same whatever the others got."""
    rewards, more = group
    own = [[r + shifts[0] for r in rewards[0]], *rewards[1:]]
    others = [rewards[0], *([r + shifts[1] for r in row] for row in rewards[1:])]
    both = [own[0], *others[1:]]
    plain, one, other, joint = (credit(name, options, gamma, r, more)[0] for r in (rewards, own, others, both))
    assert np.allclose(np.subtract(one, plain), np.subtract(joint, other), atol=1e-9)


@settings(max_examples=100)
@given(group=groups(), gamma=st.floats(0, 1), data=st.data())
def test_what_one_earned_before_may_choose_the_others_to_compare_with_and_nothing_later(
    group: Group, gamma: float, data: st.DataObject
) -> None:
    rewards, _ = group
    k = data.draw(st.integers(0, len(rewards[0]) - 1))
    later = data.draw(st.lists(NUMBERS, min_size=1, max_size=4))
    changed = [[*rewards[0][:k], *later], *rewards[1:]]
    baselines = []
    for group_ in (rewards, changed):
        with_, without = (
            ESTIMATORS["return_to_go"](group_, gamma=gamma, baseline=b, discount_weight="dropped")[0]
            for b in ("earned", "none")
        )
        baselines.append(np.subtract(without, with_)[: k + 1])
    assert np.allclose(*baselines, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("trajectory", {}),
        *(("return_to_go", {"baseline": b}) for b in ("step", "earned", "absorbing")),
        *(("anchor", {"fallback": f}) for f in ("step", "absorbing")),
        *(("gae", {"lam": lam}) for lam in (0.5, 1.0)),
    ],
)
@given(
    st.lists(st.floats(-1e3, 1e3, allow_subnormal=False), min_size=1, max_size=4), st.integers(2, 9), st.floats(0, 1)
)
def test_of_equals_nothing_is_left_that_a_spread_could_blow_up(
    name: str, options: dict[str, Any], rewards: list[float], members: int, gamma: float
) -> None:
    more = {"states": [list(range(len(rewards)))] * members} if name == "anchor" else {}
    got = ESTIMATORS[name]([rewards] * members, gamma=gamma, **options, **more)
    assert got == [[0.0] * len(rewards)] * members


def test_what_rounding_leaves_is_told_from_what_is_small() -> None:
    trajectory = ESTIMATORS["trajectory"]
    assert trajectory([[0.1] * 3, [0.3]], gamma=1.0) == [[0.0] * 3, [0.0]]  # a sum that is not 0.3 in floats
    assert trajectory([[1.0], [1.0 + 1e-9]], gamma=1.0)[1][0] == pytest.approx(1e-9)
    assert ESTIMATORS["gae"]([[0.1, 0.2]], gamma=1.0, values=[[0.3, 0.2, 0.0]], lam=1.0) == [[0.0, 0.0]]


@pytest.mark.parametrize("name", ["gigpo", "grpo_process", "mt_grpo", "rebn"])
def test_normalised_by_its_own_rewards_it_does(name: str) -> None:
    more = {"states": [["s", "t"], ["s", "t"], ["s", "t"]], "values": [[0.0] * 3] * 3}
    plain = [[0.0, 1.0], [1.0, 2.0], [3.0, 0.0]]
    own = [[2.0, 1.0], *plain[1:]]
    others = [plain[0], [4.0, 5.0], [3.0, 0.0]]
    both = [own[0], *others[1:]]
    a, b, c, d = (credit(name, {}, 1.0, r, more)[0] for r in (plain, own, others, both))
    assert not np.allclose(np.subtract(b, a), np.subtract(d, c), atol=1e-3)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("rewards", "error", "message"),
    [
        ([[1.0], [0.0, math.nan]], RewardError, "trajectory 1, turn 1 is nan"),
        ([[1.0], [math.inf]], RewardError, "trajectory 1, turn 0 is inf"),
        ([[1.0], [None]], RewardError, "trajectory 1, turn 0 is None"),
        ([[1.0], ["x"]], RewardError, "trajectory 1, turn 0 is 'x'"),
        ([[1.0], []], RewardError, "Trajectory 1 has no turns"),
        ([], RewardError, "without trajectories"),
        (None, ConfigError, "one list per trajectory"),
        ([1.0, 2.0], ConfigError, "one list per trajectory"),
    ],
)
def test_bad_rewards_are_named(name: str, rewards: Any, error: type[Exception], message: str) -> None:
    lengths = [len(row) for row in rewards] if isinstance(rewards, list) and isinstance([*rewards, 0][0], list) else []
    more = {"states": [[0] * n for n in lengths], "values": [[0.0] * (n + 1) for n in lengths]}
    with pytest.raises(error, match=message):
        credit(name, {}, 1.0, rewards, more)


@pytest.mark.parametrize("name", ALL)
def test_numbers_too_large_to_add_up_are_named(name: str) -> None:
    more = {"states": [[0, 0], [0, 0]], "values": [[-1e308] * 2 + [0.0]] * 2}
    with pytest.raises(RewardError, match="too large"):
        credit(name, {}, 1.0, [[1e308, 1e308], [-1e308, 1e308]], more)


@pytest.mark.parametrize("gamma", [-0.1, 1.1, math.nan, math.inf, None, "1"])
@pytest.mark.parametrize("name", ALL)
def test_absurd_gamma_is_named(name: str, gamma: Any) -> None:
    with pytest.raises(ConfigError, match=r"gamma must lie in \[0, 1\]"):
        credit(name, {}, gamma, [[1.0], [0.0]], {"states": [[0], [0]], "values": [[0.0, 0.0]] * 2})


@pytest.mark.parametrize("name", [n for n in ALL if n != "vine"])
def test_groups_of_one_are_named(name: str) -> None:
    chosen = ESTIMATORS[name]
    more = {"states": [[0]]} if "states" in chosen.needs else {}
    with pytest.raises(ConfigError, match=r"at least 2 trajectories to compare, got 1\. Raise num_generations"):
        chosen([[1.0]], gamma=1.0, **more)


def test_who_compares_nobody_takes_groups_of_one() -> None:
    for name, options in [("trajectory", {"baseline": "none"}), ("return_to_go", {"baseline": "none"}), ("vine", {})]:
        assert credit(name, options, 1.0, [[1.0]], {"values": [[0.0, 0.0]], "states": [[0]]}) == [[1.0]]
    assert ESTIMATORS["gae"]([[1.0]], gamma=1.0, baseline="none") == [[1.0]]


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("anchor", {"states": [[0, 1], [0]]}, r"one key per turn: \[1, 1\], got \[2, 1\]"),
        ("anchor", {"states": [[0]]}, "one key per turn"),
        ("gigpo", {"states": [[0], [[]]]}, "trajectory 1, turn 0 cannot be a key"),
        ("gigpo", {"states": None}, "needs states"),
        ("anchor", {"states": 3}, "one list per trajectory"),
        ("vine", {"values": [[0.0], [0.0]]}, r"one more number than turns: \[2, 2\], got \[1, 1\]"),
        ("vine", {"values": [[0.0, 0.0], [math.nan, 0.0]]}, "trajectory 1, state 0 is nan"),
        ("gae", {"values": [[0.0, None], [0.0, 0.0]]}, "trajectory 0, state 1 is None"),
        ("vine", {}, "needs values"),
    ],
)
def test_states_and_values_that_do_not_fit_are_named(name: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ESTIMATORS[name]([[1.0], [2.0]], gamma=1.0, **more)


@pytest.mark.usefixtures("own_registry")
def test_a_user_adds_one_in_a_few_lines() -> None:
    @estimator("last", unbiased=False)
    def last(rewards: Any, *, gamma: float, factor: float = 1.0) -> Advantages:
        """Say something."""
        return [[factor * row[-1]] * len(row) for row in rewards]

    entry = ESTIMATORS["last"]
    assert (entry.name, entry.needs, entry.options, entry.unbiased) == ("last", (), {"factor": 1.0}, False)
    assert entry([[1.0, 2.0], [3.0]], gamma=1.0, factor=2.0) == last([[1.0, 2.0], [3.0]], gamma=1.0, factor=2.0)
    assert last.__doc__ == "Say something."
    with pytest.raises(RewardError, match="turn 0 is nan"):
        last([[math.nan]], gamma=1.0)
    with pytest.raises(ConfigError, match="exists already"):
        estimator("last")(lambda rewards, *, gamma: [])


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda rewards, *, gamma: [[0.0]], ConfigError, r"one number per turn: \[2, 1\]"),
        (lambda rewards, *, gamma: [[math.nan] * len(r) for r in rewards], RewardError, "not finite"),
    ],
)
def test_what_a_users_estimator_returns_is_checked(
    function: Callable[..., Advantages], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        estimator("mine")(function)([[1.0, 2.0], [3.0]], gamma=1.0)


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize(
    "function",
    [
        lambda rewards: [],
        lambda rewards, gamma: [],
        lambda rewards, *, gamma, must: [],
        lambda *, rewards, gamma: [],
        list,
        lambda rewards, *, gamma, **options: [],
    ],
)
def test_other_parameters_are_refused_when_it_is_defined(function: Callable[..., Advantages]) -> None:
    with pytest.raises(ConfigError, match=r"'mine' must be"):
        estimator("mine")(function)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that brings an estimator, a plain function and something else."""
    (tmp_path / "credit_plugin.py").write_text(
        "from trajgym.trainers.advantages import Estimator\n"
        "def plain(rewards, *, gamma, factor=1.0):\n"
        "    return [[factor] * len(row) for row in rewards]\n"
        "READY = Estimator('ready', plain, unbiased=True)\n"
        "NUMBER = 3\n"
    )
    folder = tmp_path / "credit_plugin-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: credit-plugin\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[trajgym.estimators]\n"
        "plain = credit_plugin:plain\nready = credit_plugin:READY\nnumber = credit_plugin:NUMBER\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    monkeypatch.setattr(ESTIMATORS, "_promised", None)
    yield
    sys.modules.pop("credit_plugin", None)


@pytest.mark.usefixtures("own_registry", "installed")
def test_packages_bring_estimators_and_plain_functions() -> None:
    assert ESTIMATORS["ready"].unbiased
    plain = ESTIMATORS["plain"]
    assert isinstance(plain, Estimator)
    assert (plain.name, plain.unbiased, plain.options) == ("plain", False, {"factor": 1.0})
    with pytest.raises(RewardError):
        plain([[math.nan]], gamma=1.0)
    with pytest.warns(UserWarning, match="'plain' is not known to follow"):
        assert bind("plain", gamma=1.0, factor=2.0)([[1.0]]) == [[2.0]]
    with pytest.raises(ConfigError, match="'number' must be a function of rewards, got 3"):
        ESTIMATORS["number"]


def test_unknown_names_say_what_there_is() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'grpo_process'.*Add one with"):
        ESTIMATORS["grpo_proces"]


def test_estimators_that_misbehave_are_named() -> None:
    def spread_of_none(rewards: Any, *, gamma: float) -> Any:
        return [[1.0 / (row[0] - row[0]) for _ in row] for row in rewards]

    kinds: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
        "divides": (spread_of_none, RewardError, "'divides' failed: ZeroDivisionError"),
        "forgets": (lambda rewards, *, gamma: None, ConfigError, "'forgets' must return one number per turn"),
        "flattens": (lambda rewards, *, gamma: [0.0, 0.0], ConfigError, "'flattens' must return one number per turn"),
        "writes": (
            lambda rewards, *, gamma: [["x"] * len(r) for r in rewards],
            ConfigError,
            "'writes' must return num",
        ),
        "turns": (
            lambda rewards, *, gamma: [[1j] * len(r) for r in rewards],
            ConfigError,
            "'turns' must return numbers",
        ),
    }
    for name, (function, kind, message) in kinds.items():
        try:
            estimator(name)(function)
            with pytest.raises(kind, match=message):
                ESTIMATORS[name]([[0.0], [1.0, 2.0]], gamma=1.0)
        finally:
            ESTIMATORS._items.pop(name, None)  # type: ignore[attr-defined]


def test_what_can_be_gone_through_once_is_kept() -> None:
    try:
        estimator("once")(lambda rewards, *, gamma: (iter(row) for row in rewards))
        assert ESTIMATORS["once"]([[0.0], [1.0, 2.0]], gamma=1.0) == [[0.0], [1.0, 2.0]]
    finally:
        ESTIMATORS._items.pop("once", None)  # type: ignore[attr-defined]
