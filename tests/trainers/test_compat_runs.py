"""Runs as they are found: where a model comes from, whether a folder is free, how much a model can read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import CheckpointError, ConfigError
from trajgym.trainers.compat import RLTrainingTool
from trajgym.trainers.compat_runs import (
    fine_tuned,
    finished_model,
    positions_of,
    require_free,
    run_of,
    small_share,
)
from trajgym.trainers.compat_trainers import GRPOTrainerWrapper, SFTTrainerWrapper

ROWS = [{"question": f"{n} + 2?", "answer": f"#### {n + 2}"} for n in range(4)]


def run_in(folder: Path, options: str | bytes) -> Path:
    """A run's folder with a finished model."""
    for name in ("model", "checkpoints"):
        (folder / name).mkdir(parents=True)
    (folder / "model" / "config.json").touch()
    (folder / "config.yaml").write_bytes(options if isinstance(options, bytes) else options.encode())
    return folder


def test_where_a_model_comes_from(tmp_path: Path) -> None:
    from_sft = f"algorithm: grpo\nmodel: {tmp_path / 'sft' / 'model'}\n"
    itself = f"algorithm: grpo\nmodel: {tmp_path / 'itself'}\n"
    runs = {"sft": "algorithm: sft\n", "grpo": from_sft, "raw": "algorithm: grpo\nmodel: some/base\n", "itself": itself}
    for name, options in {**runs, "nothing": "algorithm: grpo\n"}.items():
        run_in(tmp_path / name, options)
    assert run_of(tmp_path / "sft") == run_of(tmp_path / "sft" / "model") == tmp_path / "sft"
    assert run_of("some/base") is run_of(tmp_path) is None
    assert finished_model(str(tmp_path / "sft")) == tmp_path / "sft" / "model"
    assert finished_model("some/base") == "some/base"
    known = {name for name in (*runs, "nothing") if fine_tuned(tmp_path / name / "model")}
    assert known == {"sft", "grpo"}
    assert fine_tuned("tiny")
    assert not fine_tuned("some/base")


@pytest.mark.parametrize("options", ["a: [1", b"\xff\xfe\x00", "- 1\n", "a: 2024-13-45\n"])
def test_a_damaged_run_is_one_error_wherever_it_is_read(options: str | bytes, tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", options)
    with pytest.raises(CheckpointError, match=r"config\.yaml"):
        fine_tuned(run)
    tool, more = RLTrainingTool(errors="return"), {"custom_dataset": ROWS, "device": "cpu"}
    for call in (
        {"algorithm": "grpo", "model": str(run), "output_dir": str(tmp_path / "new"), "num_generations": 4},
        {"action": "evaluate", "model_path": str(run), "use_lora": False},
        {"action": "evaluate", "model_path": str(run)},
    ):
        answer = tool.run({**call, **more})
        assert (answer["status"], answer["error"]) == ("error", "CheckpointError")
        assert str(run / "config.yaml") in answer["message"]
    assert not (tmp_path / "new").exists()


def test_a_run_that_does_not_say_what_was_trained(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "algorithm: sft\n")
    with pytest.raises(CheckpointError, match="does not say what was trained"):
        RLTrainingTool().run({"action": "evaluate", "model_path": str(run), "use_lora": False})


@pytest.mark.parametrize("wrapper", [SFTTrainerWrapper, GRPOTrainerWrapper])
def test_a_taken_folder_is_left_alone_and_the_advice_can_be_followed(
    wrapper: type[SFTTrainerWrapper | GRPOTrainerWrapper], tmp_path: Path
) -> None:
    run = run_in(tmp_path / "run", "algorithm: sft\n")
    with pytest.raises(ConfigError, match=r"holds a run already\. Give another output_dir, resume=True") as error:
        wrapper(model="tiny", custom_dataset=ROWS, output_dir=run).train()
    advised = {"output_dir", "resume", "overwrite"}
    assert advised <= set(re.findall(r"\w+", str(error.value))) & set(wrapper.keys())
    assert (run / "model" / "config.json").is_file()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(ConfigError, match=r"is not empty and no run of ours\. Give another output_dir"):
        wrapper(model="tiny", custom_dataset=ROWS, output_dir=tmp_path / "mine").train()


def test_folders_in_which_a_run_may_begin(tmp_path: Path) -> None:
    for name in ("none", "empty", "begun"):
        if name != "none":
            (tmp_path / name).mkdir()
        if name == "begun":
            (tmp_path / name / ".trajgym-run").touch()
        require_free(tmp_path / name)


def test_lengths_fit_the_model(tmp_path: Path, digit_model: Path) -> None:
    assert positions_of("tiny") == 1024
    assert positions_of(str(digit_model)) == 64
    assert positions_of(str(tmp_path)) is None
    given: dict[str, Any] = {"model": str(digit_model), "custom_dataset": ROWS, "output_dir": str(tmp_path / "run")}
    wrappers: tuple[Any, ...] = (SFTTrainerWrapper, GRPOTrainerWrapper)
    for wrapper, option in zip(wrappers, ("max_length", "max_episode_tokens"), strict=True):
        given |= {"max_new_tokens": 8} if wrapper is GRPOTrainerWrapper else {}
        made = wrapper(given)
        assert getattr(made._ready(made.config), option) == 64
        made = wrapper({**given, option: 32})
        assert made._ready(made.config) is made.config
        with pytest.raises(ConfigError, match=rf"{option} \(65\) is more than the 64 tokens"):
            wrapper({**given, option: 65}).train()


def test_a_small_share_is_computed() -> None:
    assert small_share(100, 7473) is not None
    assert "1.3 %" in str(small_share(100, 7473))
    assert small_share(7473, 7473) is small_share(5, None) is None
