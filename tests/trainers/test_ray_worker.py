"""What happens in a rollout worker's process: weights, names and options arrive, errors go back as what they are."""

from __future__ import annotations

import pickle
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
import torch

from trajgym.envs.tools import register_tool, tool
from trajgym.envs.tools.base import TOOLS, get_tool
from trajgym.errors import ConfigError, TrainingError, UnknownNameError
from trajgym.trainers import ray_crew, worker_names
from trajgym.trainers.config import load_config
from trajgym.trainers.models import add_lora, load_model
from trajgym.trainers.ray_crew import require_ray
from trajgym.trainers.schedule import TaskSchedule
from trajgym.trainers.worker import Piece, RolloutWorker, WorkerFacts, facts, pack_plan
from trajgym.trainers.worker_answer import Answer
from trajgym.trainers.worker_names import Name, receive_names, send_names
from trajgym.trainers.worker_weights import pack_weights, packed_bytes, put_weights, trained_names


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [False, True])
def test_weights_arrive_bit_for_bit(digit_model: Path, dtype: str, lora: bool) -> None:
    def load(seed: int) -> Any:
        model = load_model(str(digit_model), dtype=dtype)[0]
        if not lora:
            return model
        return add_lora(model, rank=2, alpha=4, targets=("q_proj", "v_proj"), seed=seed)

    ours, theirs = load(0), load(1)
    with torch.no_grad():
        for p in ours.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(0)).to(p.dtype))
    names = trained_names(ours)
    packed = pickle.loads(pickle.dumps(pack_weights(ours, names)))
    for _, numbers in packed.values():
        numbers.flags.writeable = False  # as in shared memory
    put_weights(theirs, packed)
    own = dict(theirs.named_parameters())
    assert all(torch.equal(p, own[name]) for name, p in ours.named_parameters())
    assert packed_bytes(packed) == sum(p.nbytes for name, p in ours.named_parameters() if name in names)
    assert all("lora" in name for name in packed) == lora


def test_weights_of_another_model_are_refused(digit_model: Path) -> None:
    model = load_model(str(digit_model))[0]
    packed = dict(pack_weights(model, trained_names(model)))
    name = next(iter(packed))
    with pytest.raises(TrainingError, match="sent as float32"):
        put_weights(model, {**packed, name: ("float32", np.zeros((1, 2), np.float32))})
    del packed[name]
    with pytest.raises(TrainingError, match=f"1 names are on one side alone, such as {name}"):
        put_weights(model, packed)


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Unreadable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_errors_travel() -> None:
    def known() -> None:
        raise UnknownNameError("tool", "calc", ["calculator"])

    def foreign() -> None:
        {}["missing"]

    def locked() -> None:
        raise Unpicklable

    def unreadable() -> None:
        raise Unreadable(1, 2)

    def opened(answer: Answer[Any]) -> Any:
        return pickle.loads(pickle.dumps(answer)).open()

    assert opened(Answer.of(lambda: 7)) == 7
    with pytest.raises(UnknownNameError, match="Did you mean 'calculator'"):
        opened(Answer.of(known))
    with pytest.raises(KeyError, match="missing") as caught:
        opened(Answer.of(foreign))
    assert "in foreign" in caught.value.__notes__[0]
    with pytest.raises(TrainingError, match="In a rollout worker: Unpicklable: locked"):
        opened(Answer.of(locked))
    with pytest.raises(TrainingError, match="In a rollout worker: Unreadable: 1 and 2"):
        opened(Answer.of(unreadable))
    with pytest.raises(TrainingError, match=r"In a rollout worker: mine\.Error: said there"):
        Answer(error=b"cnowhere\nError\n.", text="Traceback\nmine.Error: said there").open()


@tool
def double(number: float) -> float:
    """Double a number.

    Args:
        number: Any.
    """
    return 2 * number


@pytest.fixture
def registered() -> Iterator[None]:
    register_tool(double)
    yield
    del TOOLS._items["double"]


def test_what_is_registered_here_is_known_there(registered: None) -> None:
    gymnasium.register("TestSent-v0", entry_point=lambda: None)
    try:
        sent = pickle.loads(pickle.dumps(send_names()))
    finally:
        del gymnasium.registry["TestSent-v0"]
    del TOOLS._items["double"]  # as in a new process
    calculator = get_tool("calculator")
    assert receive_names(sent) == []
    try:
        assert get_tool("double").target(4.0) == 8.0  # type: ignore[operator]
        assert gymnasium.registry["TestSent-v0"].id == "TestSent-v0"
        assert get_tool("calculator") is calculator  # what is the same on both sides stays
        assert not any(name.kind == "environment" and name.name.startswith("CartPole") for name in sent)
    finally:
        gymnasium.registry.pop("TestSent-v0", None)


def test_another_thing_by_a_known_name_takes_its_place(registered: None) -> None:
    @tool(name="double")
    def triple(number: float) -> float:
        """Triple a number.

        Args:
            number: Any.
        """
        return 3 * number

    sent = Name("tool", "double", cloudpickle.dumps(triple))
    assert receive_names([sent]) == []
    assert get_tool("double").target(1.0) == 3.0  # type: ignore[operator]
    broken = Name("tool", "double", problem="TypeError: cannot pickle a lock")
    with pytest.raises(ConfigError, match="Workers know another tool 'double' could not be sent: TypeError"):
        receive_names([broken])


def test_what_cannot_come_along_is_told() -> None:
    unsent = Name("tool", "locked", problem="TypeError: cannot pickle a lock")
    unread = Name("reward", "elsewhere", b"cnowhere_at_all\nreward\n.")
    first, second = receive_names([unsent, unread])
    assert first == "tool 'locked' could not be sent: TypeError: cannot pickle a lock"
    assert "No module named 'nowhere_at_all'); install it on all machines" in second


def test_a_tool_that_cannot_be_written_is_no_obstacle_to_others(
    registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cloudpickle.dumps

    def dumps(item: Any) -> bytes:
        if item is double:
            raise TypeError("cannot pickle a lock")
        return real(item)

    monkeypatch.setattr(worker_names.cloudpickle, "dumps", dumps)
    sent = {(name.kind, name.name): name for name in send_names()}
    assert sent["tool", "double"] == Name("tool", "double", problem="TypeError: cannot pickle a lock")
    assert sent["tool", "calculator"].data


def make(options: dict[str, Any], **changes: Any) -> RolloutWorker:
    config = load_config({**options, "rollout_workers": 1, **changes})
    env = gymnasium.make(config.env, **config.env_arguments)
    return RolloutWorker(pack_plan(config, config.env_arguments, facts(env), values=False))


def test_a_piece_does_not_depend_on_what_was_played_before(identity_options: dict[str, Any]) -> None:
    config = load_config({**identity_options, "rollout_workers": 1})
    schedule = TaskSchedule(gymnasium.make(config.env), config)
    pieces = [Piece(u, 0, [schedule.episodes(u)[8 * g : 8 * g + 8]]) for u in range(2) for g in range(2)]
    model = load_model(config.model)[0]
    packed = pack_weights(model, trained_names(model))

    def play(order: list[int]) -> dict[int, Any]:
        worker = make(identity_options)
        worker.prepare().open()
        worker.load(packed, 0.0).open()
        return {i: worker.play(pieces[i]).open().share for i in order}

    forwards, backwards = play([0, 1, 2, 3, 3]), play([3, 1, 2, 0])
    assert forwards == {i: backwards[i] for i in range(4)}
    assert forwards[0] != forwards[2]
    assert all(t.valid for share in forwards.values() for group in share.groups for t in group)


def test_weights_of_another_update_are_not_played_with(identity_options: dict[str, Any]) -> None:
    model = load_model(identity_options["model"])[0]
    worker = make(identity_options)
    worker.prepare().open()
    worker.load(pack_weights(model, trained_names(model)), 0.0).open()
    with pytest.raises(TrainingError, match=r"weights of another update: those of progress 0\.0, not 0\.5"):
        worker.play(Piece(1, 0, [], progress=0.5)).open()


def test_after_an_error_nothing_else_is_answered(identity_options: dict[str, Any], tmp_path: Path) -> None:
    worker = make({**identity_options, "model": str(tmp_path / "gone")})
    for answer in (worker.prepare(), worker.load({}, 0.0), worker.play(Piece(0, 0, []))):
        with pytest.raises(ConfigError, match="there is no folder"):
            answer.open()
    worker.close().open()


def test_other_tasks_or_versions_are_refused(identity_options: dict[str, Any]) -> None:
    config = load_config({**identity_options, "rollout_workers": 1})
    expected = facts(gymnasium.make("ArithmeticTool-v0"))  # whose tasks never end
    assert expected.tasks is None
    worker = RolloutWorker(pack_plan(config, {}, expected, values=False))
    with pytest.raises(ConfigError, match=r"computes with something else .*tasks=\(4, .*tasks=None"):
        worker.prepare().open()


def test_arguments_that_cannot_be_sent_are_named() -> None:
    config = load_config({"updates": 1, "rollout_workers": 1})
    arguments = {"max_turns": 2, "tools": (name for name in ("calculator",))}
    with pytest.raises(ConfigError, match=r"env_kwargs\['tools'\] cannot be sent to rollout workers: TypeError"):
        pack_plan(config, arguments, WorkerFacts({}, None), values=False)


def test_a_missing_name_says_that_it_could_not_be_sent(
    identity_options: dict[str, Any], registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = send_names()
    unsent = [n if n.name != "double" else Name("tool", "double", problem="TypeError: a lock") for n in real]
    monkeypatch.setattr("trajgym.trainers.worker.send_names", lambda: unsent)
    worker = make(identity_options, env_kwargs={"tools": ["double"]})
    del TOOLS._items["double"]
    try:
        with pytest.raises(ConfigError, match=r"Unknown tool 'double'.*tool 'double' could not be sent: TypeError: a"):
            worker.prepare().open()
    finally:
        register_tool(double)


class NoRay:
    """In the place of Ray, where it cannot start."""

    def __init__(self, error: Exception) -> None:
        self.error, self.ended = error, False

    def init(self, **options: Any) -> None:
        raise self.error

    def shutdown(self) -> None:
        self.ended = True


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        (None, TrainingError, "could not be started on this machine: Too late. Is it too busy"),
        ("10.0.0.1:6379", ConfigError, "ray_address '10.0.0.1:6379': Too late. Give 'auto'"),
        ("ray://10.0.0.1:10001", ConfigError, "goes through a proxy"),
    ],
)
def test_ray_that_does_not_start_or_answer(
    address: str | None, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = NoRay(Exception("Too late\nand more"))
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(kind, match=re.escape(message)):
        ray_crew._connect(address, cpus=1)
    assert ray.ended == ("ray://" not in str(address))
    assert signal.getsignal(signal.SIGTERM) is before


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'trajgym\[ray\]'"):
        require_ray()
