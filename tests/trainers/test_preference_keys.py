"""Every option of DPO and of reward models has an effect: one row for each, tried with both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

from safetensors.torch import load_file

from trajgym.errors import ConfigError
from trajgym.evaluation.records import trajectory_row, write_jsonl
from trajgym.policies.render import Renderer
from trajgym.trainers.dpo import train_dpo
from trajgym.trainers.preference_config import DPOConfig, RewardModelConfig, load_dpo_config, load_reward_config
from trajgym.trainers.preferences import make_pair, write_pairs
from trajgym.trainers.reward_model import train_reward_model
from trajgym.types import Action, Message, Observation, Step, StopReason, Task, Trajectory

pytestmark = pytest.mark.usefixtures("frozen")

PAIRS = [make_pair(q, q, wrong, margin=float(len(q))) for q in "0123" for wrong in "0123" if wrong != q]
PAIRS += [make_pair("1", "2" * 9, "3" * 4, margin=1.0), make_pair("2", "3" * 8, "1" * 9, margin=4.0)]
ADAPTED = {"use_lora": True}

# Options that decide what the weights become: a value, and what the row needs besides.
LEARNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "batch_size": (3, {}),
    "dtype": ("bfloat16", {}),
    "epochs": (2.0, {}),
    "gradient_accumulation": (2, {}),
    "held_out": (0.3, {}),
    "learning_rate": (1e-3, {}),
    "lora_alpha": (64, ADAPTED),
    "lora_rank": (2, ADAPTED),
    "lora_targets": (["gate_proj"], ADAPTED),
    "lr_schedule": ("constant", {}),
    "max_grad_norm": (1e-8, {}),
    "max_length": (9, {}),
    "seed": (3, {}),
    "use_lora": (True, {}),
    "warmup_ratio": (0.5, {}),
    "weight_decay": (0.5, {}),
}
OWN: dict[str, dict[str, tuple[Any, dict[str, Any]]]] = {
    "dpo": {"beta": (1.0, {}), "loss": ("ipo", {})},
    "reward_model": {"center": (0.5, {}), "use_margin": (True, {})},
}


class Kind:
    """One of the two ways of training on pairs: trains for some steps, each time in a new place."""

    def __init__(self, name: str, model: Path, places: pytest.TempPathFactory) -> None:
        self.name, self.model, self.places, self.known = name, model, places, dict[str, dict[str, torch.Tensor]]()
        self.options: type[DPOConfig | RewardModelConfig] = DPOConfig if name == "dpo" else RewardModelConfig

    def __call__(self, **changes: Any) -> Path:
        base = {"model": str(self.model), "device": "cpu", "max_length": 64, "learning_rate": 5e-3, "batch_size": 5,
                "output_dir": str(self.places.mktemp("run")), "monitors": (), "held_out": 0.0}  # fmt: skip
        pairs = None if "pairs" in changes else PAIRS
        if self.name == "dpo":
            return train_dpo(load_dpo_config(base | changes), pairs=pairs)
        return train_reward_model(load_reward_config(base | changes), pairs=pairs)

    def usual(self, needed: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        key = json.dumps(needed)
        if key not in self.known:
            self.known[key] = weights(self(**needed))
        return self.known[key]


@pytest.fixture(scope="module", params=["dpo", "reward_model"])
def train(request: pytest.FixtureRequest, digit_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    return Kind(request.param, digit_model, tmp_path_factory)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / "model" / "model.safetensors")
    return found


def learned_from(folder: Path) -> int:
    return int(json.loads((folder / "data.json").read_text())["rows"])


def _differs(key: str, row: tuple[Any, dict[str, Any]]) -> Callable[..., None]:
    def check(train: Kind, **_: Any) -> None:
        value, needed = row
        got, usual = weights(train(**needed | {key: value})), train.usual(needed)
        assert any(not torch.equal(got[name], usual[name]) for name in usual)

    return check


def _algorithm(train: Kind, **_: Any) -> None:
    with pytest.raises(ConfigError, match="got 'sft'"):
        train(algorithm="sft")


def _model(train: Kind, small_model: Path, **_: Any) -> None:
    assert len(weights(train(model=str(small_model), max_length=256))) < len(train.usual({}))  # one layer, not two


def _device(train: Kind, **_: Any) -> None:
    with pytest.raises(ConfigError, match="cuda:99"):
        train(device="cuda:99")


def _pairs(train: Kind, tmp_path: Path, **_: Any) -> None:
    write_pairs(tmp_path / "some.jsonl", PAIRS[:7])
    assert learned_from(train(pairs=str(tmp_path / "some.jsonl"))) == 7


def _most_per_task(train: Kind, tmp_path: Path, **_: Any) -> None:
    def said(text: str) -> Trajectory:
        step = Step(Action(text), Observation(), reward_terms={"accuracy": float(text[0] == "2")}, terminated=True,
                    reward=float(text[0] == "2"), stop_reason=StopReason.ANSWERED)  # fmt: skip
        return Trajectory(Task("t", "2", "2"), (Message("user", "2"),), (step,))

    log = tmp_path / "log.jsonl"
    write_jsonl(log, [trajectory_row(said(text)) for text in ("2", "22", "23", "1", "3", "0")])
    for most in (2, 5):
        assert learned_from(train(pairs=str(log), most_per_task=most)) == most


def _thinking(train: Kind, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    made: list[bool] = []
    plain = Renderer.__init__

    def init(self: Renderer, tokenizer: Any, *, thinking: bool = False, **kwargs: Any) -> None:
        made.append(thinking)
        plain(self, tokenizer, **kwargs)

    monkeypatch.setattr(Renderer, "__init__", init)
    train(thinking=True)
    assert made == [True]  # what that means for rows is the renderer's business, and tested there


def _gradient_checkpointing(train: Kind, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    calls: list[int] = []
    plain = LlamaMLP.forward

    def forward(self: Any, x: torch.Tensor) -> Any:
        calls.extend([1] * (torch.is_grad_enabled() and self.training))
        return plain(self, x)

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    counts = []
    for on in (False, True):
        calls.clear()
        train(gradient_checkpointing=on)
        counts.append(len(calls))
    assert counts[1] == 2 * counts[0] > 0  # each forward pass once more


def _output_dir(train: Kind, tmp_path: Path, **_: Any) -> None:
    assert train(output_dir=str(tmp_path / "here")).parent == tmp_path / "here"


def _name(train: Kind, **_: Any) -> None:
    assert train(name="mine").name == "mine"


def _resume_overwrite(train: Kind, tmp_path: Path, **_: Any) -> None:
    where = {"output_dir": str(tmp_path)}
    (train(**where) / "mark").touch()
    with pytest.raises(ConfigError, match="holds a run already"):
        train(**where)
    assert (train(**where, resume=True) / "mark").exists()
    assert not (train(**where, overwrite=True) / "mark").exists()


def _kept(train: Kind, **options: Any) -> list[str]:
    return sorted(path.name[-1] for path in (train(**options) / "checkpoints").iterdir())


def _save_every(train: Kind, **_: Any) -> None:
    assert _kept(train, keep_checkpoints=9) == ["3"]
    assert _kept(train, keep_checkpoints=9, save_every=2) == ["2", "3"]


def _keep_checkpoints(train: Kind, **_: Any) -> None:
    assert _kept(train, save_every=1) == ["3"]
    assert _kept(train, save_every=1, keep_checkpoints=2) == ["2", "3"]


def _log_every(train: Kind, capsys: pytest.CaptureFixture[str], **_: Any) -> None:
    for every, printed in ((2, ["1", "2", "4", "6"]), (5, ["1", "5", "6"])):
        capsys.readouterr()
        train(epochs=2, log_every=every)
        assert re.findall(r"step (\d)/6", capsys.readouterr().out) == printed


def _monitors(train: Kind, **_: Any) -> None:
    assert not list(train().glob("events*"))
    assert list(train(monitors=["tensorboard"]).glob("events*"))


SHARED: dict[str, Callable[..., None]] = {
    **{key: _differs(key, row) for key, row in LEARNS.items()},
    "algorithm": _algorithm,
    "device": _device,
    "gradient_checkpointing": _gradient_checkpointing,
    "keep_checkpoints": _keep_checkpoints,
    "log_every": _log_every,
    "model": _model,
    "monitors": _monitors,
    "most_per_task": _most_per_task,
    "name": _name,
    "output_dir": _output_dir,
    "overwrite": _resume_overwrite,
    "pairs": _pairs,
    "resume": _resume_overwrite,
    "save_every": _save_every,
}
ROWS: dict[str, dict[str, Callable[..., None]]] = {
    kind: SHARED | {key: _differs(key, row) for key, row in own.items()} for kind, own in OWN.items()
}
ROWS["dpo"]["thinking"] = _thinking


def test_there_is_a_row_for_every_key(train: Kind) -> None:
    assert set(ROWS[train.name]) == set(train.options.model_fields)


@pytest.mark.parametrize(
    "key", sorted({check: key for key, check in SHARED.items()}.values())
)  # one of those that share a check
def test_it_has_an_effect(
    key: str,
    train: Kind,
    small_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    SHARED[key](train=train, small_model=small_model, tmp_path=tmp_path, monkeypatch=monkeypatch, capsys=capsys)


def test_what_one_of_them_has_alone_has_an_effect(train: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ROWS[train.name].keys() - SHARED:
        with monkeypatch.context() as patch:
            ROWS[train.name][key](train=train, monkeypatch=patch)
