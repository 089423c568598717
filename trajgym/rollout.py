"""The one place where policy and environment meet.

``collect`` plays many episodes at once. The policy works on the dialogues that wait for a turn while other
environments are still busy with theirs; a slow tool delays its own episode and nobody else's.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium

from trajgym.envs.tools.worker import as_clean_text, one_line
from trajgym.errors import ConfigError, DataError, EpisodeError, RewardError
from trajgym.policies.base import Policy
from trajgym.rollout_replies import Reply, read_reset, read_step
from trajgym.rollout_states import State, clone_env
from trajgym.types import Action, Message, Observation, Step, StopReason, Task, Trajectory

__all__ = ["EnvPool", "Episode", "collect", "derive_seed", "fault_counts", "fault_summary"]

Watch: TypeAlias = "Callable[[str], AbstractContextManager[None]]"
MakeEnv = Callable[[], "gymnasium.Env[str, str]"]

# What the caller got wrong must stop the run; everything else that an environment raises is a fault of one episode.
_CALLER_ERRORS = (ConfigError, DataError, EpisodeError, RewardError)
_MAX_FAULT = 1_000  # characters

_log = logging.getLogger(__name__)


def derive_seed(*parts: int | str) -> int:
    """Return a seed of 63 bits that depends on all parts and on nothing else, on every machine.

    >>> derive_seed(0, "policy", 3) == derive_seed(0, "policy", 3) != derive_seed(0, "policy", 4)
    True
    """
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True)
class Episode:
    """One episode to play.

    Args:
        seed: Seed of the environment's ``reset``; the same seed gives the same task.
        policy_seed: Seed of the policy's draws.
        task: Chooses the task explicitly (an id or a ``Task``); drawn from the seed when ``None``.
        start: Where to go on from, in place of a reset: ``seed`` and ``task`` are of no use then. The trajectory has
            the dialogue so far as its prompt, and the steps, rewards and turns from there on.
    """

    seed: int
    policy_seed: int
    task: Task | str | None = None
    start: State | None = None


class EnvPool:
    """Environments that are made when first needed and used again for later episodes.

    Args:
        make_env: Makes one environment.
        threads: Most environments that step at the same time.
    """

    def __init__(self, make_env: MakeEnv, *, threads: int = 32) -> None:
        self._make = make_env
        self._idle: list[gymnasium.Env[str, str]] = []
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="trajgym-env")

    def take(self) -> gymnasium.Env[str, str]:
        """Return an environment that nobody uses."""
        return self._idle.pop() if self._idle else self._make()

    def give(self, env: gymnasium.Env[str, str]) -> None:
        """Put an environment back."""
        self._idle.append(env)

    def submit(self, call: Callable[..., Reply], *args: Any, **kwargs: Any) -> Future[Reply]:
        """Run an environment's method beside everything else."""
        return self._executor.submit(call, *args, **kwargs)

    def close(self) -> None:
        """Close all environments and threads."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        for env in self._idle:
            _close(env)
        self._idle.clear()

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass
class _Live:
    """An episode under way."""

    env: gymnasium.Env[str, str]
    plan: Episode
    task: Task
    prompt: tuple[Message, ...] = ()
    steps: list[Step] = field(default_factory=list)
    action: Action | None = None
    started: bool = False  # whether the policy knows of it

    @property
    def over(self) -> bool:
        return bool(self.steps) and self.steps[-1].stop_reason is not None


def _unwatched(part: str) -> AbstractContextManager[None]:
    return nullcontext()


def collect(
    policy: Policy,
    pool: EnvPool,
    episodes: Sequence[Episode],
    *,
    deterministic: bool = False,
    on_tick: Callable[[int], None] | None = None,
    states: dict[int, list[State]] | None = None,
    watch: Watch = _unwatched,
) -> list[Trajectory]:
    """Play ``episodes`` and return their trajectories in the same order.

    Args:
        policy: Who acts.
        pool: Where.
        episodes: What to play.
        deterministic: Wait for all environments after each tick, so that the same batches are formed in every run and
            floating-point results repeat bit for bit. Costs the slowest tool of each tick.
        on_tick: Called with the number of finished episodes; may raise to stop (live episodes are closed).
        states: Filled with the state before each turn of each episode, by the episode's place in ``episodes``. Each one
            holds a clone of the environment, so that :class:`Episode` can start from it.
        watch: Gives a block to be in during ``"generation"`` (the policy writes), ``"environment"`` (nobody has a turn
            to write) and ``"lockstep"`` (some have, and ``deterministic`` makes them wait).

    Raises:
        ConfigError, DataError, EpisodeError, RewardError: The caller's mistakes. Any other exception of an environment
            makes that one trajectory invalid (``trajectory.fault``) and the others go on, also where a new
            environment cannot be made.
    """
    return _Collector(policy, pool, episodes, deterministic, on_tick, states, watch).run()


class _Collector:
    """State of one call of :func:`collect`."""

    def __init__(
        self,
        policy: Policy,
        pool: EnvPool,
        episodes: Sequence[Episode],
        deterministic: bool,
        on_tick: Callable[[int], None] | None,
        states: dict[int, list[State]] | None,
        watch: Watch,
    ) -> None:
        self.policy, self.pool, self.deterministic, self.on_tick = policy, pool, deterministic, on_tick
        self.states, self.watch = states, watch
        self.waiting = deque(enumerate(episodes))
        self.live: dict[int, _Live] = {}
        self.acting: set[int] = set()  # episodes whose turn the policy is writing
        self.busy: dict[Future[Reply], int] = {}  # episodes whose environment is at work
        self.done: dict[int, Trajectory] = {}

    def run(self) -> list[Trajectory]:
        try:
            while self.waiting or self.live:
                self._start()
                for future in self._answered():
                    self._receive(self.busy.pop(future), future)
                if self.acting:
                    with self.watch("generation"):
                        written = self.policy.poll()
                    for index, action in written:
                        self._act(index, action)
                if self.on_tick is not None:
                    self.on_tick(len(self.done))
        finally:
            self._abandon()
        return [self.done[i] for i in sorted(self.done)]

    def _start(self) -> None:
        while self.waiting and len(self.live) < self.policy.capacity:
            index, plan = self.waiting.popleft()
            start = plan.start
            task, prompt = (_planned(plan), ()) if start is None else (start.task, start.messages)
            try:
                env = self.pool.take() if start is None else clone_env(start.env)
            except _CALLER_ERRORS:
                raise
            except Exception as error:
                self.done[index] = Trajectory(task, prompt, (), seed=plan.policy_seed, fault=_fault(error))
                continue
            live = self.live[index] = _Live(env, plan, task, prompt)
            if start is None:
                options = None if plan.task is None else {"task": plan.task}
                self.busy[self.pool.submit(live.env.reset, seed=plan.seed, options=options)] = index
            else:
                self.policy.resume(index, prompt, start.tokens, task=task, seed=plan.policy_seed)
                live.started = True
                self._ask(index)

    def _answered(self) -> Iterator[Future[Reply]]:
        """Yield the replies to handle now, in the order in which they were asked for."""
        if not self.acting:  # nothing else to do
            with self.watch("environment"):
                wait(self.busy, return_when=FIRST_COMPLETED)
        if self.deterministic:
            with self.watch("lockstep"):
                wait(self.busy)
        return iter([future for future in self.busy if future.done()])

    def _receive(self, index: int, future: Future[Reply]) -> None:
        live = self.live[index]
        try:
            reply = future.result()
            if live.action is None:
                live.task, live.prompt = read_reset(live.plan.seed, reply)
            else:
                live.steps.append(read_step(live.action, reply))
        except _CALLER_ERRORS:
            raise
        except (Exception, SystemExit) as error:  # SystemExit: an environment that calls exit() ends its own episode
            if live.action is not None:  # what the policy wrote last is the first thing to look at
                live.steps.append(Step(live.action, Observation(), stop_reason=StopReason.FAULT))
            self._finish(index, fault=_fault(error))
            return
        if live.action is None:
            self.policy.start(index, live.prompt, task=live.task, seed=live.plan.policy_seed)
            live.started = True
        elif live.over:
            self._finish(index)
            return
        else:
            self.policy.observe(index, live.steps[-1].observation.messages)
        self._ask(index)

    def _ask(self, index: int) -> None:
        """Let the policy write the episode's next turn, which it has been told of."""
        if self.states is not None:
            live = self.live[index]
            try:
                env = clone_env(live.env)
            except _CALLER_ERRORS:
                raise
            except Exception as error:
                self._finish(index, fault=_fault(error))
                return
            messages = Trajectory(live.task, live.prompt, tuple(live.steps)).messages
            state = State(env, live.task, messages, self.policy.context(index))
            self.states.setdefault(index, []).append(state)
        self.acting.add(index)

    def _act(self, index: int, action: Action) -> None:
        live = self.live[index]
        self.acting.discard(index)
        live.action = action
        if action.finish == "stop":
            self.busy[self.pool.submit(live.env.step, action.text)] = index
            return
        # A budget cut the turn: it is no action of the environment's, and no call in it runs.
        reason = StopReason(action.finish)
        if live.env.has_wrapper_attr("cut"):  # one of ours, whose rubric may take back what it paid for nothing
            self.busy[self.pool.submit(_cut, live.env, action.text, reason)] = index
        else:
            live.steps.append(Step(action, Observation(), truncated=True, stop_reason=reason))
            self._finish(index)

    def _finish(self, index: int, fault: str | None = None) -> None:
        live = self.live.pop(index)
        rows = self.policy.finish(index) if live.started else ()
        self.done[index] = Trajectory(
            live.task, live.prompt, tuple(live.steps), rows, seed=live.plan.policy_seed, fault=fault
        )
        if fault is None and live.plan.start is None:
            self.pool.give(live.env)
        else:
            _close(live.env)  # a clone nobody needs any more, or one in an unknown state; a fresh one takes its place

    def _abandon(self) -> None:
        """Close what is still live after an exception."""
        wait(self.busy)
        for index, live in self.live.items():
            if live.started:
                self.policy.finish(index)
            _close(live.env)
        self.live.clear()


def fault_counts(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Return how many trajectories are invalid, by the class of what was raised, most frequent first."""
    return dict(Counter(_fault_of(t).partition(":")[0] for t in trajectories if not t.valid).most_common())


def fault_summary(trajectories: Sequence[Trajectory]) -> str:
    """Say how many trajectories are invalid and why the first one is; empty when all are valid.

    >>> lost = Trajectory(Task("t", "", ""), (), (), fault="OSError: no space left")
    >>> fault_summary([lost, lost])
    '2 of 2 episodes failed, the first with OSError: no space left.'
    """
    lost = [t for t in trajectories if not t.valid]
    if not lost:
        return ""
    return f"{len(lost)} of {len(trajectories)} episodes failed, the first with {_fault_of(lost[0]).rstrip('.')}."


def _fault_of(trajectory: Trajectory) -> str:
    return trajectory.fault or "no step"


def _fault(error: BaseException) -> str:
    """Write what was raised as ``Class: message`` in one line that can be printed and stored."""
    return " ".join(as_clean_text(one_line(error), _MAX_FAULT).split())


def _close(env: gymnasium.Env[str, str]) -> None:
    """Close an environment; one that is broken may fail even in that, and must not take the others with it."""
    try:
        env.close()
    except Exception:
        _log.warning("An environment failed to close", exc_info=True)


def _cut(env: gymnasium.Env[str, str], text: str, reason: StopReason) -> Reply:
    """Cut the episode short behind the wrappers' backs, for it is no step; what they make of rewards still holds."""
    observation, reward, *rest = env.get_wrapper_attr("cut")(text, reason)
    scalings = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.RewardWrapper):
            scalings.append(env.reward)
        env = env.env
    for scaled in reversed(scalings):
        reward = scaled(reward)
    return observation, reward, *rest


def _planned(plan: Episode) -> Task:
    """Return what is known of an episode's task before its environment tells it."""
    return plan.task if isinstance(plan.task, Task) else Task(plan.task or f"seed-{plan.seed}", "", "")
