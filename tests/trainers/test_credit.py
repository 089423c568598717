"""From groups to advantages, with the penalties that only the trainer can see."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.advantages import ESTIMATORS, BiasWarning, estimator
from trajgym.trainers.config import load_config
from trajgym.trainers.credit import Credit, turn_rewards, turn_tokens
from trajgym.trainers.metrics import no_signal
from trajgym.types import Action, Group, Observation, Step, StopReason, Task, TokenStream, ToolCall, Trajectory


def member(
    *rewards: float, tokens: tuple[int, ...] | None = None, reason: StopReason = StopReason.ANSWERED, words: str = "1"
) -> Trajectory:
    """A trajectory with one reward and so many sampled tokens per turn; an observation stands between turns."""
    counts = tokens or (1,) * len(rewards)
    mask, turns = [0], [-1]
    for t, count in enumerate(counts):
        mask += [1] * count + [0]
        turns += [t] * count + [-1]
    row = TokenStream((5,) * len(mask), tuple(mask), tuple(turns), (0.0,) * len(mask))
    last = len(rewards) - 1
    steps = tuple(
        Step(
            Action(words, calls=(ToolCall("calculator", {"expression": words}),)),
            Observation(),
            reward,
            stop_reason=reason if t == last else None,
        )
        for t, reward in enumerate(rewards)
    )
    return Trajectory(Task("t", "", "1"), (), steps, (row,))


def credit(**options: Any) -> Credit:
    return Credit(load_config({"updates": 1, "max_turn_tokens": 10, "max_episode_tokens": 100, **options}))


def group(*members: Trajectory) -> Group:
    return Group(members[0].task, members)


def test_the_relative_reward_of_the_founding_document() -> None:
    four = group(*(member(r) for r in (1.0, 1.0, 0.0, 0.8)))
    (advantages,) = credit(estimator="trajectory", baseline="mean")([four])
    assert [a for [a] in advantages] == pytest.approx([0.3, 0.3, -0.7, 0.1])


def test_tokens_of_each_turn_over_all_rows() -> None:
    assert turn_tokens(member(0.0, 0.0, tokens=(3, 2))) == [3, 2]
    first, second = member(0.0, tokens=(2,)).rows[0], TokenStream((1, 2, 3), (0, 1, 1), (-1, 1, 1), (0.0,) * 3)
    apart = Trajectory(Task("t", "", ""), (), member(0.0, 0.0).steps, (first, second))
    assert turn_tokens(apart) == [2, 2]


def test_turns_that_near_their_budget_pay_for_it() -> None:
    config = load_config(
        {"updates": 1, "max_turn_tokens": 10, "max_episode_tokens": 99, "overlong_penalty": 0.5, "overlong_buffer": 4}
    )
    # Free up to 6 tokens, then a quarter of 0.5 for each further one.
    played = member(0.0, 1.0, 0.0, 0.0, tokens=(6, 7, 10, 1))
    assert turn_rewards(played, config) == pytest.approx([0.0, 1.0 - 0.125, -0.5, 0.0])


def test_a_cut_trajectory_may_cost_something() -> None:
    config = load_config({"updates": 1, "truncated": "penalty", "truncation_penalty": 0.25})
    assert turn_rewards(member(0.1, 0.1, reason=StopReason.MAX_TURNS), config) == pytest.approx([0.1, -0.15])
    assert turn_rewards(member(0.1, 0.1), config) == [0.1, 0.1]


def test_the_kl_of_a_turn_is_taken_from_its_reward() -> None:
    maker = credit(kl_form="k1_in_reward", kl_coef=0.1, estimator="trajectory")
    two = group(member(0.0, 1.0), member(0.0, 1.0))
    kl = [[[0.5, -2.0], [2.0, 0.0]]]
    assert maker.rewards([two], kl) == [[pytest.approx([-0.05, 1.2]), pytest.approx([-0.2, 1.0])]]
    (advantages,) = maker([two], kl=[[[0.0, 0.0], [2.0, 0.0]]])
    assert advantages == [pytest.approx([0.2, 0.2]), pytest.approx([-0.2, -0.2])]
    maker.kl_coef = 0.2  # as kl_control moves it
    assert maker.rewards([two], kl)[0][0] == pytest.approx([-0.1, 1.4])


def test_an_estimator_gets_what_it_asks_for() -> None:
    by_state = credit(estimator="anchor")
    assert by_state.needs == {"states"}
    # Two members act alike before they differ; the third never shares a state after the first.
    alike, other = member(0.0, 1.0), member(0.0, 0.0)
    (advantages,) = by_state([group(alike, other, member(0.0, 0.6, words="2"))])
    assert advantages[0][1] == pytest.approx(1.0 - 0.0)
    assert credit(estimator="trajectory").needs == frozenset()
    values = [[[0.5, 0.25, 0.0], [0.0, 0.0, 0.0]]]
    learned = credit(estimator="gae", estimator_options={"lam": 0.0})([group(alike, other)], values=values)
    assert learned == [[pytest.approx([-0.25, 0.75]), pytest.approx([0.0, 0.0])]]


def test_a_signal_is_one_whatever_the_scale() -> None:
    for scale in ("none", "group_std", "batch_std", "ema_std"):
        look = credit(advantage_scale=scale)
        assert look.has_signal(group(member(1.0), member(0.0)))
        assert not look.has_signal(group(member(1.0), member(1.0)))
        assert look.has_signal(group(member(0.0, 1.0), member(1.0, 0.0)))  # equal in sum, not turn by turn


def test_a_spread_of_earlier_updates_survives_a_resume() -> None:
    straight, saved = credit(advantage_scale="ema_std"), credit(advantage_scale="ema_std")
    batches = [[group(member(float(k)), member(0.0))] for k in (2, 4, 1)]
    want = [straight(batch) for batch in batches]
    first = saved(batches[0])
    resumed = credit(advantage_scale="ema_std")
    resumed.load_state_dict(saved.state_dict())
    assert [first, resumed(batches[1]), resumed(batches[2])] == want
    assert want[0] == credit()(batches[0])  # nothing is known yet
    assert want[1] == [[[2.0], [-2.0]]]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"estimator": "gae", "estimator_options": {"lambda": 1.0}}, (ConfigError, UnknownNameError), "lam"),
        ({"estimator": "gae", "estimator_options": {"lam": 7.0}}, ConfigError, "lam"),
        ({"algorithm": "ppo", "estimator": "trajectory"}, ConfigError, "gae"),
        ({"num_generations": 1}, ConfigError, "num_generations"),
        ({"num_generations": 1, "estimator": "vine", "advantage_scale": "group_std"}, ConfigError, "group_std"),
        ({"estimator_options": {"gamma": 0.5}}, ConfigError, "gamma"),
        ({"estimator_options": {"baseline": "none"}}, ConfigError, "baseline"),
        ({"algorithm": "ppo", "baseline": "loo"}, ConfigError, "baseline"),
        ({"token_lam": 0.5}, ConfigError, "bilevel"),
        ({"learning_rate": float("inf")}, ConfigError, "learning_rate"),
        ({"learning_rate": 1e38}, ConfigError, "learning_rate"),
        ({"temperature": float("nan")}, ConfigError, "temperature"),
        ({"updates": None, "epochs": float("inf")}, ConfigError, "epochs"),
        ({"kl_control": "auto", "kl_coef": 0.0}, ConfigError, "kl_control"),
        ({"kl_form": "k1"}, ConfigError, "expected gradient"),
        ({"importance": "sequence"}, ConfigError, "same credit"),
        ({"objective": "cispo", "cispo_cap": 0.5}, ConfigError, "cispo_cap"),
        ({"objective": "dual_clip", "dual_clip": 1.0}, ConfigError, "dual_clip"),
        ({"truncation_penalty": 1.0}, ConfigError, "truncated: penalty"),
        ({"estimator": "vine", "overlong_penalty": 1.0}, ConfigError, "vine"),
        ({"dynamic_sampling": 2, "algorithm": "ppo"}, ConfigError, "dynamic_sampling"),
        ({"overlong_penalty": 1.0, "overlong_buffer": 11}, ConfigError, "overlong_buffer"),
        ({"overlong_penalty": float("nan")}, ConfigError, "overlong_penalty"),
        ({"kl_coef": float("inf")}, ConfigError, "kl_coef"),
    ],
)
def test_combinations_that_mean_nothing_say_why(
    options: dict[str, Any], error: type[Exception] | tuple[type[Exception], ...], message: str
) -> None:
    with pytest.raises(error, match=message):
        credit(**options)


def test_equal_rewards_are_no_signal_to_any_estimator() -> None:
    for name in sorted(set(ESTIMATORS) - {"vine"}):  # which is asked with values alone
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BiasWarning)
            look = credit(estimator=name)
        for reward in (0.1, 0.7, -1 / 3):
            assert not look.has_signal(group(*[member(reward)] * 7)), name
        assert look.has_signal(group(member(0.1), member(0.2))), name
    equal = group(*[member(0.7)] * 7)
    for scale in ("group_std", "batch_std", "ema_std"):
        look = credit(advantage_scale=scale)
        for _ in range(2):  # what is left behind must not be the spread of the next
            assert all(map(no_signal, look([equal]))), scale
        assert max(a for row in look([group(member(1.0), member(0.0))])[0] for a in row) < 2.0, scale


def test_one_trajectory_is_enough_for_estimators_that_compare_nobody() -> None:
    @estimator("centred_here", unbiased=True)
    def centred(rewards: Any, *, gamma: float, centre: float = 0.5) -> Any:
        return [[sum(row[t:]) - centre for t in range(len(row))] for row in rewards]

    try:
        assert credit(estimator="centred_here", num_generations=1)([group(member(1.0))]) == [[[0.5]]]
    finally:
        del ESTIMATORS._items["centred_here"]
    values = [[[0.25, 0.0]]]
    assert credit(estimator="vine", num_generations=1)([group(member(1.0))], values=values) == [[[0.75]]]


def test_how_many_a_group_must_have() -> None:
    alone: list[dict[str, Any]] = [{"algorithm": "ppo"}, {"estimator": "vine"}, {"baseline": "none"}]
    for options in alone:
        assert credit(**options).least == 1
        assert credit(**options, advantage_scale="group_std").least == 2  # one has no spread
    assert credit().least == credit(estimator="gae").least == 2
    with pytest.raises(
        ConfigError, match="at least 2 trajectories"
    ):  # nothing but the group says what a state is worth
        credit(estimator="gae", num_generations=1)


def test_ppo_needs_no_mention_of_its_estimator() -> None:
    assert load_config({"updates": 1, "algorithm": "ppo", "num_generations": 1}).estimator == "gae"
