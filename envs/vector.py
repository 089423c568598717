"""Many episodes at once in one process, where a slow tool keeps no other episode waiting.

This is what ``gymnasium.make_vec`` makes of our ids, unless it is asked for another ``vectorization_mode``: its
``wrappers`` and ``vector_kwargs``, and arguments of ``gymnasium.make`` itself, go with ``vectorization_mode="sync"``.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from trajgym.envs.base import ToolEnv
from trajgym.envs.spaces import Unicode
from trajgym.envs.tools.execution import side_by_side
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.protocols import SingleCall
from trajgym.types import Step

__all__ = ["ToolVectorEnv", "vector_of"]

_QUICK = 2e-3  # seconds; calls that take less on average are not worth a thread
_WEIGHT = 0.1  # of the latest call in that average
_MOST_THREADS = 64
_Played: TypeAlias = tuple[str, float, bool, bool, dict[str, Any]]


class ToolVectorEnv(SyncVectorEnv):
    """Gymnasium's :class:`~gymnasium.vector.SyncVectorEnv` for environments with tools.

    What comes out is the same to the last character, and so are the spaces, the seeds, ``reset(options=…)`` and the
    modes of autoreset. Turns that call a tool which takes its time run side by side in up to 64 threads, so a step
    costs the slowest of them and not their sum. Which tools these are is measured as they are called; all other turns
    run one after the other, where no thread has to be woken. So a tool may be called from any thread, and so may what
    the environments share (tasks, rubric), as in the trainer.

    An environment that raises does so once all others have taken their turn. The first error is the one to be seen,
    with a note for each environment that raised; what the others were paid in that turn is lost, and they can go on.

    Args:
        env_fns: Make the environments, all alike: each a :class:`ToolEnv`, perhaps in wrappers that leave text text.
        autoreset_mode: As everywhere in Gymnasium.

    Raises:
        ConfigError: For no environment at all, one that is no :class:`ToolEnv`, or one that speaks something else than
            text.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[str, str]]],
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        modes = [mode.value for mode in AutoresetMode]
        if autoreset_mode not in (*AutoresetMode, *modes):
            raise UnknownNameError("autoreset_mode", str(autoreset_mode), modes)
        if not env_fns:
            raise ConfigError("A vector environment needs at least one environment.")
        # The observations are a tuple of strings, which nobody can change: there is nothing to copy.
        super().__init__(env_fns, copy=False, autoreset_mode=autoreset_mode)
        self._env_obs: list[Any]
        for env in self.envs:
            if not isinstance(env.unwrapped, ToolEnv):
                self.close()
                raise ConfigError(f"ToolVectorEnv steps trajgym's environments, got {type(env.unwrapped).__name__}.")
        for space in (self.single_observation_space, self.single_action_space):
            if not isinstance(space, Unicode):
                self.close()
                raise ConfigError(
                    f"ToolVectorEnv carries text, and a wrapper made it {space}. Use vectorization_mode='sync'."
                )
        self._seconds: dict[str, float] = {}

    def step(self, actions: Sequence[str]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one turn in every environment.

        Args:
            actions: One assistant turn for each.

        Returns:
            As :meth:`gymnasium.vector.VectorEnv.step`.

        Raises:
            ConfigError: When there is not one action for each environment.
            EpisodeError: In the mode ``DISABLED``, when an episode is over.
            EnvironmentFault: When our machinery failed.
        """
        turns = list(actions) if isinstance(actions, Iterable) and not isinstance(actions, str) else []
        if len(turns) != self.num_envs:
            raise ConfigError(
                f"step() takes one action for each of {self.num_envs} environments, got {actions!r:.200}."
            )
        envs, played = list(self.envs), dict[int, _Played | Exception]()
        context = contextvars.copy_context()
        stopped = threading.Event()

        def play(lane: Sequence[int]) -> None:
            for i in lane:
                if stopped.is_set():
                    return
                try:
                    played[i] = self._turn(envs[i], turns[i], over=bool(self._autoreset_envs[i]))
                except Exception as error:
                    played[i] = error

        slow = [i for i, turn in enumerate(turns) if self._may_wait(i, turn)]
        rest = sorted(set(range(self.num_envs)).difference(slow))
        try:
            if slow:
                lanes = [*([i] for i in slow), *([rest] if rest else [])]
                side_by_side(lambda lane: context.copy().run(play, lane), lanes, most=_MOST_THREADS)
            else:
                play(rest)
        except BaseException:
            # Ctrl-C: no further turn begins, and one that is still at work ends in an environment that nobody uses.
            stopped.set()
            self.envs = [env if i in played else self.env_fns[i]() for i, env in enumerate(envs)]
            raise
        infos: dict[str, Any] = {}
        errors: list[Exception] = []
        for i in range(self.num_envs):
            outcome = played[i]
            if isinstance(outcome, Exception):
                errors.append(outcome)
                errors[0].add_note(f"In environment {i}: {type(outcome).__name__}: {outcome}")
                continue
            self._env_obs[i], self._rewards[i], self._terminations[i], self._truncations[i], info = outcome
            infos = self._add_info(infos, info, i)
            self._learn(info)
        # Of an environment that raised, the flags are those from before.
        self._autoreset_envs = self._terminations | self._truncations
        if errors:
            raise errors[0]
        ends = self._rewards.copy(), self._terminations.copy(), self._truncations.copy()
        return tuple(self._env_obs), *ends, infos

    def _turn(self, env: gymnasium.Env[str, str], action: str, *, over: bool) -> _Played:
        """Take the turn of one environment, and begin its next episode as the mode says."""
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and over:
            text, info = env.reset()
            return text, 0.0, False, False, info
        text, reward, terminated, truncated, info = env.step(action)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and (terminated or truncated):
            ended = {"final_obs": text, "final_info": info}
            text, info = env.reset()
            info = ended | info
        return text, float(reward), terminated, truncated, info

    def _may_wait(self, i: int, action: str) -> bool:
        """Whether a turn calls a tool that may take its time: one that does so on average, or was never called."""
        env = self.envs[i].unwrapped
        assert isinstance(env, ToolEnv)
        if self.render_mode == "human":
            return False  # what is printed comes in order
        slow = [name for name in env.tools if self._seconds.get(name, _QUICK) >= _QUICK]
        # Most turns name none of them, which is sooner seen than read. Some forms of a call have no name.
        named = isinstance(action, str) and (isinstance(env.protocol, SingleCall) or any(n in action for n in slow))
        return named and any(call.name in slow for call in env.protocol.parse(action, env.tools).calls)

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        """Add an environment's information; arrays of different shapes become objects, since none holds them all."""
        for key, value in env_info.items():
            held = vector_infos.get(key)
            if not isinstance(value, np.ndarray) or not isinstance(held, np.ndarray) or held.dtype == object:
                continue
            if held.shape[1:] != value.shape:
                vector_infos[key] = np.full(self.num_envs, None, dtype=object)
                for i in np.flatnonzero(vector_infos[f"_{key}"]):
                    vector_infos[key][i] = held[i]
        return super()._add_info(vector_infos, env_info, env_num)

    def _learn(self, info: dict[str, Any]) -> None:
        """Note how long the tools take."""
        step = info.get("final_info", info).get("step")
        for result in step.results if isinstance(step, Step) else ():
            mean = self._seconds.get(result.call.name, result.seconds)
            self._seconds[result.call.name] = mean + _WEIGHT * (result.seconds - mean)


def vector_of(env_class: type[ToolEnv]) -> Callable[..., ToolVectorEnv]:
    """Return what a family registers as its ``vector_entry_point``.

    Args:
        env_class: The family; ``num_envs`` and ``autoreset_mode`` are the vector environment's, all other arguments
            are those of each environment.
    """

    def vector_env(
        num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
    ) -> ToolVectorEnv:
        # What can be gone through only once would be used up by the first of them.
        kwargs = {name: tuple(value) if isinstance(value, Iterator) else value for name, value in kwargs.items()}
        if num_envs < 1:
            raise ConfigError(f"num_envs must be at least 1, got {num_envs}.")
        return ToolVectorEnv([functools.partial(env_class, **kwargs)] * num_envs, autoreset_mode=autoreset_mode)

    return vector_env
