"""DPO: real steps on environments' dialogues, with and without adapters, stopped and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

pytest.importorskip("trl")

from safetensors.torch import load_file

from trajgym.errors import ConfigError, DataError, UnknownNameError
from trajgym.policies.render import Renderer
from trajgym.policies.scripted import ExpertPolicy
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.trainers.config import load_config
from trajgym.trainers.dpo import pair_rows, sequence_logprobs, train_dpo
from trajgym.trainers.interrupt import Interrupted
from trajgym.trainers.models import load_model, make_policy
from trajgym.trainers.preference_config import DPOConfig, load_dpo_config
from trajgym.trainers.preference_run import RunWatch
from trajgym.trainers.preference_sources import pairs_from_rewards
from trajgym.trainers.preferences import PreferencePair, make_pair
from trajgym.trainers.runfolder import CheckpointWarning
from trajgym.types import Message

PAIRS = [make_pair(q, q, wrong) for q in "0123" for wrong in "0123" if wrong != q]


@pytest.fixture
def options(digit_model: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "model": str(digit_model), "device": "cpu", "max_length": 64, "learning_rate": 5e-3, "batch_size": 4,
        "output_dir": str(tmp_path), "monitors": (), "held_out": 0.0,
    }  # fmt: skip


def configured(options: dict[str, Any], **more: Any) -> DPOConfig:
    return load_dpo_config({**options, **more})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def logprob(folder: str | Path, question: str, answer: str) -> float:
    model, tokenizer = load_model(str(folder))
    [row], _ = pair_rows([make_pair(question, answer, "0!")], Renderer(tokenizer), most=64)
    return sequence_logprobs(model, row["chosen_ids"], row["chosen_mask"])


def test_what_is_preferred_becomes_likelier_than_what_is_not(options: dict[str, Any], digit_model: Path) -> None:
    folder = train_dpo(configured(options, epochs=8), pairs=PAIRS)
    for question in "0123":
        wrong = "1" if question == "0" else "0"
        before = logprob(digit_model, question, question) - logprob(digit_model, question, wrong)
        after = logprob(folder / "model", question, question) - logprob(folder / "model", question, wrong)
        assert after > before + 1
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["loss"] == pytest.approx(0.6931, abs=1e-4)
    assert rows[-1]["loss"] < 0.65
    assert {"accuracy", "margin", "reward_chosen", "reward_rejected"} <= set(rows[0])


@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_stopped_and_resumed_is_the_run_that_was_not(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, lora: bool
) -> None:
    more = {"use_lora": lora, "lora_rank": 4, "epochs": 2, "save_every": 4}
    whole = train_dpo(configured(options, name="whole", **more), pairs=PAIRS)
    real = RunWatch.on_step_end

    def stop(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._interrupt.requested = state.global_step == 3
        real(self, args, state, control, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(RunWatch, "on_step_end", stop)
        with pytest.raises(Interrupted, match="Stopped after 3 of 6 steps"):
            train_dpo(configured(options, name="stopped", **more), pairs=PAIRS)
    resumed = train_dpo(configured(options, name="stopped", resume=True, **more), pairs=PAIRS)
    left, right = weights(whole), weights(resumed)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[k], right[k]) for k in left)


def test_a_run_goes_on_at_the_rate_that_it_is_given(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = RunWatch.on_step_end

    def stop(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._interrupt.requested = state.global_step == 2
        real(self, args, state, control, **kwargs)

    more = {"epochs": 2, "lr_schedule": "constant", "warmup_ratio": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr(RunWatch, "on_step_end", stop)
        with pytest.raises(Interrupted):
            train_dpo(configured(options, name="slower", **more), pairs=PAIRS)
    with pytest.warns(CheckpointWarning, match=r"learning_rate: 0\.005 before, 0\.001 now"):
        folder = train_dpo(
            configured(options, name="slower", resume=True, **{**more, "learning_rate": 1e-3}), pairs=PAIRS
        )
    rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["learning_rate"] for row in rows] == pytest.approx([5e-3] * 2 + [1e-3] * 4)


def test_every_loss_beta_and_the_held_out_report(options: dict[str, Any]) -> None:
    found = []
    for name, more in {
        "sigmoid": {},
        "ipo": {"loss": "ipo"},
        "hinge": {"loss": "hinge"},
        "beta": {"beta": 1.0},
    }.items():
        folder = train_dpo(configured(options, name=name, held_out=0.3, **more), pairs=PAIRS)
        found.append(torch.cat([t.flatten() for t in weights(folder).values()]))
        report = json.loads((folder / "report.json").read_text())
        assert report["held_out"]["accuracy"]["trials"] == 3
        assert report["pairs"]["kept"] == 12
        data = json.loads((folder / "data.json").read_text())
        assert (data["rows"], data["fingerprint"][:7]) == (12, "sha256:")
    assert all(not torch.equal(a, b) for i, a in enumerate(found) for b in found[:i])


def test_two_steps_on_dialogues_with_tools(tmp_path: Path) -> None:
    """Right and wrong trajectories of an environment, calls and results among them, through the embedded model."""
    model, tokenizer = load_model("tiny")
    kwargs = {"difficulty": 2, "reward": "sparse", "max_turns": 4}
    with EnvPool(lambda: gymnasium.make("trajgym:ArithmeticTool-v0", **kwargs)) as pool:
        episodes = [Episode(seed, seed) for seed in range(4)]
        right = collect(ExpertPolicy(), pool, episodes)
        wrong = collect(_Hasty(), pool, episodes)
    pairs = pairs_from_rewards([*right, *wrong])
    assert len(pairs) == 4
    assert all(p.turns > 1 and any(m.role == "tool" for m in p.chosen) for p in pairs)
    rows, long = pair_rows(pairs, Renderer(tokenizer), most=1024)
    assert long == 0
    for pair, row in zip(pairs, rows, strict=True):
        said = [i for i, m in zip(row["chosen_ids"], row["chosen_mask"], strict=True) if m]
        text = tokenizer.decode(said)
        assert all(m.content in text for m in pair.chosen if m.role == "assistant")
        assert sum(row["chosen_mask"]) < len(row["chosen_ids"]) - len(tokenizer(pair.question)["input_ids"])

    config = load_dpo_config(
        {
            "model": "tiny", "device": "cpu", "output_dir": str(tmp_path), "monitors": (), "batch_size": 2,
            "held_out": 0.0, "learning_rate": 1e-4,
        }
    )  # fmt: skip
    folder = train_dpo(config, pairs=pairs)
    rows_logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows_logged] == [1, 2]
    assert rows_logged[0]["loss"] == pytest.approx(0.6931, abs=1e-4)
    trained, tokenizer = load_model(str(folder / "model"))
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), trained.parameters(), strict=True))
    run = load_config({"env": "ArithmeticTool-v0", "updates": 1, "max_episode_tokens": 1024})
    assert make_policy(trained, tokenizer, run).capacity == run.slots  # it plays like any other


class _Hasty(ExpertPolicy):
    """Says a number without having looked."""

    def act(self, messages: Any, task: Any, seed: int = 0) -> str:
        return "#### 123456"


def test_turns_that_no_one_row_holds_are_refused() -> None:
    class Rewrites:
        append_only = False

    two: PreferencePair = make_pair(
        "1", [Message("assistant", "1"), Message("user", "?"), Message("assistant", "2")], "3"
    )
    with pytest.raises(ConfigError, match=r"2 turns, .* drops the reasoning .* thinking: false"):
        pair_rows([two], Rewrites(), most=64)  # type: ignore[arg-type]


def test_long_pairs_are_left_out_and_counted(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    train_dpo(configured(options, max_length=20), pairs=[*PAIRS, make_pair("1", "2" * 30, "3")])
    assert "1 pairs are longer than max_length (20)" in capsys.readouterr().out
    with pytest.raises(DataError, match="All 12 pairs are longer"):
        train_dpo(configured(options, max_length=3, name="none"), pairs=PAIRS)


def test_bad_input(options: dict[str, Any]) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'beta'"):
        configured(options, betta=1)
    with pytest.raises(ConfigError, match="beta"):
        configured(options, beta=0.0)
    with pytest.raises(ConfigError, match="loss"):
        configured(options, loss="kto")
    with pytest.raises(DataError, match="No preference pair can be learned from: of 1, 1 identical"):
        train_dpo(configured(options), pairs=[make_pair("1", "2", "2")])
