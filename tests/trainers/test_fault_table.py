"""The table of faults: each one injected into a real run, and held against everything that the log says.

Whatever breaks: nothing is lost silently, every drop is counted, and the weights after each update are those that the
logged valid episodes alone would have made. ``docs/faults.md`` holds the same rows, for people.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from trajgym.envs.base import ToolEnv
from trajgym.envs.sandbox import IsolationUnavailable, Session
from trajgym.envs.tools import tool
from trajgym.envs.tools.python import python_tool, shared_pool
from trajgym.errors import EnvironmentFault, RewardError, TrainingError
from trajgym.evaluation.records import read_trajectories
from trajgym.protocols import Parsed, Protocol
from trajgym.rewards import Judge, RewardModel
from trajgym.rollout import derive_seed
from trajgym.trainers.config import load_config
from trajgym.trainers.groups import usable_groups
from trajgym.trainers.grpo import GRPOTrainer
from trajgym.trainers.interrupt import Interrupt
from trajgym.types import Step, Task, ToolCall, ToolSpec, Trajectory

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
GROUPS, MEMBERS = 3, 4
NAN = float("nan")
OPTIONS = {
    "env": "TestBench-v0", "groups_per_update": GROUPS, "num_generations": MEMBERS, "updates": 3, "save_every": 1,
    "log_trajectories": 100, "env_threads": 1, "max_episode_tokens": 60, "fault_limit": 2,
}  # fmt: skip


class Bench:
    """A run and what is broken in it; counts what was really broken, to hold the log against."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.trainer: Any = None
        self.tools: list[Any] = []
        self.reward: dict[str, Any] = {"length": (self.length, 1.0)}
        self.paid: Callable[[], Any] | None = None  # in update 2
        self.hook: Callable[..., None] | None = None  # see begins()
        self.broken: Counter[tuple[int, str]] = Counter()  # (update, class) → how often
        self.passes: Counter[tuple[int, bool]] = Counter()  # (update, learning) → passes through the policy
        self.asked: set[Any] = set()  # what was asked of a model or an interpreter in vain
        self.over = threading.Event()
        self._plans: list[tuple[str, dict[int, int], int, Exception | None]] = []
        self._met: Counter[tuple[int, int | None]] = Counter()
        self._lock = threading.Lock()

    @property
    def update(self) -> int:
        """The update under way, counted from 1; 0 before the first one."""
        return 0 if self.trainer is None else self.trainer.update + 1

    def length(self, step: Step, task: Task, history: Sequence[Step]) -> Any:
        if self.update != 2 or self.paid is None:
            return len(step.action.text) % 3 / 2
        return self.paid()

    def pay(self, term: Callable[[], Any]) -> None:
        self.paid = term

    def breaks(
        self, place: str, error: Exception | None, members: int = 1, updates: Iterable[int] = (2,), groups: int = 1
    ) -> None:
        """Raise in the first so many members of the first groups that come to a place; ``None`` hangs there."""
        seeds = {derive_seed(0, "env", u - 1, g): u for u in updates for g in range(groups)}
        self._plans.append((place, seeds, members, error))

    def meets(self, place: str, seed: int | None) -> None:
        for number, (where, seeds, members, error) in enumerate(self._plans):
            if where != place or seed not in seeds:
                continue
            with self._lock:
                self._met[number, seed] += 1
                hit = self._met[number, seed] <= members
                if hit and place != "close":  # which costs no episode
                    self.broken[seeds[seed], type(error).__name__ if error else "Straggler"] += 1
            if hit and error is not None:
                raise error
            if hit:
                self.over.wait(60)

    def begins(self, trainer: GRPOTrainer) -> None:
        """Take the run; the hook sees (update, learning?, number of the pass, logits) of the policy's passes."""
        self.trainer = trainer

        def after(module: Any, args: Any, output: Any) -> None:
            key = (self.update, torch.is_grad_enabled())
            self.passes[key] += 1
            if self.hook is not None:
                self.hook(*key, self.passes[key], logits=output.logits)

        trainer.learner.model.register_forward_hook(after)

    def follows(self, trainer: GRPOTrainer) -> None:
        """Let another trainer compute as one that is watched: whole passes, which round otherwise than others."""
        trainer.learner.model.register_forward_hook(lambda *_: None)


class Calls(Protocol):
    """A text without a 0 in it calls the only tool there is."""

    name = "test_calls"

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        (name,) = tools
        return Parsed("", () if "0" in text else (ToolCall(name, {"code": "1"} if name == "python" else {}),))

    def render(self, call: ToolCall) -> str:
        return "1"

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        return "1"


class BenchEnv(ToolEnv):
    """Say something; things break as the bench says."""

    bench: Bench

    def __init__(self, **kwargs: Any) -> None:
        self.bench.meets("make", derive_seed(0, "env", self.bench.update - 1, 0))
        tasks = [Task(f"digit-{d}", d, d) for d in "0123"]
        options: dict[str, Any] = {"reward": self.bench.reward, "system": "", "max_turns": 2, "tools": self.bench.tools}
        super().__init__(tasks, **{**options, "protocol": Calls(), **kwargs})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode = seed
        self.bench.meets("reset", seed)
        return super().reset(seed=seed, options=options)

    def _conclude(self, action: str, step: Step) -> Any:
        self.bench.meets("step", self.episode)
        return super()._conclude(action, step)

    def close(self) -> None:
        super().close()
        self.bench.meets("close", getattr(self, "episode", None))


gymnasium.register("TestBench-v0", entry_point=BenchEnv)
Check = Callable[[Bench, list[list[Trajectory]]], None]


@dataclass(frozen=True)
class Row:
    """One fault."""

    fault: str  # as the page names it
    arrange: Callable[[Bench], object]  # breaks something, before the trainer is made
    lost: dict[int, dict[str, int]] | None = field(default_factory=dict)  # by update and class; None: left to chance
    learned: tuple[int, ...] | None = (3, 3, 3)  # groups in each logged update; None: left to chance
    skipped: tuple[int, ...] = ()  # updates whose optimiser step is left out
    ends: tuple[type[Exception], str] | None = None  # the error that ends the run, and a part of its message
    said: str = ""  # printed or logged
    options: dict[str, Any] = field(default_factory=dict)  # of the run
    check: Check = lambda bench, played: None  # what else must be so, of the trajectories of each update


def answers(*kinds: str | None) -> Check:
    """The calls of the policy were answered with these kinds of error, ``None`` for success."""

    def check(bench: Bench, played: list[list[Trajectory]]) -> None:
        found = [r.error for update in played for t in update for s in t.steps for r in s.results]
        assert set(found) == set(kinds)

    return check


@tool(timeout=0.2)
def stalls() -> None:
    """Take too long."""
    threading.Event().wait(60)


@tool
def raises() -> None:
    """Break."""
    raise ValueError("bug")


NOTEBOOK = python_tool(packages=())


def killed(machinery: bool) -> Callable[[Bench], None]:
    """Kill one interpreter just before its call in update 2, or what all of them are forked from."""

    def arrange(bench: Bench) -> None:
        try:
            shared_pool(**NOTEBOOK.target.options)  # type: ignore[attr-defined]
        except IsolationUnavailable as error:
            pytest.skip(str(error))
        bench.tools = [NOTEBOOK]
        real = Session.call

        def call(self: Session, *args: Any, **kwargs: Any) -> Any:
            if bench.update == 2 and not bench.asked:
                bench.asked.add(self)
                if machinery:
                    os.killpg(shared_pool(**NOTEBOOK.target.options)._link.pid, signal.SIGKILL)  # type: ignore[attr-defined]
                    select.select([self.pidfd], [], [], 60)  # its own end follows
                else:
                    signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            return real(self, *args, **kwargs)

        bench.patch.setattr(Session, "call", call)

    return arrange


def asks(make: Callable[..., Any], updates: Iterable[int], calls: int = 10**9) -> Callable[[Bench], None]:
    """Let a model pay besides, which is away at its first calls of some updates."""

    def arrange(bench: Bench) -> None:
        made: Counter[int] = Counter()

        def ask(requests: list[Any]) -> list[Any]:
            made[bench.update] += 1
            if bench.update in updates and made[bench.update] <= calls:
                bench.asked.update(requests)
                raise ConnectionError("no route")
            return [0.5] * len(requests)

        bench.reward["model"] = (make(ask, cooldown=0.0), 0.1)

    return arrange


def who_was_asked_for(bench: Bench, played: list[list[Trajectory]]) -> None:
    """Those whom the model was to rate are lost in update 2, and nobody else."""
    for update, trajectories in enumerate(played, start=1):
        for t in trajectories:
            unrated = t.steps[-1].action.finish == "stop" and (t.task.question, t.steps[-1].action.text) in bench.asked
            assert t.valid is not (update == 2 and unrated)
    assert bench.asked


def spoils(updates: Sequence[int], *, gradient: bool = False) -> Callable[[Bench], None]:
    """Make the logits of learning, or their gradient, something else than numbers."""

    def hook(update: int, learning: bool, number: int, *, logits: torch.Tensor) -> None:
        if learning and update in updates and gradient:
            logits.register_hook(lambda known: known + float("inf"))
        elif learning and update in updates:
            logits.data[..., 0] = NAN

    return lambda bench: setattr(bench, "hook", hook)


def sampler(what: str) -> Callable[[Bench], None]:
    """Break the second pass of the sampler in update 2: a logit, all weights, or the engine itself."""

    def arrange(bench: Bench) -> None:
        def hook(*place: int, logits: torch.Tensor) -> None:
            if place == (2, False, 2) and what == "logit":
                bench.broken[2, "SamplerFault"] += 1
                logits[0, -1, 3] = NAN
            elif place == (2, False, 2) and what == "engine":
                bench.broken[2, "RuntimeError"] += len(logits)  # as many turns were being written
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            elif place == (2, False, 2):
                logits.fill_(NAN)
                next(iter(bench.trainer.learner.model.parameters())).data.fill_(NAN)

        bench.hook = hook

    return arrange


GONE, BUG = EnvironmentFault("the server is gone"), ZeroDivisionError("bug")
WAITS = {"group_deadline": 1.0, "env_threads": 8}
SLOW = {**WAITS, "deterministic": False}
ALL = {"members": MEMBERS, "groups": GROUPS}
FAULT = "EnvironmentFault"

TABLE = (
    # Nothing is lost: the policy is told, or nobody notices
    Row("A tool takes too long", lambda b: b.tools.append(stalls), learned=(1,), check=answers("timeout"),
        options={"updates": 1, "env_threads": 4, "groups_per_update": 1}),
    Row("A tool raises", lambda b: b.tools.append(raises), check=answers("tool_error")),
    Row("An interpreter is killed", killed(machinery=False), check=answers(None, "worker_died")),
    Row("A judge is away for a moment", asks(RewardModel, [1, 2, 3], calls=1)),
    # Episodes are lost, the others of their group go on
    Row("All interpreters are killed", killed(machinery=True), None, None, said="The Python interpreter is gone"),
    Row("An environment raises in reset", lambda b: b.breaks("reset", BUG, 2), {2: {"ZeroDivisionError": 2}}),
    Row("An environment cannot be made", lambda b: (b.breaks("step", GONE, 2, [1]), b.breaks("make", OSError("full"))),
        {1: {FAULT: 2}, 2: {"OSError": 1}}),
    Row("An environment raises in close", lambda b: (b.breaks("step", GONE, 2), b.breaks("close", BUG, 2)),
        {2: {FAULT: 2}}, said="failed to close"),
    Row("An environment raises in step", lambda b: b.breaks("step", GONE), {2: {FAULT: 1}}, said="the server is gone"),
    Row("An environment hangs in reset", lambda b: b.breaks("reset", None), {2: {"Straggler": 1}}, options=SLOW),
    Row("An environment hangs in step", lambda b: b.breaks("step", None, 2), {2: {"Straggler": 2}}, options=WAITS),
    Row("A judge is away for an update", asks(RewardModel, [2]), None, None, check=who_was_asked_for),
    Row("The sampler gives a logit that is no number", sampler("logit"), {2: {"SamplerFault": 1}}),
    Row("The sampler raises", sampler("engine"), None, None, said="CUDA error"),
    # A group or an update is lost
    Row("One member of a group is left", lambda b: b.breaks("step", GONE, 3), {2: {FAULT: 3}}, (3, 2, 3)),
    Row("No member of a group is left", lambda b: b.breaks("step", GONE, 4), {2: {FAULT: 4}}, (3, 2, 3)),
    Row("No group is left", lambda b: b.breaks("step", GONE, **ALL), {2: {FAULT: 12}}, (3, 0, 3), said="! Skipped, 1"),
    Row("The loss is not a number", spoils([2]), skipped=(2,), said="probabilities that are not finite"),
    Row("The gradient is not a number", spoils([2], gradient=True), skipped=(2,), said="gradient's norm is nan"),
    # The run ends
    Row("No group is left, again and again", lambda b: b.breaks("step", GONE, **ALL, updates=[2, 3]),
        {2: {FAULT: 12}}, (3, 0), ends=(TrainingError, "2 updates in a row.*the server is gone.*--resume")),
    Row("A judge is away for good", asks(Judge, [1, 2, 3]), None, (0,),
        ends=(TrainingError, "2 updates in a row.*The judge is out of order.*no route"),
        options={"truncated": "drop"}),
    Row("A reward term raises", lambda b: b.pay(lambda: 1 / 0), {}, (3,), ends=(RewardError, "raised ZeroDivision")),
    Row("A reward term gives NaN", lambda b: b.pay(lambda: NAN), {}, (3,), ends=(RewardError, "returned nan")),
    Row("A reward term gives no number", lambda b: b.pay(lambda: "ok"), {}, (3,), ends=(RewardError, "returned 'ok'")),
    Row("The loss is not a number, three times", spoils([2, 3, 4]), skipped=(2, 3),
        ends=(TrainingError, "3 steps in a row.*not finite.*Lower learning_rate"), options={"updates": 9}),
    Row("The weights are no numbers", sampler("weights"), learned=(3,), ends=(TrainingError, "have diverged")),
)  # fmt: skip


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(monkeypatch)
    monkeypatch.setattr(BenchEnv, "bench", made, raising=False)
    yield made
    made.over.set()


def weights(trainer: Any) -> list[torch.Tensor]:
    return [value.clone() for value in trainer.learner.model.state_dict().values()]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.fault)
def test_what_a_fault_does(
    row: Row, bench: Bench, identity_options: dict[str, Any], capfd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    row.arrange(bench)
    options = {**identity_options, **OPTIONS, **row.options}
    trainer = GRPOTrainer(load_config({**options, "name": "hit"}))
    many, drop = trainer.config.groups_per_update * MEMBERS, trainer.config.truncated == "drop"
    after, save = list[list[torch.Tensor]](), trainer.save
    bench.patch.setattr(trainer, "save", lambda: (save(), after.append(weights(trainer))))
    bench.begins(trainer)

    with pytest.raises(row.ends[0], match=row.ends[1]) if row.ends else nullcontext():
        trainer.run()
    bench.over.set()

    folder = trainer.folder.path
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    played = [read_trajectories(path) for path in sorted((folder / "trajectories").glob("update-*.jsonl"))]
    assert [line["update"] for line in lines] == list(range(1, len(played) + 1)) == list(range(1, len(after) + 1))
    said = capfd.readouterr().out + caplog.text
    assert row.said in said
    alarmed = False
    for update, (line, trajectories) in enumerate(zip(lines, played, strict=True), start=1):
        assert len(trajectories) == many
        kinds = Counter((t.fault or "").partition(":")[0] for t in trajectories if not t.valid)
        assert {k.removeprefix("faults/"): n for k, n in line.items() if k.startswith("faults/")} == kinds
        broken = {kind: n for (when, kind), n in bench.broken.items() if when == update}
        assert kinds == (broken or kinds) == (kinds if row.lost is None else row.lost.get(update, {}))
        assert line["fault_share"] == pytest.approx(kinds.total() / many)
        assert line["groups"] == len(usable_groups(trajectories, MEMBERS, drop_truncated=drop))
        assert line.get("skipped_steps", 0.0) == (update in row.skipped)
        if line["fault_share"] > trainer.config.fault_alarm and not alarmed:
            alarmed = True  # later ones are told when they are twice as bad
            assert f"{kinds.total()} of {many} episodes failed, the first with {next(iter(kinds))}" in said
    assert row.learned is None or tuple(line["groups"] for line in lines) == row.learned
    row.check(bench, played)

    twin = GRPOTrainer(load_config({**options, "name": "twin"}))
    bench.follows(twin)
    for update, trajectories in enumerate(played, start=1):
        groups = usable_groups(trajectories, MEMBERS, drop_truncated=drop)
        if groups and update not in row.skipped:
            twin.learn(groups, twin.credit(groups), Interrupt())
        twin.update = update
        assert all(map(torch.equal, weights(twin), after[update - 1]))


def test_the_page_has_the_same_rows() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    assert [row[0] for row in cells] == [row.fault for row in TABLE]
    for row, (_, *_, update, run, log, remedy) in zip(TABLE, cells, strict=True):
        for kind in {kind for kinds in (row.lost or {}).values() for kind in kinds} - {FAULT}:
            assert kind in log
        assert (row.ends is not None) == run.startswith("ends")
        assert row.ends is None or row.ends[0].__name__ in log
        assert not row.skipped or "left out" in update
        assert remedy
