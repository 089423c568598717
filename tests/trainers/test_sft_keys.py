"""Every option of supervised fine-tuning has an effect: one row for each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import trajgym  # noqa: F401  # registers the environments
from trajgym.errors import ConfigError
from trajgym.policies.render import Renderer
from trajgym.trainers.models import load_model
from trajgym.trainers.sft import load_sft_config, policy_of, train_sft
from trajgym.trainers.sft_config import SFTConfig
from trajgym.trainers.sft_rows import find_samples, make_rows

TALK = [{"messages": [{"role": "user", "content": d}, {"role": "assistant", "content": d[0]}]}
        for d in ("0", "1", "2", "3", "00", "22", "11", "33")]  # fmt: skip
ADAPTED = {"use_lora": True}


pytestmark = pytest.mark.usefixtures("frozen")


@pytest.fixture(scope="module")
def run(digit_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains for two steps, each time in a new place."""

    def train(**options: Any) -> Path:
        base = {"model": str(digit_model), "device": "cpu", "max_length": 64, "learning_rate": 1e-2, "epochs": 1,
                "output_dir": str(tmp_path_factory.mktemp("run")), "monitors": ()}  # fmt: skip
        return train_sft(load_sft_config(base | options), samples=TALK)

    return train


@pytest.fixture(scope="module")
def plain(run: Callable[..., Path]) -> dict[bool, dict[str, torch.Tensor]]:
    """Weights of runs without a change, without and with adapters."""
    return {lora: weights(run(use_lora=lora)) for lora in (False, True)}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / "model" / "model.safetensors")
    return found


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().split("\n") if line]


# Options that decide what the weights become.
LEARNS: dict[str, dict[str, Any]] = {
    "max_samples": {"max_samples": 6},
    "eval_samples": {"eval_samples": 2},
    "max_length": {"packing": True, "max_length": 12, "batch_size": 1},
    "packing": {"packing": True},
    "epochs": {"epochs": 1.5},
    "batch_size": {"batch_size": 2},
    "gradient_accumulation": {"gradient_accumulation": 2, "batch_size": 1},
    "learning_rate": {"learning_rate": 2e-2},
    "warmup_ratio": {"warmup_ratio": 0.0},
    "lr_schedule": {"lr_schedule": "constant", "warmup_ratio": 0.0, "batch_size": 2},
    "weight_decay": {"weight_decay": 0.5},
    "max_grad_norm": {"max_grad_norm": 1e-8},
    "use_lora": {"use_lora": True},
    "lora_rank": ADAPTED | {"lora_rank": 2},
    "lora_alpha": ADAPTED | {"lora_alpha": 64, "warmup_ratio": 0.0},
    "lora_targets": ADAPTED | {"lora_targets": ["gate_proj"]},
    "seed": {"seed": 3},
    "dtype": {"dtype": "bfloat16"},
}


def _weights(key: str) -> Callable[..., None]:
    def check(run: Callable[..., Path], plain: dict[bool, dict[str, torch.Tensor]], **_: Any) -> None:
        options = LEARNS[key]
        got, usual = weights(run(**options)), plain[bool(options.get("use_lora")) and key != "use_lora"]
        rest = {k: v for k, v in options.items() if k != key and k != "use_lora"}
        if rest:  # what the row needs besides its own key must not be what makes the difference
            usual = weights(run(**rest, use_lora=options.get("use_lora", False)))
        assert any(not torch.equal(got[name], usual[name]) for name in usual)

    return check


def _model(run: Callable[..., Path], **_: Any) -> None:
    assert not {"lm_head.weight"} & weights(run(model="tiny", max_length=1024, learning_rate=1e-5)).keys()  # tied


def _device(run: Callable[..., Path], **_: Any) -> None:
    with pytest.raises(ConfigError, match="cuda:99"):
        run(device="cuda:99")


def _algorithm(run: Callable[..., Path], **_: Any) -> None:
    with pytest.raises(ConfigError, match="got 'dpo'"):
        run(algorithm="dpo")


def _gradient_checkpointing(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    calls: list[Any] = []
    plain = LlamaMLP.forward
    # In training: before it, the model is tried for what its head does.
    monkeypatch.setattr(LlamaMLP, "forward", lambda m, x: (calls.append(m) if m.training else None) or plain(m, x))
    usual = weights(run())
    assert len(calls) == 2 * 2  # steps × layers
    got = weights(run(gradient_checkpointing=True))
    assert len(calls) == 2 * 2 * 3  # each forward pass once more
    for name, tensor in got.items():
        torch.testing.assert_close(tensor, usual[name])


def _eval_every(run: Callable[..., Path], **_: Any) -> None:
    for every, looked in ((1, [1, 2, 3]), (2, [2, 3])):
        rows = lines(run(batch_size=1, eval_samples=1, eval_every=every, max_samples=3))
        assert [row["update"] for row in rows if "eval_loss" in row] == looked


def _log_every(run: Callable[..., Path], capsys: pytest.CaptureFixture[str], **_: Any) -> None:
    for every, printed in ((3, ["3", "6", "8"]), (5, ["5", "8"])):
        capsys.readouterr()
        run(batch_size=1, log_every=every)
        assert re.findall(r"Step (\d)/8", capsys.readouterr().out) == printed


def _output_dir(run: Callable[..., Path], tmp_path: Path, **_: Any) -> None:
    assert run(output_dir=str(tmp_path / "here")).parent == tmp_path / "here"


def _name(run: Callable[..., Path], **_: Any) -> None:
    assert run().name == "sft-seed0"
    assert run(name="mine").name == "mine"


def _saves(run: Callable[..., Path], **_: Any) -> None:
    def kept(**options: Any) -> list[str]:
        return sorted(path.name[-1] for path in (run(batch_size=2, **options) / "checkpoints").iterdir())

    assert kept(save_every=3) == ["3", "4"]
    assert kept(save_every=2) == ["2", "4"]
    assert kept(save_every=1, keep_checkpoints=3) == ["2", "3", "4"]


def _resume_overwrite(run: Callable[..., Path], tmp_path: Path, **_: Any) -> None:
    where = {"output_dir": str(tmp_path)}
    (run(**where) / "mark").touch()
    with pytest.raises(ConfigError, match="holds a run already"):
        run(**where)
    assert (run(**where, resume=True) / "mark").exists()
    assert not (run(**where, overwrite=True) / "mark").exists()


def _monitors(run: Callable[..., Path], **_: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert not list(run().glob("events*"))
    events = EventAccumulator(str(run(monitors=["tensorboard"])))
    events.Reload()
    assert {"train/loss", "train/learning_rate", "train/epoch"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2]


def _rows(**options: Any) -> list[dict[str, list[int]]]:
    model, tokenizer = load_model("tiny")
    config = load_sft_config({"max_samples": 2, **options})
    policy = policy_of(config, model, tokenizer)
    return make_rows(config, policy.renderer, find_samples(config, policy, tokenizer)).train


def _source(**changed: Any) -> Callable[..., None]:
    return lambda **_: _differ(_rows(**changed), _rows())


def _differ(one: Any, other: Any) -> None:
    assert one != other


def _dataset(tmp_path: Path, **_: Any) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in TALK))
    assert len(_rows(dataset=str(file), max_samples=None)) == 8


def _env(tmp_path: Path, **_: Any) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps({"question": "2 + 2?", "answer": "#### 4"}) + "\n")
    one, other = (_rows(dataset=str(file), env=env) for env in ("Arithmetic-v0", "ArithmeticTool-v0"))
    assert one != other  # the system message


def _eval_split(**_: Any) -> None:
    model, tokenizer = load_model("tiny")

    def held_out(**options: Any) -> list[dict[str, list[int]]]:
        config = load_sft_config({"max_samples": 2, "eval_samples": 2, "env_kwargs": {"split": "train"}, **options})
        policy = policy_of(config, model, tokenizer)
        return make_rows(config, policy.renderer, find_samples(config, policy, tokenizer)).held_out

    assert held_out(eval_split="test") != held_out()


def _protocol_mismatch(monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    monkeypatch.setattr(Renderer, "protocol", property(lambda self: "hermes"))
    with pytest.raises(ConfigError, match="protocol_mismatch='allow'"):
        _rows(protocol="react")
    assert _rows(protocol="react", protocol_mismatch="allow") != _rows()


def _thinking(monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    made: list[bool] = []
    plain = Renderer.__init__

    def init(self: Renderer, tokenizer: Any, *, thinking: bool = False, **kwargs: Any) -> None:
        made.append(thinking)
        plain(self, tokenizer, **kwargs)

    monkeypatch.setattr(Renderer, "__init__", init)
    _rows(thinking=True)
    assert made == [True]  # what that means for rows is the renderer's business, and tested there


KEYS: dict[str, Callable[..., None]] = {
    **{key: _weights(key) for key in LEARNS},
    "algorithm": _algorithm,
    "dataset": _dataset,
    "device": _device,
    "env": _env,
    "env_kwargs": _source(env_kwargs={"difficulty": [4, 4]}),
    "eval_every": _eval_every,
    "eval_split": _eval_split,
    "gradient_checkpointing": _gradient_checkpointing,
    "keep_checkpoints": _saves,
    "log_every": _log_every,
    "model": _model,
    "monitors": _monitors,
    "name": _name,
    "output_dir": _output_dir,
    "overwrite": _resume_overwrite,
    "protocol": _source(protocol="react"),
    "protocol_mismatch": _protocol_mismatch,
    "resume": _resume_overwrite,
    "save_every": _saves,
    "thinking": _thinking,
}


def test_there_is_a_row_for_every_key() -> None:
    assert set(KEYS) == set(SFTConfig.model_fields)


@pytest.mark.parametrize("key", sorted(KEYS))
def test_it_has_an_effect(
    key: str,
    run: Callable[..., Path],
    plain: dict[bool, dict[str, torch.Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    KEYS[key](run=run, plain=plain, tmp_path=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
