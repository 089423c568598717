"""Whole runs on rollout workers that live in this process: no Ray, the same dealing, the same worker."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest
import torch

from trajgym.errors import ConfigError, RewardError, TrainingError
from trajgym.trainers import ray_player
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.trainers.interrupt import Interrupted
from trajgym.trainers.player import Player
from trajgym.trainers.resume_options import Changes, changes
from trajgym.trainers.stopwatch import Stopwatch
from trajgym.trainers.worker import RolloutWorker
from trajgym.trainers.worker_answer import Answer
from trajgym.trainers.workers import WorkerGone, WorkersLost


class LocalCrew:
    """Workers in this process, each with a model of its own; what is sent to them is pickled on its way.

    A call is made when somebody waits for it. Which of several is answered first, and which worker dies in which call,
    a test may choose.
    """

    made: ClassVar[list[LocalCrew]] = []
    dies: ClassVar[Callable[[int], bool]] = staticmethod(lambda number: False)  # in the n-th piece, after playing it
    choose: ClassVar[Callable[[Sequence[Any]], Any]] = staticmethod(lambda tickets: tickets[0])
    on_play: ClassVar[Callable[[int], None]] = staticmethod(lambda number: None)

    def __init__(self, plan: bytes, *, count: int, cpus: int, gpus: float, address: str | None) -> None:
        self.plan, self.asked = plan, (count, cpus, gpus, address)
        self.calls: dict[int, list[tuple[Any, str, tuple[bytes, ...]]]] = {}  # by worker, those that were not made yet
        self.workers: dict[int, RolloutWorker | None] = {}
        self.answers: dict[Any, Answer[Any] | None] = {}
        self.played: list[int] = []  # who played each piece
        self.sent: dict[str, int] = {}  # bytes of each method's arguments
        self.number = count_from_zero()
        self.closed = False
        LocalCrew.made.append(self)

    def hire(self) -> int:
        worker = len(self.workers)
        self.workers[worker] = RolloutWorker(pickle.loads(pickle.dumps(self.plan)))
        self.calls[worker] = []
        return worker

    def publish(self, packed: Any) -> Any:
        return dict(packed)

    def send(self, worker: int, method: str, *args: Any) -> Any:
        ticket = (worker, next(self.number), method)
        sent = tuple(map(pickle.dumps, args))
        self.sent[method] = sum(map(len, sent))
        self.calls[worker].append((ticket, method, sent))
        return ticket

    def first(self, tickets: Sequence[Any], seconds: float) -> Any | None:
        ticket = LocalCrew.choose(tickets)
        worker = ticket[0]
        while ticket not in self.answers:
            made, method, args = self.calls[worker].pop(0)
            self.answers[made] = self._call(worker, method, args)
        return ticket

    def _call(self, worker: int, method: str, args: tuple[bytes, ...]) -> Answer[Any] | None:
        alive = self.workers[worker]
        if alive is None:
            return None
        answer: Answer[Any] = getattr(alive, method)(*map(pickle.loads, args))
        if method == "play":
            self.played.append(worker)
            LocalCrew.on_play(len(self.played))
            if LocalCrew.dies(len(self.played)):
                alive.close()
                self.workers[worker] = None
                return None
        return pickle.loads(pickle.dumps(answer))  # type: ignore[no-any-return]

    def answer(self, ticket: Any) -> Answer[Any]:
        answer = self.answers[ticket]
        if answer is None:
            raise WorkerGone("killed by the test")
        return answer

    def dismiss(self, worker: int) -> None:
        alive, self.workers[worker] = self.workers[worker], None
        if alive is not None:
            alive.close()

    def close(self) -> None:
        for worker in self.workers:
            self.dismiss(worker)
        self.closed = True


def count_from_zero() -> Iterator[int]:
    return count()


@pytest.fixture(autouse=True)
def _local(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    monkeypatch.setattr(ray_player, "RayCrew", LocalCrew)
    monkeypatch.setattr(ray_player, "require_ray", lambda: None)
    for name in ("dies", "choose", "on_play"):
        monkeypatch.setattr(LocalCrew, name, staticmethod(vars(LocalCrew)[name].__func__))
    LocalCrew.made.clear()
    yield
    torch.set_num_threads(threads)


def use(monkeypatch: pytest.MonkeyPatch, name: str, what: Callable[[Any], Any]) -> None:
    monkeypatch.setattr(LocalCrew, name, staticmethod(what))


SHAPES: dict[str, dict[str, Any]] = {
    "grpo": {"kl_coef": 0.02, "minibatches": 2},
    "bfloat16": {"dtype": "bfloat16"},
    "lora": {"use_lora": True, "lora_targets": ["q_proj", "v_proj"], "kl_coef": 0.02},
    "ppo": {"algorithm": "ppo", "kl_form": "k1_in_reward", "kl_coef": 0.02},
    "vine": {"estimator": "vine", "vine_rollouts": 2, "env": "TestTwice-v0", "max_episode_tokens": 48},
    "ahead": {"rollout_ahead": 1, "sampler_correction": True},
    "dynamic sampling": {"dynamic_sampling": 2, "learning_rate": 1e-2},
    "reward schedule": {"env": "TestTwice-v0", "max_episode_tokens": 48,
                        "reward_schedule": {"first": [(0.0, 2.0), (1.0, 0.0)]}},
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_who_plays_what_does_not_matter(
    shape: str,
    identity_options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    check_same: Callable[[Path, Path], None],
) -> None:
    options = {**identity_options, **SHAPES[shape], "groups_per_update": 3, "log_trajectories": 99}
    one = train(load_config({**options, "rollout_workers": 1, "name": "one"}))
    workers = 3 if shape == "grpo" else 2
    use(monkeypatch, "choose", lambda tickets: tickets[-1])
    check_same(one, train(load_config({**options, "rollout_workers": workers, "name": "some"})))
    assert all(crew.closed for crew in LocalCrew.made)
    assert [len(set(crew.played)) for crew in LocalCrew.made] == [1, workers]  # the work was dealt


def test_one_piece_is_what_this_process_would_play(
    identity_options: dict[str, Any], check_same: Callable[[Path, Path], None]
) -> None:
    torch.set_num_threads(1)
    options = {**identity_options, "kl_coef": 0.02, "log_trajectories": 99}
    here = train(load_config({**options, "name": "here"}))
    whole = {"rollout_workers": 2, "worker_groups": options["groups_per_update"]}
    check_same(here, train(load_config({**options, **whole, "name": "one piece"})))


def test_smaller_pieces_differ_by_rounding_alone(
    identity_options: dict[str, Any], left_behind: Callable[[Path], Any]
) -> None:
    torch.set_num_threads(1)
    options = {**identity_options, "updates": 1, "log_trajectories": 99}
    here = left_behind(train(load_config({**options, "name": "here"})))
    there = left_behind(train(load_config({**options, "rollout_workers": 2, "name": "there"})))
    for mine, other in zip(here[2][0], there[2][0], strict=True):
        assert [step.action.text for step in mine.steps] == [step.action.text for step in other.steps]
        for row, twin in zip(mine.rows, other.rows, strict=True):
            assert row.ids == twin.ids
            assert row.logprobs == pytest.approx(twin.logprobs, abs=1e-5)
    for k, v in here[
        1
    ].items():  # Adam's first steps have the rate's size whatever the gradient, where that is rounding
        torch.testing.assert_close(there[1][k], v, atol=2 * options["learning_rate"], rtol=0)


def test_a_death_changes_nothing(
    identity_options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    check_same: Callable[[Path, Path], None],
) -> None:
    options = {**identity_options, "rollout_workers": 2, "log_trajectories": 99, "updates": 3}
    quiet = train(load_config({**options, "name": "quiet"}))
    use(monkeypatch, "dies", lambda number: number in (2, 7))
    deadly = train(load_config({**options, "name": "deadly"}))
    check_same(quiet, deadly)
    lines = [json.loads(line) for line in (deadly / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("faults/RolloutWorker") for line in lines] == [1.0, 1.0, None]
    assert len(LocalCrew.made[-1].workers) == 4
    told = capsys.readouterr().out
    assert told.count("killed by the test. A new one takes its place") == 2


def test_workers_that_die_again_and_again_end_the_run(
    identity_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, check_same: Callable[[Path, Path], None]
) -> None:
    use(monkeypatch, "dies", lambda number: number > 5)  # the first update has four pieces
    options = {**identity_options, "rollout_workers": 2, "fault_limit": 3, "name": "lost"}
    with pytest.raises(WorkersLost, match=r"killed by the test\. 3 in a row died.*fault_limit ends the run"):
        train(load_config(options))
    assert LocalCrew.made[-1].closed
    use(monkeypatch, "dies", lambda number: False)
    resumed = train(load_config({**options, "resume": True}))
    check_same(train(load_config({**options, "name": "quiet"})), resumed)


def test_stopped_and_resumed_equals_uninterrupted(
    identity_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, check_same: Callable[[Path, Path], None]
) -> None:
    options = {**identity_options, "rollout_workers": 2, "updates": 4, "save_every": 3, "advantage_scale": "ema_std"}
    whole = train(load_config({**options, "name": "whole"}))

    def interrupt(number: int) -> None:
        if number == 10:
            os.kill(os.getpid(), signal.SIGINT)

    use(monkeypatch, "on_play", interrupt)
    with pytest.raises(Interrupted, match="after 2 of 4 updates"):
        train(load_config({**options, "name": "cut"}))
    assert LocalCrew.made[-1].closed
    use(monkeypatch, "on_play", lambda number: None)
    # With another number of workers: nothing is noted, since nothing changes.
    check_same(whole, train(load_config({**options, "name": "cut", "resume": True, "rollout_workers": 3})))


class Faulty(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Fails on one of the four digits."""

    def reset(self, **kwargs: Any) -> Any:
        text, info = super().reset(**kwargs)
        if text == "2":
            raise OSError("no room")
        return text, info


def _faulty(**kwargs: Any) -> Any:
    return Faulty(gymnasium.make("TestIdentity-v0", **kwargs).unwrapped)


def test_faults_of_environments_are_those_of_episodes(
    identity_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gymnasium.register("TestFaulty-v0", entry_point=_faulty)
    try:
        options = {**identity_options, "env": "TestFaulty-v0", "updates": 3}
        folder = train(load_config({**options, "rollout_workers": 2}))
    finally:
        del gymnasium.registry["TestFaulty-v0"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(line.get("faults/OSError", 0.0) for line in lines) == 3 * 8  # one of four groups


def _wrong(step: Any, task: Any, history: Any) -> float:
    raise ValueError("a bug of somebody's")


def test_mistakes_come_back_as_what_they_are(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "rollout_workers": 2, "env_kwargs": {"reward": {"wrong": (_wrong, 1.0)}}}
    with pytest.raises(RewardError, match="a bug of somebody's"):
        train(load_config(options))
    assert LocalCrew.made[-1].closed


def test_the_adapters_alone_are_sent(identity_options: dict[str, Any]) -> None:
    train(load_config({**identity_options, "rollout_workers": 1, "name": "all"}))
    lora = {"use_lora": True, "lora_targets": ["q_proj"], "lora_rank": 2}
    train(load_config({**identity_options, **lora, "rollout_workers": 1, "name": "lora"}))
    whole, adapters = (crew.sent["load"] for crew in LocalCrew.made)
    assert adapters < whole / 5
    assert LocalCrew.made[0].asked == (1, 1, 0.0, None)


def test_time_and_tokens_of_workers_are_the_runs(identity_options: dict[str, Any]) -> None:
    folder = train(load_config({**identity_options, "rollout_workers": 2}))
    here = train(load_config({**identity_options, "worker_groups": 1, "name": "here"}))
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        parts = [line[f"time/{part}"] for part in ("generation", "environment", "lockstep", "sync")]
        assert min(parts) >= 0.0
        assert line["time/generation"] > 0.0
        assert sum(parts) <= line["time/rollout"] * 1.001
        assert line["efficiency/useful_token_share"] > 0.3
    assert (folder / "metrics.jsonl").read_text().count("\n") == (here / "metrics.jsonl").read_text().count("\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"worker_groups": 2}, "worker_groups.*rollout_workers above 0"),
        ({"ray_address": "auto"}, "ray_address.*rollout_workers above 0"),
        ({"rollout_workers": 1, "sampler": "vllm", "sampler_correction": True}, "brings processes of its own"),
    ],
)
def test_options_that_cannot_be_are_named(
    options: dict[str, Any], message: str, identity_options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=message):
        GRPOTrainer(load_config({**identity_options, **options}))


def test_divided_parameters_are_refused(identity_options: dict[str, Any]) -> None:
    config = load_config({**identity_options, "rollout_workers": 1})
    nobody: Any = None
    with pytest.raises(ConfigError, match="Launch without FSDP"):
        ray_player.make_player(
            nobody, nobody, nobody, config, values=False, ranks=nobody, watch=nobody, model=nobody, sampled=nobody,
            env=nobody, arguments={}, divided=True,
        )  # fmt: skip


LOCAL = """
import test_ray_player
from trajgym.trainers import ray_player
ray_player.RayCrew, ray_player.require_ray = test_ray_player.LocalCrew, lambda: None
"""


def test_of_several_ranks_one_has_the_workers(
    launch: Callable[..., list[subprocess.Popen[str]]],
    identity_options: dict[str, Any],
    left_behind: Callable[[Path], Any],
) -> None:
    options = {"rollout_workers": 2, "groups_per_update": 3, "kl_coef": 0.02, "log_trajectories": 99}
    processes = launch(LOCAL, name="two", **options)
    texts = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "".join(texts)
    one = train(load_config({**identity_options, **options, "name": "one"}))
    (metrics, weights, played), (alone, own, mine) = left_behind(one.with_name("two")), left_behind(one)
    assert played[0] == mine[0]  # the second update begins with weights that differ by rounding
    for left, right in zip(metrics, alone, strict=True):
        assert left == pytest.approx(right, rel=1e-4, abs=1e-6)
    # Adam steps by the learning rate where the gradient is next to nothing, too, and so shows its rounding.
    close = 1e-3 * identity_options["learning_rate"]
    for name, value in own.items():
        torch.testing.assert_close(weights[name], value, atol=close, rtol=1e-5)


def test_without_workers_this_process_plays(identity_options: dict[str, Any]) -> None:
    assert type(GRPOTrainer(load_config(identity_options)).player) is Player
    assert not LocalCrew.made


def test_the_number_of_workers_may_change_on_resume() -> None:
    before = {"rollout_workers": 2, "ray_address": None}
    assert changes(before, {"rollout_workers": 5, "ray_address": "auto"}, {}) == Changes((), ())
    (noted,) = changes(before, {"rollout_workers": 0}, {}).noted[:1]
    assert noted == "rollout_workers: 2 before, 0 now"


def test_seconds_of_others_are_taken_from_those_of_waiting() -> None:
    ticks = iter([0.0, 10.0])
    watch = Stopwatch(clock=lambda: next(ticks))
    with watch("sync"):
        pass
    watch.divide("sync", {"generation": 6.0, "environment": 1.0})
    assert watch.seconds() == {"sync": 3.0, "generation": 6.0, "environment": 1.0}


def test_an_error_is_no_death(identity_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, piece: Any) -> Any:
        raise MemoryError("of this worker")

    monkeypatch.setattr(RolloutWorker, "_play", broken)
    with pytest.raises(MemoryError, match="of this worker") as caught:
        train(load_config({**identity_options, "rollout_workers": 2}))
    assert "In a rollout worker" in caught.value.__notes__[0]
    assert not isinstance(caught.value, TrainingError)
    assert len(LocalCrew.made[-1].workers) == 2
