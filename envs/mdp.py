"""An environment as the five things a Markov decision process is made of: (S, A, P, R, γ).

>>> from trajgym.envs.arithmetic import ArithmeticEnv
>>> process = MDP.of(ArithmeticEnv(split="test"), gamma=0.95)
>>> start = process.begin(seed=0)
>>> over = process.transition(start, "I give up.")
>>> start.over, over.over, over.reward, process.value([start, over])
(False, True, 0.0, 0.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trajgym.envs.base import ToolEnv
from trajgym.envs.spaces import Unicode
from trajgym.errors import ConfigError, EpisodeError
from trajgym.rewards import Rubric
from trajgym.types import Message, Task, discounted_return

__all__ = ["MDP", "State"]


@dataclass(frozen=True, eq=False)
class State:
    """A state of an episode, and what the step that led to it has paid.

    Args:
        env: The environment in that state; never stepped, only cloned.
        messages: What the policy sees of it.
        reward: r(s, a) of the step that led here; 0 at the beginning.
        over: Whether the episode has ended.
    """

    env: ToolEnv
    messages: tuple[Message, ...]
    reward: float = 0.0
    over: bool = False


@dataclass(frozen=True)
class MDP:
    """``(S, A, P, R, γ)``.

    Args:
        states: S as the policy sees it: dialogues, whose text this space holds.
        actions: A, the assistant's turns: any text.
        rewards: R, whose terms are functions of the step, the task and the steps before it.
        gamma: γ per turn, in [0, 1].
        env: Carries P out: :meth:`begin` and :meth:`transition`.

    Raises:
        ConfigError: When γ lies outside, or the environment has tools whose state cannot be cloned.
    """

    states: Unicode
    actions: Unicode
    rewards: Rubric
    gamma: float
    env: ToolEnv

    def __post_init__(self) -> None:
        if isinstance(self.gamma, bool) or not isinstance(self.gamma, (int, float)) or not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma must lie in [0, 1], got {self.gamma!r}.")
        if not self.env.can_clone:
            raise ConfigError(
                f"P is a function of state and action, and {type(self.env).__name__} has a tool whose state cannot be "
                "copied. Leave that tool out."
            )

    @classmethod
    def of(cls, env: Any, gamma: float = 1.0) -> MDP:
        """Return the process that an environment of ours is, wrapped or not.

        Raises:
            ConfigError: When it is none of ours, and as above.
        """
        inner = env.unwrapped
        if not isinstance(inner, ToolEnv):
            raise ConfigError(f"{type(inner).__name__} is no environment of trajgym's.")
        assert isinstance(inner.observation_space, Unicode)
        assert isinstance(inner.action_space, Unicode)
        return cls(inner.observation_space, inner.action_space, inner.rubric.discounted(gamma), gamma, inner)

    def begin(self, *, seed: int | None = None, task: Task | str | None = None) -> State:
        """Return s_0: drawn with a seed, or that of a task."""
        env = self.env.clone()
        env.rubric = self.rewards
        env.reset(seed=seed, options=None if task is None else {"task": task})
        return State(env, env.messages)

    def transition(self, state: State, action: str) -> State:
        """Return what follows: a draw from P(· | s, a), the same one whenever the same is asked for.

        Raises:
            EpisodeError: Behind the end.
        """
        if state.over:
            raise EpisodeError("Nothing follows the end of an episode.")
        env = state.env.clone()
        _, reward, terminated, truncated, info = env.step(action)
        return State(env, info["messages"], reward, terminated or truncated)

    def value(self, states: Sequence[State]) -> float:
        """Return ``Σ_t γ^t r_t`` of the states of an episode, the first of which has paid nothing."""
        return discounted_return([state.reward for state in states[1:]], self.gamma)
