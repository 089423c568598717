"""Every option of learning from a log has an effect: one row for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

pytest.importorskip("trl")

from safetensors.torch import load_file

from trajgym.errors import ConfigError, DataError
from trajgym.trainers import held_out, online
from trajgym.trainers.online import Online, train_online
from trajgym.trainers.online_config import OnlineConfig, load_online_config

pytestmark = pytest.mark.usefixtures("frozen")

POLICY = {"groups_per_update": 2, "learning_rate": 5e-3, "kl_coef": 0.0, "monitors": [], "device": "cpu", "slots": 32,
          "max_turn_tokens": 6, "max_episode_tokens": 24}  # fmt: skip
SUPERVISED = {"batch_size": 4, "max_length": 24, "monitors": [], "device": "cpu", "learning_rate": 5e-3}
IMITATE = {"mode": "imitate", "options": SUPERVISED}


@pytest.fixture(scope="module")
def log(small_runs: Any) -> Path:
    """A run's folder, of which the second update was played by another policy than the first."""
    folder: Path = small_runs(updates=2, learning_rate=2e-2, groups_per_update=8)
    return folder


class Learns:
    """Learns from the log, and keeps what was measured before and after."""

    def __init__(self, log: Path, model: Path, place: Path) -> None:
        self.log, self.model, self.place = log, model, place
        self.played: list[Any] = []  # evaluations: target and guard before, target and guard after
        self.tolerances: list[float] = []
        self.usual: Online

    def __call__(self, **changes: Any) -> Online:
        base = {
            "logs": [str(self.log)], "model": str(self.model), "env": "TestIdentity-v0", "eval_split": "",
            "guard_env": "TestIdentity-v0", "guard_split": "", "eval_tasks": 1, "options": POLICY,
            "output_dir": str(self.place), "overwrite": True,
        }  # fmt: skip
        self.played.clear()
        return train_online(load_online_config(base | changes))


@pytest.fixture(scope="module")
def usual(log: Path, digit_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Online:
    """A run that others are compared with."""
    return Learns(log, digit_model, tmp_path_factory.mktemp("usual"))()


@pytest.fixture
def learn(log: Path, digit_model: Path, usual: Online, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Learns:
    made = Learns(log, digit_model, tmp_path)
    made.usual = usual
    samples_of, check_forgetting = (vars(online)[name] for name in ("samples_of", "check_forgetting"))

    def measured(evaluation: Any) -> Any:
        made.played.append(evaluation)
        return samples_of(evaluation)

    def compared(*runs: Any, tolerance: float, **options: Any) -> Any:
        made.tolerances.append(tolerance)
        return check_forgetting(*runs, tolerance=tolerance, **options)

    monkeypatch.setattr(online, "samples_of", measured)
    monkeypatch.setattr(online, "check_forgetting", compared)
    return made


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = sorted((folder / "train" / "checkpoints").iterdir())[-1]
    found: dict[str, torch.Tensor] = load_file(newest / "model" / "model.safetensors")
    return found


def told(done: Online) -> dict[str, Any]:
    """What the training within was told."""
    return dict(yaml.safe_load((done.folder / "train" / "config.yaml").read_text()))


def roles(learn: Learns) -> list[str]:
    """Who speaks first in each of the four measurements."""
    return [evaluation.trajectories[0].prompt[0].role for evaluation in learn.played]


def _refused(message: str, **options: Any) -> Callable[..., None]:
    def check(learn: Learns, **_: Any) -> None:
        with pytest.raises(ConfigError, match=message):
            learn(**options)

    return check


def _logs(learn: Learns, **_: Any) -> None:
    file = learn.log / "trajectories" / "update-000001.jsonl"
    assert learn(logs=[str(file)]).audit["given"] == 32 < learn.usual.audit["given"]


def _mode(learn: Learns, **_: Any) -> None:
    assert told(learn.usual)["algorithm"] == "grpo"
    assert told(learn(**IMITATE))["algorithm"] == "sft"


def _differs(**options: Any) -> Callable[..., None]:
    def check(learn: Learns, **_: Any) -> None:
        one, other = weights(learn.usual.folder), weights(learn(**options).folder)
        assert any(not torch.equal(one[name], other[name]) for name in one)

    return check


def _env_kwargs(learn: Learns, **_: Any) -> None:
    learn(env_kwargs={"system": "!"})
    assert roles(learn) == ["system", "user"] * 2


def _guard_env_kwargs(learn: Learns, **_: Any) -> None:
    learn(guard_env_kwargs={"system": "!"})
    assert roles(learn) == ["user", "system"] * 2


def _min_reward(learn: Learns, **_: Any) -> None:
    with pytest.raises(DataError, match="reward below 99"):
        learn(**IMITATE, min_reward=99.0)


def _max_gap(learn: Learns, **_: Any) -> None:
    assert 0 < learn(max_gap=1e-3).audit["used"] < learn.usual.audit["used"]


def _cap(learn: Learns, **_: Any) -> None:
    assert told(learn(cap=3.0))["sampler_cap"] == 3.0


def _epochs(learn: Learns, **_: Any) -> None:
    once, twice = (
        (done.folder / "train" / "metrics.jsonl").read_text().count("\n") for done in (learn.usual, learn(epochs=2.0))
    )
    assert twice == 2 * once


def _eval_tasks(learn: Learns, **_: Any) -> None:
    learn(eval_tasks=3)
    assert [len(evaluation.trajectories) for evaluation in learn.played] == [3] * 4


def _eval_turn_tokens(learn: Learns, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    told: list[int] = []
    make_policy = vars(held_out)["make_policy"]

    def made(model: Any, tokenizer: Any, options: Any) -> Any:
        told.append(options.max_turn_tokens)
        return make_policy(model, tokenizer, options)

    monkeypatch.setattr(held_out, "make_policy", made)
    learn(**IMITATE, eval_turn_tokens=2)
    assert told == [2] * 4  # whose effect is shown where runs play


def _guard_tolerance(learn: Learns, **_: Any) -> None:
    learn(guard_tolerance=0.5)
    assert learn.tolerances == [0.5, 0.5]  # what it means is the comparison's business, and tested there


def _places(learn: Learns, tmp_path: Path, **_: Any) -> None:
    assert learn(output_dir=str(tmp_path / "here"), name="mine").folder == tmp_path / "here" / "mine"
    assert learn.usual.folder.name == "online-seed0"


def _overwrite(learn: Learns, **_: Any) -> None:
    (learn().folder / "mark").touch()
    with pytest.raises(ConfigError, match="holds a run already"):
        learn(overwrite=False)
    assert not (learn().folder / "mark").exists()


def _seed(learn: Learns, **_: Any) -> None:
    _differs(seed=3)(learn=learn)


KEYS: dict[str, Callable[..., None]] = {
    "algorithm": _refused("got 'sft'", algorithm="sft"),
    "cap": _cap,
    "env": _refused("the reward of TestNothing-v0", env="TestNothing-v0"),
    "env_kwargs": _env_kwargs,
    "epochs": _epochs,
    "eval_split": _refused("split", eval_split="test"),
    "eval_tasks": _eval_tasks,
    "eval_turn_tokens": _eval_turn_tokens,
    "guard_env": _refused("the reward of TestNothing-v0", guard_env="TestNothing-v0"),
    "guard_env_kwargs": _guard_env_kwargs,
    "guard_split": _refused("split", guard_split="test"),
    "guard_tolerance": _guard_tolerance,
    "logs": _logs,
    "max_gap": _max_gap,
    "min_reward": _min_reward,
    "mode": _mode,
    "model": _refused("/nowhere", model="/nowhere"),
    "name": _places,
    "options": _differs(options=POLICY | {"learning_rate": 1e-3}),
    "output_dir": _places,
    "overwrite": _overwrite,
    "seed": _seed,
}


def test_there_is_a_row_for_every_key() -> None:
    assert set(KEYS) == set(OnlineConfig.model_fields)


@pytest.mark.parametrize(
    "key", sorted({check: key for key, check in KEYS.items()}.values())
)  # one of those that share a check
def test_it_has_an_effect(key: str, learn: Learns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KEYS[key](learn=learn, tmp_path=tmp_path, monkeypatch=monkeypatch)
