"""Faults of the machinery: they cost the episodes they hit, and never count against the policy."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from trajgym.envs.base import ToolEnv
from trajgym.errors import EnvironmentFault, RewardError, TrainingError
from trajgym.evaluation.records import read_trajectories
from trajgym.rollout import derive_seed
from trajgym.trainers import rollout_share
from trajgym.trainers.config import load_config
from trajgym.trainers.groups import usable_groups
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.trainers.vine import state_values
from trajgym.types import Action, Observation, Step, StopReason, Task, TokenStream, Trajectory

GROUPS, MEMBERS = 4, 8  # of the fixture identity_options


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Everything but the clock."""
    lines = (folder / "metrics.jsonl").read_text().split("\n")
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "efficiency/", "memory/"))}
        for line in lines
        if line
    ]


def weights(trainer: GRPOTrainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.learner.model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Break the environment in whole updates, counted from 1; each call replaces the outage before."""
    reset, step = ToolEnv.reset, ToolEnv.step

    def begin(updates: Iterable[int], where: str = "reset", groups: Iterable[int] = range(GROUPS)) -> None:
        hit = {derive_seed(0, "env", u - 1, g): f"the pool is gone in update {u}" for u in updates for g in groups}

        def fails_in(place: str, env: Any) -> None:
            if place == where and env.seed_now in hit:
                raise EnvironmentFault(hit[env.seed_now])

        def faulty_reset(self: Any, *, seed: int | None = None, options: Any = None) -> Any:
            self.seed_now = seed
            fails_in("reset", self)
            return reset(self, seed=seed, options=options)

        def faulty_step(self: Any, action: str) -> Any:
            fails_in("step", self)
            return step(self, action)

        monkeypatch.setattr(ToolEnv, "reset", faulty_reset)
        monkeypatch.setattr(ToolEnv, "step", faulty_step)

    return begin


def member(reward: float = 0.0, fault: str | None = None) -> Trajectory:
    row = TokenStream((1, 2), (0, 1), (-1, 0), (0.0, -1.0))
    step = Step(Action("x"), Observation(), reward, terminated=True, stop_reason=StopReason.ANSWERED)
    return Trajectory(Task("t", "", ""), (), (step,), (row,), fault=fault)


def test_the_others_of_a_group_are_compared_among_themselves(identity_options: dict[str, Any]) -> None:
    trainer = GRPOTrainer(load_config({**identity_options, "num_generations": 4, "baseline": "step"}))
    lost = member(9.0, fault="EnvironmentFault: gone")
    hit = usable_groups([member(1.0), lost, member(0.0), member(0.5)], 4)
    whole = usable_groups([member(1.0), member(0.0), member(0.5)], 3)
    assert hit == whole
    assert trainer.credit(hit) == [[[0.75], [-0.75], [0.0]]]
    assert trainer.learner.lay_out(hit, trainer.credit(hit)).normalizer == 3 * trainer.config.max_turn_tokens
    assert usable_groups([member(1.0), lost, lost, lost], 4) == []


def test_an_update_learns_from_the_groups_that_are_left(
    identity_options: dict[str, Any], outage: Callable[..., None]
) -> None:
    outage([1], groups=[0, 2])
    trainer = GRPOTrainer(load_config(identity_options))
    before = weights(trainer)
    hit, clean = metrics(trainer.run())
    assert (hit["groups"], hit["fault_share"], hit["faults/EnvironmentFault"]) == (2.0, 0.5, 2.0 * MEMBERS)
    assert hit["grad_norm"] > 0
    assert not same(before, weights(trainer))
    assert (clean["groups"], clean["fault_share"]) == (4.0, 0.0)
    assert "faults/EnvironmentFault" not in clean


def test_an_update_learns_from_the_members_that_are_left(
    identity_options: dict[str, Any], outage: Callable[..., None]
) -> None:
    outage([1], "step")  # a turn that its budget has cut never meets the fault
    trainer = GRPOTrainer(load_config({**identity_options, "log_trajectories": GROUPS * MEMBERS}))
    folder = trainer.run()
    played = read_trajectories(folder / "trajectories" / "update-000001.jsonl")
    lost = [t for t in played if not t.valid]
    assert all(t.stop_reason is StopReason.TURN_TOKENS for t in played if t.valid)
    assert all([s.stop_reason for s in t.steps] == [StopReason.FAULT] and t.rows for t in lost)
    line = metrics(folder)[0]
    assert 0 < line["faults/EnvironmentFault"] == len(lost) < GROUPS * MEMBERS
    assert line["groups"] == len(usable_groups(played, MEMBERS)) > 0


def test_a_short_outage_costs_its_own_updates(
    identity_options: dict[str, Any], outage: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    outage([2, 3, 5])  # the last update too
    trainer = GRPOTrainer(load_config({**identity_options, "updates": 5, "save_every": 1, "keep_checkpoints": 5}))
    folder = trainer.run()
    lines = metrics(folder)
    assert [m["update"] for m in lines] == [1, 2, 3, 4, 5]
    assert [m["groups"] for m in lines] == [4.0, 0.0, 0.0, 4.0, 0.0]
    assert [m["epoch"] for m in lines] == [1.0, 2.0, 3.0, 4.0, 5.0]
    for line in (lines[1], lines[2], lines[4]):  # nothing is claimed of the policy
        assert set(line) == {"update", "epoch", "groups", "fault_share", "faults/EnvironmentFault"}
        assert (line["fault_share"], line["faults/EnvironmentFault"]) == (1.0, GROUPS * MEMBERS)

    lost = read_trajectories(folder / "trajectories" / "update-000002.jsonl")
    assert [t.task.id for t in lost] == [str(e.task) for e in trainer.schedule.episodes(1)[:4]]
    assert {t.fault for t in lost} == {"EnvironmentFault: the pool is gone in update 2"}
    assert len(read_trajectories(folder / "trajectories" / "all.parquet")) == 5 * 4

    saved = [torch.load(p / "trainer.pt", weights_only=True) for p in trainer.folder.complete()]
    assert [len(state["fruitless"]) for state in saved] == [0, 1, 2, 0, 1]
    out = capsys.readouterr().out
    assert [f"! Skipped, {n} in a row" in out for n in (1, 2, 3)] == [True, True, False]
    assert "32 of 32 episodes failed, the first with EnvironmentFault: the pool is gone in update 3." in out


def test_a_skipped_update_leaves_weights_and_optimiser_alone(
    identity_options: dict[str, Any], outage: Callable[..., None]
) -> None:
    outage([2])
    options = {**identity_options, "kl_coef": 0.05, "save_every": 1}  # the KL's gradient is there without rewards
    trainer = GRPOTrainer(load_config(options))
    trainer.run()
    one, two = (torch.load(p / "trainer.pt", weights_only=True)["optimizer"] for p in trainer.folder.complete())
    assert str(one) == str(two)
    assert same(weights(GRPOTrainer(load_config({**options, "resume": True}))), weights(trainer))
    alone = GRPOTrainer(load_config({**options, "name": "alone", "updates": 1}))
    alone.run()
    assert same(weights(alone), weights(trainer))


def test_a_lasting_outage_ends_the_run_and_a_repaired_one_goes_on(
    identity_options: dict[str, Any], outage: Callable[..., None]
) -> None:
    options = {**identity_options, "updates": 6, "fault_limit": 2, "save_every": 100}
    outage([3, 4, 5, 6])
    broken = GRPOTrainer(load_config({**options, "name": "broken"}))
    with pytest.raises(TrainingError, match=r"2 updates in a row.*32 of 32.*the pool is gone in update 3\..*--resume"):
        broken.run()
    assert broken.update == 3
    assert [p.name for p in broken.folder.complete()] == ["update-000003"]
    outage([3])  # as if it had been repaired in time
    resumed = GRPOTrainer(load_config({**options, "name": "broken", "resume": True}))
    straight = GRPOTrainer(load_config({**options, "name": "straight"}))
    assert metrics(resumed.run()) == metrics(straight.run())
    assert [m["groups"] for m in metrics(resumed.folder.path)] == [4.0, 4.0, 0.0, 4.0, 4.0, 4.0]
    assert same(weights(resumed), weights(straight))


def test_a_resumed_run_gives_up_where_an_uninterrupted_one_does(
    identity_options: dict[str, Any], outage: Callable[..., None]
) -> None:
    outage(range(2, 10))
    options = {**identity_options, "fault_limit": 3}
    train(load_config({**options, "updates": 2, "name": "cut"}))  # one skipped update so far
    cut = GRPOTrainer(load_config({**options, "updates": 9, "name": "cut", "resume": True}))
    straight = GRPOTrainer(load_config({**options, "updates": 9, "name": "straight"}))
    errors = []
    for trainer in (cut, straight):
        with pytest.raises(TrainingError, match="the pool is gone in update 2") as error:
            trainer.run()
        errors.append(str(error.value))
        assert trainer.update == 3
    assert errors[0] == errors[1]
    assert metrics(cut.folder.path) == metrics(straight.folder.path)


def test_an_error_in_the_middle_of_an_outage_forgets_nothing(
    identity_options: dict[str, Any], outage: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    outage([2, 3])
    options = {**identity_options, "updates": 5, "save_every": 100}
    trainer = GRPOTrainer(load_config({**options, "name": "cut"}))
    real = trainer.credit

    def fails(groups: Any, values: Any = None) -> Any:
        if trainer.update == 3:
            raise RewardError("the judge is gone")
        return real(groups, values)

    monkeypatch.setattr(trainer, "credit", fails)
    with pytest.raises(RewardError):
        trainer.run()
    resumed = GRPOTrainer(load_config({**options, "name": "cut", "resume": True}))
    assert len(resumed.fruitless) == 2
    straight = GRPOTrainer(load_config({**options, "name": "straight"}))
    assert metrics(resumed.run()) == metrics(straight.run())
    assert same(weights(resumed), weights(straight))


@pytest.mark.parametrize(("updates", "limit", "tried"), [(2, 3, 2), (1, 3, 1), (9, 1, 1), (9, 4, 4)])
def test_a_run_of_nothing_but_faults_never_ends_well(
    identity_options: dict[str, Any], outage: Callable[..., None], updates: int, limit: int, tried: int
) -> None:
    outage(range(1, 10), "reset")
    trainer = GRPOTrainer(load_config({**identity_options, "updates": updates, "fault_limit": limit}))
    with pytest.raises(TrainingError, match="the pool is gone in update 1"):
        trainer.run()
    assert trainer.update == tried - 1


def test_an_environment_that_cannot_be_made_again_is_an_outage_too(
    identity_options: dict[str, Any], outage: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every environment breaks in the first update; in the second there are no new ones."""
    outage([1])
    trainer = GRPOTrainer(load_config({**identity_options, "updates": 3}))
    real = trainer.pool.take

    def take() -> Any:
        if trainer.update == 1:
            raise OSError("no more processes")
        return real()

    monkeypatch.setattr(trainer.pool, "take", take)
    lines = metrics(trainer.run())
    assert [m["groups"] for m in lines] == [0.0, 0.0, 4.0]
    assert lines[1]["faults/OSError"] == GROUPS * MEMBERS


def test_budgets_that_cut_every_trajectory_are_told_from_faults(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "truncated": "drop", "max_turn_tokens": 1, "updates": 9, "fault_limit": 2}
    trainer = GRPOTrainer(load_config(options))
    with torch.no_grad():
        trainer.learner.model.get_output_embeddings().weight[2].zero_()  # hardly ever the end of a turn
    with pytest.raises(TrainingError, match=r"2 updates in a row.*set truncated to keep"):
        trainer.run()


@pytest.mark.parametrize(("alarm", "warnings"), [(0.05, 1), (0.6, 0)])
def test_the_share_that_is_warned_of(
    identity_options: dict[str, Any],
    outage: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    alarm: float,
    warnings: int,
) -> None:
    outage([2, 3], groups=[1, 3])
    options = {**identity_options, "updates": 4, "fault_alarm": alarm, "log_trajectories": 1}
    trainer = GRPOTrainer(load_config(options))
    folder = trainer.run()
    out = capsys.readouterr().out
    said = "  ! 16 of 32 episodes failed, the first with EnvironmentFault: the pool is gone in update 2."
    assert out.count("episodes failed") == out.count(said) == warnings
    assert out.count("faults 50.0%") == 2
    # What was warned of can be looked up, although it was not the first episode.
    (shown,) = read_trajectories(folder / "trajectories" / "update-000002.jsonl")
    assert shown.fault == "EnvironmentFault: the pool is gone in update 2"
    assert shown.task.id == str(trainer.schedule.episodes(1)[MEMBERS].task)


def test_a_lost_rollout_that_values_a_state_is_counted(
    identity_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two is lost: the other says what the state is worth. Both are: its trajectories cannot be credited."""
    clone, conclude = ToolEnv.clone, ToolEnv._conclude
    lost = {0: 1, 1: 10**9}  # at most, by update
    trainer = GRPOTrainer(
        load_config({**identity_options, "estimator": "vine", "vine_rollouts": 2, "groups_per_update": 2})
    )

    def marked(self: Any) -> Any:
        twin = clone(self)
        vars(twin)["is_clone"] = True
        return twin

    def breaks(self: Any, action: str, step: Step) -> Any:
        if getattr(self, "is_clone", False) and lost[trainer.update]:
            lost[trainer.update] -= 1
            raise EnvironmentFault("gone")
        return conclude(self, action, step)

    monkeypatch.setattr(ToolEnv, "clone", marked)
    monkeypatch.setattr(ToolEnv, "_conclude", breaks)
    first, second = metrics(trainer.run())
    assert (first["faults/ValueRollout"], first["fault_share"], first["groups"]) == (1.0, 0.0, 2.0)
    tasks = {str(episode.task) for episode in trainer.schedule.episodes(1)}
    assert (second["faults/ValueRollout"], second["faults/StateUnknown"]) == (2.0 * len(tasks), 16.0)
    assert (second["fault_share"], second["groups"]) == (1.0, 0.0)


def test_an_engine_that_breaks_down_while_states_are_valued_costs_those_rollouts_alone(
    identity_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = GRPOTrainer(
        load_config({**identity_options, "estimator": "vine", "vine_rollouts": 9, "groups_per_update": 2, "slots": 8})
    )
    sampler: Any = trainer.policy.sampler
    step, broken = sampler.step, [0]

    def values(*args: Any, **kwargs: Any) -> Any:
        def breaks() -> Any:
            monkeypatch.setattr(sampler, "step", step)
            broken[0] += len(sampler._asked)
            raise RuntimeError("CUDA error: out of memory")

        if trainer.update == 0:
            monkeypatch.setattr(sampler, "step", breaks)
        return state_values(*args, **kwargs)

    monkeypatch.setattr(rollout_share, "state_values", values)
    first, second = metrics(trainer.run())
    assert 0 < broken[0] == first["faults/ValueRollout"] <= 8
    assert (first["fault_share"], first["groups"], second["fault_share"]) == (0.0, 2.0, 0.0)
    assert "faults/ValueRollout" not in second


HANGS = """
import json, os, sys, threading
sys.path.insert(0, {tests!r})
import conftest
from trajgym.envs.base import ToolEnv
from trajgym.rollout import derive_seed
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train
hit, real = derive_seed(0, "env", 0, 1), ToolEnv.reset
once = threading.Lock()
def reset(self, *, seed=None, options=None):
    if seed == hit and once.acquire(blocking=False):
        threading.Event().wait()  # for ever
    return real(self, seed=seed, options=options)
ToolEnv.reset = reset
train(load_config(json.loads({options!r})))
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_processes_end_well_although_an_environment_hangs_for_ever(
    identity_options: dict[str, Any], count: int
) -> None:
    options = {**identity_options, "name": f"of-{count}", "group_deadline": 3.0, "updates": 3}
    code = HANGS.format(tests=str(Path(__file__).parent), options=json.dumps(options))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launch = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = []
    for rank in range(count):
        place = {**launch, "RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else {}
        environment = {**os.environ, **place, "ACCELERATE_USE_CPU": "true"}
        command = [sys.executable, "-c", code]
        out = subprocess.PIPE
        processes.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True, env=environment))
    try:
        said = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * count, said
    hit, *clean = metrics(Path(options["output_dir"]) / f"of-{count}")
    assert (hit["faults/Straggler"], hit["groups"]) == (1.0, 4.0)
    assert [line["fault_share"] for line in clean] == [0.0, 0.0]
