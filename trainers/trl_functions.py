"""Reward functions that others wrote for TRL, held to what they promise.

TRL writes NaN for ``None``, which is no opinion, and cannot tell it afterwards from a NaN that a function came to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trl.trainer.utils import get_callable_name, is_async_callable

from trajgym.errors import RewardError, TrajgymError
from trajgym.rewards.functions import is_finite

__all__ = ["checked"]


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function that raises a :class:`~trajgym.errors.RewardError` where the given one goes wrong.

    That is when it fails, returns another number of rewards than there are completions, or anything but finite numbers
    and ``None``.

    Args:
        function: Takes what TRL passes; it may be async.
    """
    name = get_callable_name(function)

    async def waited(**given: Any) -> list[Any]:
        with _named(name):
            rewards = list(await function(**given))
        return _read(name, rewards, given["prompts"])

    def called(**given: Any) -> list[Any]:
        with _named(name):
            rewards = list(function(**given))
        return _read(name, rewards, given["prompts"])

    out: Callable[..., Any] = waited if is_async_callable(function) else called
    out.__name__ = name
    return out


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say whose error it is."""
    try:
        yield
    except TrajgymError:
        raise
    except Exception as error:
        raise RewardError(f"The reward function {name!r} failed: {type(error).__name__}: {error}.") from error


def _read(name: str, rewards: list[Any], prompts: Sequence[Any]) -> list[Any]:
    if len(rewards) != len(prompts):
        raise RewardError(
            f"The reward function {name!r} must return one reward for each of {len(prompts)} completions, got "
            f"{len(rewards)}."
        )
    for i, reward in enumerate(rewards):
        if reward is not None and not is_finite(reward):
            raise RewardError(
                f"The reward function {name!r} gave completion {i} the reward {reward!r}; rewards must be finite "
                "numbers, or None for no opinion."
            )
    return rewards
