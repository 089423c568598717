"""``check_env`` passes every id of the catalogue, and notices each way of breaking the contract."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from trajgym.envs.base import ToolEnv
from trajgym.envs.check import CheckFailedError, check_env
from trajgym.envs.make import ids
from trajgym.types import Task


@pytest.mark.parametrize("env_id", ids())
def test_every_id_passes(env_id: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if env_id.startswith("GSM8K"):
        monkeypatch.setenv("TRAJGYM_DATA", str(request.getfixturevalue("gsm8k_data")))
    check_env(gymnasium.make(env_id))


def test_ids_work_without_an_import() -> None:
    check_env(gymnasium.make("trajgym:ArithmeticTool-v0", reward="dense", instructions="schema"), episodes=1)


class Broken(ToolEnv):
    """Breaks one rule, chosen by ``change``."""

    def __init__(self, change: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]], **kwargs: Any) -> None:
        super().__init__([Task("a", "1+1?", "2"), Task("b", "2+2?", "4")], tools=["calculator"], **kwargs)
        self._change = change

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._change(self, super().step(action))  # type: ignore[return-value]


def unequal_parts(env: Broken, reply: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*reply[:4], {**reply[4], "reward_terms": {"accuracy": 5.0}})


def both_ends(env: Broken, reply: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*reply[:2], reply[2], reply[2] or reply[3], reply[4])


def no_reason(env: Broken, reply: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*reply[:4], {**reply[4], "stop_reason": None})


def not_text(env: Broken, reply: tuple[Any, ...]) -> tuple[Any, ...]:
    return (b"bytes", *reply[1:])


def chance(env: Broken, reply: tuple[Any, ...]) -> tuple[Any, ...]:
    return (f"{reply[0]}{id(object())}{random.SystemRandom().random()}", *reply[1:])


def global_chance(env: Broken, reply: tuple[Any, ...]) -> tuple[Any, ...]:
    random.random()
    return reply


def numpy_chance(env: Broken, reply: tuple[Any, ...]) -> tuple[Any, ...]:
    np.random.rand()
    return reply


def paid_again(env: Broken, reply: tuple[Any, ...]) -> tuple[Any, ...]:
    if env._steps:
        env._steps[-1] = dataclasses.replace(env._steps[-1], stop_reason=None)
    return reply


def no_step(env: Broken, reply: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*reply[:4], {k: v for k, v in reply[4].items() if k != "step"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (unequal_parts, "add up"),
        (both_ends, "both terminated and truncated|truncates after 1 step"),
        (no_reason, "stop_reason"),
        (not_text, "space"),
        (chance, "different|equivalent|deterministic"),
        (global_chance, "global random generator"),
        (numpy_chance, "global random generator"),
        (paid_again, "after the end"),
        (no_step, 'no "step"'),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_each_breach_is_noticed(change: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]], message: str) -> None:
    with pytest.raises(AssertionError, match=message) as caught:
        check_env(Broken(change), skip_render_check=True)
    assert isinstance(caught.value, (CheckFailedError, AssertionError))


@pytest.mark.filterwarnings("ignore")
def test_an_exception_on_garbage_is_noticed() -> None:
    class Fragile(Broken):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            if not action.strip():
                raise ValueError("empty")
            return super().step(action)

    with pytest.raises(CheckFailedError, match="raised ValueError"):
        check_env(Fragile(lambda env, reply: reply), skip_render_check=True, episodes=6)
