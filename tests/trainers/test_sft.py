"""Supervised training from options to a model on disk: learned, repeatable, resumable, and nothing half-written."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import trajgym  # noqa: F401  # registers the environments
from trajgym.errors import CheckpointError, ConfigError, StorageError, TrainingError
from trajgym.evaluation.evaluate import evaluate
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train
from trajgym.trainers.interrupt import Interrupted
from trajgym.trainers.models import load_model, make_policy
from trajgym.trainers.runfolder import CheckpointWarning
from trajgym.trainers.schedule import lr_factor
from trajgym.trainers.sft import load_sft_config, train_sft
from trajgym.trainers.sft_watch import Watch

Run = Callable[..., Path]
StopAt = Callable[[int, Callable[[], None]], None]

# A digit is to be said again, however often it is asked for; there are four of them.
TALK = [{"messages": [{"role": "user", "content": d * n}, {"role": "assistant", "content": d}]}
        for n in range(1, 5) for d in "0123"]  # fmt: skip
STEPS = 12  # 16 samples, 4 in a step, three times


pytestmark = pytest.mark.usefixtures("frozen")


@pytest.fixture
def run(digit_model: Path, tmp_path: Path) -> Run:
    """Trains on the digits and returns the run's folder."""
    return runner(digit_model, tmp_path)


def runner(digit_model: Path, folder: Path) -> Run:
    def train(samples: list[Any] = TALK, **options: Any) -> Path:
        base = {"model": str(digit_model), "device": "cpu", "max_length": 64, "learning_rate": 1e-2, "log_every": 100,
                "save_every": 8, "output_dir": str(folder / "runs"), "monitors": ()}  # fmt: skip
        return train_sft(load_sft_config(base | options), samples=samples)

    return train


@pytest.fixture(scope="module")
def whole(digit_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing has disturbed."""
    return runner(digit_model, tmp_path_factory.mktemp("whole"))()


@pytest.fixture(scope="module")
def learned(digit_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is long enough."""
    return runner(digit_model, tmp_path_factory.mktemp("learned"))(epochs=10, learning_rate=2e-2, save_every=100)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / "model" / "model.safetensors")
    return found


def same(a: Path, b: Path) -> bool:
    one, other = weights(a), weights(b)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().split("\n")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines if line]


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> StopAt:
    """Calls something at the end of a step, before anything of that step is logged or saved."""
    plain = Watch.on_step_end

    def at(step: int, do: Callable[[], None]) -> None:
        def on_step_end(self: Watch, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step:
                monkeypatch.setattr(Watch, "on_step_end", plain)
                do()
            plain(self, args, state, control, **kwargs)

        monkeypatch.setattr(Watch, "on_step_end", on_step_end)

    return at


def test_it_learns_what_it_is_shown(learned: Path) -> None:
    rows = metrics(learned)
    assert [row["update"] for row in rows] == list(range(1, 41))
    assert rows[-1]["loss"] < 0.1 < 1.0 < rows[0]["loss"]
    assert rows[-1]["token_accuracy"] == 1.0
    assert rows[-1]["epoch"] == 10.0
    model, tokenizer = load_model(str(learned / "model"))
    for digit in "0123":
        ids = tokenizer(f"<|im_start|>{digit}<|im_end|><|im_start|>", return_tensors="pt").input_ids
        with torch.no_grad():
            said = model.generate(ids, max_new_tokens=4, do_sample=False)[0, ids.shape[1] :]
        assert tokenizer.decode(said).replace(" ", "") == f"{digit}<|im_end|>"  # it stops by itself


def test_the_rates_of_the_log_are_those_of_the_steps(learned: Path) -> None:
    rows = metrics(learned)
    for row in rows:
        expected = 2e-2 * lr_factor((row["update"] - 1) / len(rows), 0.1, "linear")
        assert row["learning_rate"] == pytest.approx(expected, abs=1e-12)


def test_the_run_folder(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run([*TALK[:12], *TALK[:4]], eval_samples=4, log_every=4, save_every=5)
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) == [
        "checkpoints", "config.yaml", "data.json", "metrics.jsonl", "model", "trajectories"
    ]  # fmt: skip
    assert [p.name for p in sorted((folder / "checkpoints").iterdir())] == ["update-000005", "update-000009"]
    data = json.loads((folder / "data.json").read_text())
    assert (data["rows"], data["held_out"], data["samples"], data["samples_available"]) == (12, 0, 12, 16)
    assert data["left_out"] == {"held-out rows that are trained on too": 4}
    assert data["fingerprint"].startswith("sha256:")
    assert load_sft_config(folder / "config.yaml").eval_samples == 4
    printed = capsys.readouterr().out
    assert "Epoch 2/3 | Step 4/9 | Reward: n/a | KL: n/a | Loss: " in printed
    assert "Step 9/9" in printed
    assert "Step 5/9" not in printed


def test_held_out_rows_are_looked_at_along_the_way_and_at_the_end(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    rows = metrics(run(TALK[:13], eval_samples=1, eval_every=2))
    assert [row["update"] for row in rows if "eval_loss" in row] == [2, 4, 6, 8, 9]
    assert capsys.readouterr().out.count("Held-out loss") == 5


@pytest.mark.parametrize("options", [{"use_lora": True}, {"packing": True, "batch_size": 1, "max_length": 18}])
def test_the_same_seed_gives_the_same_weights_and_another_one_others(run: Run, options: dict[str, Any]) -> None:
    first, again, other = (run(name=name, seed=seed, **options) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert same(first, again)
    assert metrics(first) == metrics(again)
    assert not same(first, other)


class Killed(BaseException):
    """What no handler catches."""


def kill() -> None:
    raise Killed


@pytest.mark.parametrize(
    ("killed_at", "options"),
    [
        (9, {}),  # goes on from step 8, where an epoch ends
        *(
            pytest.param(step, options, marks=pytest.mark.slow)
            for step in (6, 7, 8, 11)
            for options in (
                {"save_every": 5},
                {"save_every": 3, "use_lora": True, "eval_samples": 1, "eval_every": 3},
                {"save_every": 2, "packing": True, "batch_size": 1, "max_length": 18},
                {"save_every": 3, "batch_size": 2, "gradient_accumulation": 2},
            )
        ),
    ],
)
def test_killed_and_resumed_is_as_if_nothing_had_happened(
    run: Run, stop_at: StopAt, whole: Path, killed_at: int, options: dict[str, Any]
) -> None:
    undisturbed = run(name="whole", **options) if options else whole
    stop_at(killed_at, kill)
    with pytest.raises(Killed):
        run(name="killed", **options)
    resumed = run(name="killed", resume=True, **options)
    assert same(undisturbed, resumed)
    assert metrics(undisturbed) == metrics(resumed)


def test_a_run_can_go_on_at_another_rate(run: Run, stop_at: StopAt) -> None:
    stop_at(9, kill)
    with pytest.raises(Killed):
        run()
    with pytest.warns(CheckpointWarning, match=r"learning_rate: 0\.01 before, 0\.001 now"):
        rows = metrics(run(resume=True, learning_rate=1e-3))
    assert [row["learning_rate"] for row in rows[6:10]] == pytest.approx([6e-3, 5e-3, 4e-4, 3e-4])


def test_killed_before_anything_was_saved(run: Run, stop_at: StopAt) -> None:
    stop_at(1, kill)
    with pytest.raises(Killed):
        run()
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        run(resume=True)


def test_ctrl_c_saves_the_step_that_is_done(run: Run, stop_at: StopAt, whole: Path) -> None:
    stop_at(6, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Interrupted, match=r"Stopped after 6 of 12 steps; saved in .*--resume"):
        run(name="stopped")
    resumed = run(name="stopped", resume=True)  # from within an epoch
    assert same(whole, resumed)
    assert metrics(whole) == metrics(resumed)
    assert run(name="stopped", resume=True) == resumed  # and what is finished stays as it is
    assert same(whole, resumed)


def test_adapters_are_merged_into_the_finished_model(run: Run, digit_model: Path) -> None:
    folder = run(use_lora=True, learning_rate=5e-2)
    checkpoint = folder / "checkpoints" / f"update-0000{STEPS}" / "model"
    assert (checkpoint / "adapter_model.safetensors").is_file()
    assert not (checkpoint / "model.safetensors").exists()
    finished, start = weights(folder), load_file(digit_model / "model.safetensors")
    changed = {name for name in start if not torch.equal(start[name], finished[name])}
    assert changed == {
        f"model.layers.{i}.self_attn.{w}_proj.weight" for i in range(2) for w in "qkvo"
    }  # nothing else has moved
    for i in range(2):
        adapters = load_file(checkpoint / "adapter_model.safetensors")
        stem = f"base_model.model.model.layers.{i}.self_attn.q_proj"
        update = adapters[f"{stem}.lora_B.weight"] @ adapters[f"{stem}.lora_A.weight"] * 2  # α/r of 16/8
        name = f"model.layers.{i}.self_attn.q_proj.weight"
        torch.testing.assert_close(finished[name], start[name] + update)


def test_reinforcement_learning_goes_on_from_the_finished_model(
    learned: Path, identity_options: dict[str, Any]
) -> None:
    after = train(load_config({**identity_options, "model": str(learned / "model"), "updates": 1}), name="after")
    (row,) = metrics(after)
    assert row["success"] > 0.5  # by chance, one in six


def test_steps_whose_gradient_is_no_number_are_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Watch.on_pre_optimizer_step

    def spoil(steps: set[int]) -> None:
        def before(self: Watch, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
            if state.global_step + 1 in steps:
                next(p for p in model.parameters() if p.grad is not None).grad[0] = float("nan")
            plain(self, args, state, control, model=model, **kwargs)

        monkeypatch.setattr(Watch, "on_pre_optimizer_step", before)

    spoil({3, 6, 7})
    rows = metrics(run(name="few"))
    assert [row["update"] for row in rows if row["skipped_steps"]] == [3, 6, 7]
    assert rows[-1]["loss"] < rows[0]["loss"]
    spoil({2, 3, 4})
    with pytest.raises(TrainingError, match="3 steps in a row were skipped"):
        run(name="many")


def test_a_run_that_fails_says_what_to_change(run: Run, stop_at: StopAt, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise MemoryError("out of memory")

    stop_at(2, fail)
    with pytest.raises(MemoryError):
        run()
    printed = capsys.readouterr().out
    assert "Try batch_size 4 → 2, gradient_accumulation 1 → 2" in printed


def test_a_resumed_run_must_have_the_same_rows_and_options(run: Run) -> None:
    run(epochs=1)
    with pytest.raises(ConfigError, match="other rows than the run began with"):
        run(TALK[::-1], epochs=1, resume=True)
    with pytest.raises(ConfigError, match="batch_size: 4 before, 2 now"):
        run(batch_size=2, epochs=1, resume=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "/nowhere"}, ConfigError, "no folder /nowhere"),
        ({"device": "cuda:77"}, ConfigError, "cuda:77"),
        ({"lora_targets": ["c_attn"], "use_lora": True}, ConfigError, "c_attn"),
        ({"max_length": 100}, ConfigError, "max_position_embeddings=64"),
        ({"monitors": ["papyrus"]}, ConfigError, "papyrus"),
        ({"name": "a/b"}, ConfigError, "one folder"),
        ({"eval_samples": 16}, Exception, "nothing is left to train on"),
        ({"resume": True}, CheckpointError, "no run to resume"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    run: Run, tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(**options)
    assert not (tmp_path / "runs").exists()


def test_several_processes_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="launched as 2 processes"):
        run()


def test_a_full_disk_leaves_no_half_of_a_model(
    run: Run, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Path.rename

    def rename(self: Path, target: Any) -> Any:
        if self.name == "model.partial":
            raise OSError(28, "No space left on device")
        return plain(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(StorageError, match="the disk is full") as caught:
        run()
    folder = tmp_path / "runs" / "sft-seed0"
    assert str(folder) in str(caught.value)
    assert not [p for p in folder.iterdir() if p.name.startswith("model")]
    monkeypatch.setattr(Path, "rename", plain)
    assert same(whole, run(resume=True))


@pytest.mark.slow
def test_the_quickstart_lifts_the_success_of_the_embedded_model(tmp_path: Path) -> None:
    config = load_sft_config("sft_quickstart", ["--output-dir", str(tmp_path), "--monitors"])
    folder = train_sft(config, name="quickstart")
    before, after = (_success(name) for name in ("tiny", str(folder / "model")))
    assert after > before + 0.2, (before, after)


def _success(model_name: str) -> float:
    config = load_config("quickstart")
    model, tokenizer = load_model(model_name)
    env = gymnasium.make("ArithmeticTool-v0", split="test", difficulty=[1, 4])
    source: Any = env.unwrapped.tasks  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    tasks = list({task.id: task for task in (source.sample(rng) for _ in range(120))}.values())
    policy = make_policy(model, tokenizer, config)
    torch.manual_seed(0)
    found = evaluate(policy, lambda: gymnasium.make("ArithmeticTool-v0", split="test", difficulty=[1, 4]), tasks)
    return found.success.value


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_smollm2_learns_to_call_the_calculator(
    smollm2_folder: Path, gsm8k_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAJGYM_DATA", str(gsm8k_data))
    options = {"model": str(smollm2_folder), "env": "GSM8KTool-v0", "output_dir": str(tmp_path), "monitors": (),
               "env_kwargs": {"tools": ["calculator"], "instructions": "signature"}, "max_samples": 24,
               "eval_samples": 4, "epochs": 1, "batch_size": 4, "use_lora": True, "learning_rate": 5e-4,
               "eval_every": 2, "max_length": 1024}  # fmt: skip
    rows = metrics(train_sft(load_sft_config(options)))
    first, *_, last = (row["eval_loss"] for row in rows if "eval_loss" in row)
    assert last < first - 0.05
    model, _ = load_model(str(tmp_path / "sft-seed0" / "model"))
    assert model.num_parameters() > 130e6
