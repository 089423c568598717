"""What may change between a run and its continuation."""

from __future__ import annotations

from typing import Any

import pytest

from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.resume_options import Changes, changes

DEFAULTS = GRPOConfig.model_construct().plain()


def compare(before: dict[str, Any], now: dict[str, Any]) -> Changes:
    given = {"updates": 10}
    return changes(GRPOConfig(**(given | before)).plain(), GRPOConfig(**(given | now)).plain(), DEFAULTS)


@pytest.mark.parametrize(
    "now", [{"updates": 20}, {"save_every": 3}, {"name": "x"}, {"monitors": ()}, {"log_trajectories": 0}]
)
def test_what_no_number_depends_on_is_free(now: dict[str, Any]) -> None:
    assert compare({}, now) == Changes((), ())


@pytest.mark.parametrize(
    "now",
    [
        {"learning_rate": 1e-6}, {"max_grad_norm": 0.5}, {"kl_coef": 0.1}, {"slots": 32}, {"microbatch_tokens": 4096},
        {"gradient_checkpointing": True}, {"num_generations": 4}, {"max_turn_tokens": 128}, {"device": "cpu"},
    ],
)  # fmt: skip
def test_what_diverged_or_did_not_fit_can_be_changed(now: dict[str, Any]) -> None:
    """The options that warnings and errors tell people to change before they resume."""
    found = compare({}, now)
    ((name, value),) = now.items()
    assert found.refused == ()
    assert found.noted == (f"{name}: {DEFAULTS[name]!r} before, {value!r} now",)


@pytest.mark.parametrize(
    "now", [{"model": "other"}, {"gamma": 0.9}, {"use_lora": True}, {"env": "X-v0"}, {"dtype": "bfloat16"}, {"seed": 1}]
)
def test_what_the_saved_state_depends_on_is_refused(now: dict[str, Any]) -> None:
    assert len(compare({}, now).refused) == 1
    assert compare({}, now).noted == ()


def test_a_coefficient_that_moves_by_itself_is_not_changed_by_hand() -> None:
    auto = {"kl_control": "auto"}
    assert compare(auto, auto | {"kl_coef": 0.1}).refused == ("kl_coef: 0.05 before, 0.1 now",)


def test_another_length_moves_what_follows_the_progress() -> None:
    for schedule in ({"lr_schedule": "linear"}, {"warmup_ratio": 0.1}, {"reward_schedule": {"a": [[0, 1], [1, 0]]}}):
        found = compare(schedule, schedule | {"updates": 20})
        assert found == Changes((), ("updates: 10 before, 20 now, which moves schedules",))
        assert compare(schedule, schedule) == Changes((), ())


def test_options_of_other_versions() -> None:
    """One that did not exist had its default; one that is gone cannot be kept."""
    now = GRPOConfig(updates=10).plain()
    older = {name: value for name, value in now.items() if name != "gamma"}
    assert changes(older, now, DEFAULTS) == Changes((), ())
    assert changes(older, now | {"gamma": 0.5}, DEFAULTS).refused == ("gamma: 1.0 before, 0.5 now",)
    newer = now | {"telepathy": True}
    assert changes(newer, now, DEFAULTS).noted == ("telepathy: True before, not known any more",)
