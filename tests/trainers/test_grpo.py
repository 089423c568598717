"""The training loop: it learns, repeats, resumes, and stops without losing anything."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trajgym.errors import (
    ConfigError,
    RewardError,
    StorageError,
    TemplateError,
    TrainingError,
    UnknownNameError,
)
from trajgym.evaluation.records import read_trajectories
from trajgym.trainers.config import load_config
from trajgym.trainers.groups import usable_groups
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.trainers.interrupt import Interrupted
from trajgym.types import Action, Observation, Step, StopReason, Task, TokenStream, Trajectory


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Everything but the clock."""
    lines = (folder / "metrics.jsonl").read_text().split("\n")
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "efficiency/", "memory/"))}
        for line in lines
        if line
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = sorted((folder / "checkpoints").glob("update-*"))[-1]
    return load_file(next((newest / "model").glob("*.safetensors")))


def same(a: Path, b: Path) -> bool:
    left, right = weights(a), weights(b)
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_identity_environment_is_solved(identity_options: dict[str, Any], seed: int) -> None:
    size = {"updates": 60, "groups_per_update": 8, "num_generations": 16, "slots": 128}
    folder = train(load_config({**identity_options, **size, "seed": seed}))
    success = [m["success"] for m in metrics(folder)]
    assert sum(success[:3]) / 3 < 0.5
    assert sum(success[-3:]) / 3 > 0.9


@pytest.mark.slow
def test_what_has_to_be_noted_for_another_dialogue_is_learned(identity_options: dict[str, Any]) -> None:
    size = {"updates": 60, "groups_per_update": 8, "num_generations": 16, "slots": 128, "env": "TestNoted-v0"}
    folder = train(load_config({**identity_options, **size}))
    told = [m["reward/accuracy"] for m in metrics(folder)]  # where the digit itself is not in view
    assert sum(told[:3]) / 3 < 0.3 * 0.3
    assert sum(told[-3:]) / 3 > 0.3 * 0.8


def test_not_every_update_is_printed(identity_options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    train(load_config({**identity_options, "updates": 3, "log_every": 2}))
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "/3 " in line]
    assert printed == ["2/3", "3/3"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"estimator": "trajectory", "baseline": "mean", "advantage_scale": "group_std", "normalizer": "sequence"},
        {"kl_coef": 0.1, "minibatches": 2, "microbatch_tokens": 40, "lr_schedule": "cosine", "warmup_ratio": 0.5},
        {"use_lora": True, "kl_coef": 0.1, "lora_rank": 4, "lora_targets": ["q_proj", "down_proj"]},
    ],
    ids=["default", "grpo", "minibatches", "lora"],
)
def test_same_seed_same_run(identity_options: dict[str, Any], options: dict[str, Any]) -> None:
    runs = [
        train(load_config({**identity_options, "updates": 4, **options, "name": name, "seed": seed}))
        for name, seed in [("a", 3), ("b", 3), ("c", 4)]
    ]
    assert metrics(runs[0]) == metrics(runs[1])
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_first_update_starts_from_the_reference(identity_options: dict[str, Any]) -> None:
    folder = train(load_config({**identity_options, "kl_coef": 0.05, "updates": 3}))
    first, *_, last = metrics(folder)
    assert first["kl"] == 0.0
    assert first["clip_share"] == 0.0
    assert last["kl"] > 0.0
    assert all(m["sampler_gap"] < 1e-5 for m in metrics(folder))


def test_the_reference_and_the_base_of_adapters_do_not_move(
    identity_options: dict[str, Any], digit_model: Path
) -> None:
    start = load_file(digit_model / "model.safetensors")
    full = GRPOTrainer(load_config({**identity_options, "kl_coef": 0.05, "name": "full"}))
    full.run()
    assert full.reference is not None
    with full.reference.active() as model:
        assert all(torch.equal(v, start[k]) for k, v in model.state_dict().items())
    assert not torch.equal(full.learner.model.state_dict()["lm_head.weight"], start["lm_head.weight"])

    lora = GRPOTrainer(load_config({**identity_options, "kl_coef": 0.05, "name": "lora", "use_lora": True}))
    trained = {n: p.numel() for n, p in lora.learner.model.named_parameters() if p.requires_grad}
    # r·(d + k) weights for each adapted layer: four square layers of width 32 in each of two blocks.
    assert sum(trained.values()) == 8 * lora.config.lora_rank * (32 + 32)
    ids = torch.tensor([[1, 3, 2, 1, 4]])
    before = lora.learner.model(input_ids=ids).logits.detach()
    lora.run()
    with torch.no_grad(), lora.learner.model.disable_adapter():
        assert torch.equal(lora.learner.model(input_ids=ids).logits, before)
        for name, value in lora.learner.model.state_dict().items():
            key = name.removeprefix("base_model.model.").replace(".base_layer", "")
            if "lora_" not in name:
                assert torch.equal(value, start[key])
    adapted = lora.learner.model(input_ids=ids).logits
    assert not torch.allclose(adapted, before)
    merged = lora.learner.model.merge_and_unload()
    torch.testing.assert_close(merged(input_ids=ids).logits, adapted, atol=1e-5, rtol=1e-5)


def test_what_a_run_leaves_behind(identity_options: dict[str, Any]) -> None:
    import datasets

    folder = train(load_config({**identity_options, "updates": 3, "monitors": ("tensorboard",), "save_every": 2}))
    assert [p.name for p in sorted((folder / "checkpoints").iterdir())] == ["update-000002", "update-000003"]
    assert list(folder.glob("events.out.tfevents.*"))
    log = folder / "trajectories" / "update-000001.jsonl"
    found = read_trajectories(log)
    assert len(found) == 4
    assert all(t.rows and t.steps for t in found)
    assert read_trajectories(folder / "trajectories" / "all.parquet")[:4] == found
    for path, kind in [(log, "json"), (folder / "trajectories" / "all.parquet", "parquet")]:
        rows = datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(folder / "cache"))
        assert {"task_id", "messages", "rewards", "total_reward", "stop_reason"} <= set(rows.column_names)
    for line in metrics(folder):
        assert {"reward", "return", "entropy", "turns", "calls", "call_error_share", "loss", "grad_norm"} <= set(line)


RUN = """
import sys
sys.path.insert(0, {tests!r})
import conftest, json
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train
train(load_config(json.loads({options!r})))
"""


@contextlib.contextmanager
def run_elsewhere(options: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    code = RUN.format(tests=str(Path(__file__).parent), options=json.dumps(options))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_updates(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            if (folder / "metrics.jsonl").read_text().count("\n") >= count:
                return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    raise AssertionError("the run did not get that far")


@pytest.mark.parametrize("lora", [False, True])
def test_killed_and_resumed_equals_uninterrupted(identity_options: dict[str, Any], lora: bool) -> None:
    options = {**identity_options, "updates": 40, "save_every": 3, "kl_coef": 0.02, "lr_schedule": "linear"}
    options |= {"use_lora": True, "lora_targets": ["q_proj", "v_proj"]} if lora else {}
    with run_elsewhere({**options, "name": "whole"}) as process:
        assert process.wait(300) == 0, process.communicate()[0]
    folder = Path(options["output_dir"])
    with run_elsewhere({**options, "name": "killed"}) as process:
        wait_for_updates(folder / "killed", 8, process)
        process.send_signal(signal.SIGKILL)
    assert len(metrics(folder / "killed")) < 40
    with run_elsewhere({**options, "name": "killed", "resume": True}) as process:
        assert process.wait(300) == 0, process.communicate()[0]
    assert metrics(folder / "killed") == metrics(folder / "whole")
    assert same(folder / "killed", folder / "whole")


def test_ctrl_c_saves_and_says_how_to_go_on(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "updates": 300, "save_every": 1000, "name": "stopped"}
    folder = Path(options["output_dir"]) / "stopped"
    with run_elsewhere(options) as process:
        wait_for_updates(folder, 5, process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
        assert process.returncode != 0
    assert "--resume" in output
    done = len(metrics(folder))
    assert (folder / "checkpoints" / f"update-{done:06d}" / "trainer.pt").is_file()


def test_ctrl_c_before_the_first_update_can_be_resumed(
    identity_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = GRPOTrainer(load_config({**identity_options, "name": "early"}))
    monkeypatch.setattr(trainer.policy, "poll", lambda: os.kill(os.getpid(), signal.SIGINT) or [])
    with pytest.raises(Interrupted, match="after 0 of 2"):
        trainer.run()
    resumed = train(load_config({**identity_options, "name": "early", "resume": True}))
    straight = train(load_config({**identity_options, "name": "straight"}))
    assert same(resumed, straight)


def test_an_error_saves_the_last_finished_update(
    identity_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = GRPOTrainer(load_config({**identity_options, "updates": 6, "save_every": 100, "name": "broken"}))
    real = trainer.credit

    def fails(groups: Any, values: Any = None) -> Any:
        if trainer.update == 3:
            raise RewardError("the judge is gone")
        return real(groups, values)

    monkeypatch.setattr(trainer, "credit", fails)
    with pytest.raises(RewardError, match="the judge is gone"):
        trainer.run()
    resumed = train(
        load_config({**identity_options, "updates": 6, "save_every": 100, "name": "broken", "resume": True})
    )
    straight = train(load_config({**identity_options, "updates": 6, "save_every": 100, "name": "straight"}))
    assert metrics(resumed) == metrics(straight)
    assert same(resumed, straight)


def test_prompts_that_leave_no_room_are_named_at_once(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "max_turn_tokens": 1, "max_episode_tokens": 2, "updates": 50}
    with pytest.raises(TrainingError, match="max_episode_tokens=2"):
        train(load_config(options))


def test_recomputed_activations_change_nothing(identity_options: dict[str, Any], tmp_path: Path) -> None:
    import shutil

    model = tmp_path / "with-dropout"
    shutil.copytree(identity_options["model"], model)
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**settings, "attention_dropout": 0.5}))
    runs = [
        train(load_config({**identity_options, "model": str(model), "name": str(on), "gradient_checkpointing": on}))
        for on in (False, True)
    ]
    assert all(m["sampler_gap"] < 1e-5 for m in metrics(runs[1]))
    for (k, a), b in zip(weights(runs[0]).items(), weights(runs[1]).values(), strict=True):
        torch.testing.assert_close(a, b, msg=k)


def test_ctrl_c_between_micro_batches_leaves_the_weights_of_the_last_update(
    identity_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(load_config({**identity_options, "updates": 1, "name": "whole"}))
    trainer = GRPOTrainer(load_config({**identity_options, "updates": 5, "microbatch_tokens": 30, "name": "cut"}))
    calls = 0
    real = trainer.learner.logprobs

    def press_in_the_second_update(micro: Any) -> Any:
        nonlocal calls
        calls += 1
        if trainer.update == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return real(micro)

    monkeypatch.setattr(trainer.learner, "logprobs", press_in_the_second_update)
    with pytest.raises(Interrupted, match=r"after 1 of 5 updates.*--resume"):
        trainer.run()
    assert calls > 2
    for k, v in weights(whole).items():
        torch.testing.assert_close(weights(trainer.folder.path)[k], v)
    resumed = train(
        load_config({**identity_options, "updates": 5, "microbatch_tokens": 30, "name": "cut", "resume": True})
    )
    straight = train(load_config({**identity_options, "updates": 5, "microbatch_tokens": 30, "name": "straight"}))
    assert same(resumed, straight)


def test_invalid_members_leave_the_group() -> None:
    row = TokenStream((1, 2), (0, 1), (-1, 0), (0.0, -1.0))

    def member(fault: str | None = None, reason: StopReason = StopReason.ANSWERED) -> Trajectory:
        step = Step(Action("x"), Observation(), terminated=reason.terminates, stop_reason=reason)
        return Trajectory(Task("t", "", ""), (), (step,), (row,), fault=fault)

    good, bad, cut = member(), member("died"), member(reason=StopReason.MAX_TURNS)
    groups = usable_groups([good, bad, good, bad, bad, good, good, cut, good], 3)
    assert [len(g.trajectories) for g in groups] == [2, 3]
    assert [len(g.trajectories) for g in usable_groups([good, cut, good, good, cut, cut], 3, drop_truncated=True)] == [
        2
    ]


def test_damaged_weights_stop_the_run(identity_options: dict[str, Any]) -> None:
    trainer = GRPOTrainer(load_config(identity_options))
    with torch.no_grad():
        next(iter(trainer.learner.model.parameters())).fill_(float("nan"))
    with pytest.raises(TrainingError, match="not finite"):
        trainer.learn(*_one_group(trainer))


def _one_group(trainer: GRPOTrainer) -> tuple[Any, Any, Any]:
    from trajgym.trainers.interrupt import Interrupt
    from trajgym.types import Group

    row = TokenStream((1, 3, 2, 1, 4), (0, 0, 0, 0, 1), (-1, -1, -1, -1, 0), (0.0, 0.0, 0.0, 0.0, -1.0))
    step = Step(Action("1"), Observation(), reward=1.0)
    member = Trajectory(Task("t", "", ""), (), (step,), (row,))
    return [Group(member.task, (member, member))], [[[1.0], [-1.0]]], Interrupt()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "/no/such/folder"}, ConfigError, "no folder /no/such/folder"),
        ({"env": "NoSuchEnv-v0"}, UnknownNameError, "environment"),
        ({"env_kwargs": {"rewrad": 1}}, UnknownNameError, "Did you mean 'reward'"),
        ({"estimator": "gae2"}, UnknownNameError, "estimator"),
        ({"estimator": "trajectory", "baseline": "step"}, UnknownNameError, "baseline"),
        ({"estimator": "trajectory", "discount_weight": "dropped"}, ConfigError, "no option 'discount_weight'"),
        ({"device": "cuda:7"}, ConfigError, "device"),
        ({"monitors": ("tensorbord",)}, UnknownNameError, "Did you mean 'tensorboard'"),
        ({"monitors": ("trackio",)}, ConfigError, "pip install trackio"),
        ({"use_lora": True, "lora_targets": ["nothing"]}, ConfigError, "q_proj"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    identity_options: dict[str, Any],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)  # as where it is not installed
    with pytest.raises(error, match=message):
        train(load_config({**identity_options, **options}))
    assert not Path(identity_options["output_dir"]).exists()


def test_endless_tasks_have_no_epochs(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "env": "ArithmeticTool-v0", "updates": None, "epochs": 1.0}
    with pytest.raises(ConfigError, match="without end"):
        train(load_config(options))


def test_epochs_deal_every_task_once(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "updates": None, "epochs": 2.0, "groups_per_update": 2, "num_generations": 2}
    trainer = GRPOTrainer(load_config(options))
    assert trainer.schedule.total == 4
    dealt = [e.task for u in range(4) for e in trainer.schedule.episodes(u)]
    for epoch in (dealt[:8], dealt[8:]):
        assert sorted(set(epoch)) == [f"digit-{d}" for d in "0123"]
        assert all(epoch.count(t) == 2 for t in epoch)
    assert dealt[:8] != dealt[8:]
    assert metrics(trainer.run())[-1]["epoch"] == 2.0
    few = GRPOTrainer(load_config({**options, "max_samples": 2, "name": "few"}))
    assert few.schedule.total == 2


def test_a_model_without_a_chat_template(identity_options: dict[str, Any], digit_model: Path, tmp_path: Path) -> None:
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(digit_model, bare)
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(TemplateError, match="chat template"):
        train(load_config({**identity_options, "model": str(bare)}))


def test_a_disk_that_fills_up_keeps_the_checkpoints(
    identity_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    trainer = GRPOTrainer(load_config({**identity_options, "updates": 6, "save_every": 2}))
    real = torch.save

    def full(*args: Any, **kwargs: Any) -> None:
        if trainer.update >= 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(StorageError, match=r"disk is full.*--resume"):
        trainer.run()
    monkeypatch.undo()
    assert [p.name for p in trainer.folder.complete()] == ["update-000002"]
    resumed = train(load_config({**identity_options, "updates": 6, "save_every": 2, "resume": True}))
    assert len(metrics(resumed)) == 6
