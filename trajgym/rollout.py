"""The one place where policy and environment meet.

``collect`` plays many episodes at once. The policy works on the dialogues that wait for a turn while other
environments are still busy with theirs; a slow tool delays its own episode and nobody else's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias

import gymnasium

from trajgym.errors import ConfigError, DataError, EpisodeError, RewardError, TrajgymError
from trajgym.policies.base import LostTurn, Policy
from trajgym.rollout_deadline import GroupClock
from trajgym.rollout_faults import SamplerFault, Straggler, fault_counts, fault_summary, fault_text
from trajgym.rollout_pool import Call, EnvPool, MakeEnv, close_env
from trajgym.rollout_replies import Reply, read_reset, read_step
from trajgym.rollout_states import State, clone_env
from trajgym.types import Action, Message, Observation, Step, StopReason, Task, Trajectory

__all__ = ["EnvPool", "Episode", "MakeEnv", "collect", "derive_seed", "fault_counts", "fault_summary"]

Watch: TypeAlias = "Callable[[str], AbstractContextManager[None]]"

# What the caller got wrong must stop the run; everything else that an environment raises is a fault of one episode.
_CALLER_ERRORS = (ConfigError, DataError, EpisodeError, RewardError)

_LOOK_UP = 0.5  # seconds of waiting for environments after which ``on_tick`` is asked, so that Ctrl-C is heard
_GRACE = 5.0  # seconds that environments at work are waited for when all is given up


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
    group_size: int = 1,
    policy_may_fail: bool = False,
) -> list[Trajectory]:
    """Play ``episodes`` and return their trajectories in the same order.

    Args:
        policy: Who acts.
        pool: Where; its ``deadline`` closes stragglers, see :mod:`trajgym.rollout_deadline`.
        episodes: What to play.
        deterministic: Wait for all environments after each tick, so that the same batches are formed in every run and
            floating-point results repeat bit for bit. Costs the slowest tool of each tick.
        on_tick: Called again and again with the number of finished episodes, also while environments are waited for;
            may raise to stop (live episodes are closed).
        states: Filled with the state before each turn of each episode, by the episode's place in ``episodes``. Each one
            holds a clone of the environment, so that :class:`Episode` can start from it.
        watch: Gives a block to be in during ``"generation"`` (the policy writes), ``"environment"`` (nobody has a turn
            to write) and ``"lockstep"`` (some have, and ``deterministic`` makes them wait).
        group_size: Members of a group; they stand side by side in ``episodes``.
        policy_may_fail: Whether an error in the middle of writing, of a kind that is not ours, makes the trajectories
            invalid that had a turn to write, in place of being raised.

    Raises:
        ConfigError, DataError, EpisodeError, RewardError: The caller's mistakes. Any other exception of an environment
            makes that one trajectory invalid (``trajectory.fault``) and the others go on, also where a new
            environment cannot be made. So does a turn whose log-probabilities are not finite.
    """
    clock = GroupClock(len(episodes), group_size)
    return _Collector(policy, pool, episodes, deterministic, on_tick, states, watch, clock, policy_may_fail).run()


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
        clock: GroupClock,
        policy_may_fail: bool,
    ) -> None:
        self.policy, self.pool, self.deterministic, self.on_tick = policy, pool, deterministic, on_tick
        self.states, self.watch, self.clock, self.policy_may_fail = states, watch, clock, policy_may_fail
        self.waiting = deque(enumerate(episodes))
        self.live: dict[int, _Live] = {}
        self.acting: set[int] = set()  # episodes whose turn the policy is writing
        self.busy: dict[Call, int] = {}  # episodes whose environment is at work
        self.done: dict[int, Trajectory] = {}

    def run(self) -> list[Trajectory]:
        try:
            while self.waiting or self.live:
                self._start()
                for call in self._answered():
                    self._receive(self.busy.pop(call), call)
                if self.acting:
                    with self.watch("generation"):
                        written = self._written()
                    for index, action in written:
                        self._act(index, action)
                self._close_late()
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
            except (Exception, SystemExit) as error:
                self._note(index, Trajectory(task, prompt, (), seed=plan.policy_seed, fault=fault_text(error)))
                continue
            finally:
                self.clock.begins(index, time.monotonic())
            live = self.live[index] = _Live(env, plan, task, prompt)
            if start is None:
                options = None if plan.task is None else {"task": plan.task}
                self.busy[self.pool.submit(live.env.reset, seed=plan.seed, options=options)] = index
            else:
                self.policy.resume(index, prompt, start.tokens, task=task, seed=plan.policy_seed)
                live.started = True
                self._ask(index)

    def _answered(self) -> Iterator[Call]:
        """Yield the replies to handle now, in the order in which they were asked for."""
        if not self.acting:  # nothing else to do
            with self.watch("environment"):
                self._wait(FIRST_COMPLETED)
        if self.deterministic:
            begin, ready = time.monotonic(), self.live.keys() - self.busy.values()
            with self.watch("lockstep"):
                self._wait(ALL_COMPLETED)
            for index in ready:
                self.clock.held_up(index, begin, time.monotonic())
        return iter([call for call in self.busy if call.done()])

    def _wait(self, until: str) -> None:
        """Wait for the first or for all of the environments at work, less those that are closed meanwhile."""
        pause = min(_LOOK_UP, (self.pool.deadline or math.inf) / 8)
        while self.busy:
            done, pending = wait(self.busy, timeout=pause, return_when=until)
            if not pending or (done and until == FIRST_COMPLETED):
                return
            if self._close_late(lockstep=until == ALL_COMPLETED) and until == FIRST_COMPLETED:
                return  # there are free slots now
            if self.on_tick is not None:
                self.on_tick(len(self.done))

    def _close_late(self, lockstep: bool = False) -> bool:
        """Close the stragglers, in lockstep those alone whose environment is at work; return whether there were any."""
        limit, now = self.pool.deadline, time.monotonic()
        if limit is None:
            return False
        calls = {index: call for call, index in self.busy.items()}
        late = {}
        for index in self.live:
            call = calls.get(index)
            if call is None and not lockstep and self.clock.waits(index, now) >= limit:
                late[index] = f"Not over {limit:g} s after half of its group."
            if call is None or call.began is None or call.done():
                continue  # it has not begun, or is over perhaps
            if now - call.began >= limit:
                late[index] = f"{call.name}() had not returned after {limit:g} s."
            elif self.clock.waits(index, now) - (call.began - call.asked) >= limit:
                late[index] = f"Not over {limit:g} s after half of its group."
        for index, why in late.items():
            if index in calls:
                del self.busy[calls[index]]
                self.pool.leave(calls[index], self.live[index].env)
            self._fail(index, Straggler(why), in_turn=index in calls, left=index in calls)
        return bool(late)

    def _written(self) -> list[tuple[int, Action]]:
        """Return the turns that are ready."""
        try:
            return self.policy.poll()
        except TrajgymError:
            raise
        except Exception as error:
            if not self.policy_may_fail:
                raise
            for index in sorted(self.acting):
                self._fail(index, error, in_turn=False)
            return []

    def _receive(self, index: int, call: Call) -> None:
        live = self.live[index]
        self.clock.held_up(index, call.asked, call.began or call.asked)
        # Of any kind: the user's Ctrl-C comes to the main thread, so what was raised in the call is the environment's.
        error = call.exception()
        if error is None:
            try:
                if live.action is None:
                    live.task, live.prompt = read_reset(live.plan.seed, call.result())
                else:
                    live.steps.append(read_step(live.action, call.result()))
            except Exception as unread:
                error = unread
        if isinstance(error, _CALLER_ERRORS):
            raise error
        if error is not None:
            self._fail(index, error)
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
            except (Exception, SystemExit) as error:
                self._fail(index, error, in_turn=False)
                return
            messages = Trajectory(live.task, live.prompt, tuple(live.steps)).messages
            state = State(env, live.task, messages, self.policy.context(index))
            self.states.setdefault(index, []).append(state)
        self.acting.add(index)

    def _act(self, index: int, action: Action) -> None:
        live = self.live[index]
        self.acting.discard(index)
        if isinstance(action, LostTurn):
            self._fail(index, action.error, in_turn=False)
            return
        live.action = action
        if not all(map(math.isfinite, action.logprobs)):
            live.action = dataclasses.replace(action, logprobs=())  # readers of JSON know no NaN
            self._fail(index, SamplerFault("The logits of this turn were not finite."))
            return
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

    def _fail(self, index: int, error: BaseException, *, in_turn: bool = True, left: bool = False) -> None:
        """End an episode as invalid.

        Args:
            index: Which.
            error: Why.
            in_turn: Whether its last turn has not been answered; what the policy wrote last is the first to look at.
            left: Whether its environment is still at work, and closed by others.
        """
        live = self.live[index]
        if in_turn and live.action is not None:
            live.steps.append(Step(live.action, Observation(), stop_reason=StopReason.FAULT))
        self._finish(index, fault=fault_text(error), left=left)

    def _finish(self, index: int, fault: str | None = None, left: bool = False) -> None:
        live = self.live.pop(index)
        self.acting.discard(index)
        rows = self.policy.finish(index) if live.started else ()
        if fault is not None:
            rows = tuple(row for row in rows if all(map(math.isfinite, row.logprobs)))
        trajectory = Trajectory(
            live.task, live.prompt, tuple(live.steps), rows, seed=live.plan.policy_seed, fault=fault
        )
        self._note(index, trajectory)
        if left:
            return
        if fault is None and live.plan.start is None:
            self.pool.give(live.env)
        else:
            # A clone nobody needs any more, or one in an unknown state: a fresh one takes its place.
            close_env(live.env)

    def _note(self, index: int, trajectory: Trajectory) -> None:
        self.done[index] = trajectory
        self.clock.ends(index, trajectory.valid, time.monotonic())

    def _abandon(self) -> None:
        """Close what is still live after an exception."""
        wait(self.busy, timeout=_GRACE)
        calls = {index: call for call, index in self.busy.items()}
        for index, live in self.live.items():
            if live.started:
                self.policy.finish(index)
            if index in calls:
                self.pool.leave(calls[index], live.env)
            else:
                close_env(live.env)
        self.live.clear()


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
