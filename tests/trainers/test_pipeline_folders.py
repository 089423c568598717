"""A chain clears the folders of its own trainings, and no other's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import ConfigError
from trajgym.trainers.config import load_config
from trajgym.trainers.pipeline import AgenticRLPipeline
from trajgym.trainers.pipeline_folders import attempt, check_apart, require_own, run_folder
from trajgym.trainers.runfolder import RunFolder
from trajgym.trainers.sft import train_sft
from trajgym.trainers.sft_config import SFTConfig, load_sft_config

pytestmark = pytest.mark.usefixtures("frozen")


def chain(small_model: Path, folder: Path, *, name: str = "chain", **options: Any) -> AgenticRLPipeline:
    sft: dict[str, Any] = {"num_epochs": 1, "batch_size": 2, "save_every": 1, "use_lora": True, "lora_rank": 2}
    sft |= {"output_dir": str(folder / "models" / "sft"), **options.pop("sft", {})}
    grpo: dict[str, Any] = {"updates": 1, "groups_per_update": 1, "num_generations": 2, "max_new_tokens": 4, "slots": 8,
            "max_episode_tokens": 1000, "output_dir": str(folder / "models" / "grpo")}  # fmt: skip
    grpo |= options.pop("grpo", {})
    return AgenticRLPipeline(
        {
            "model": {"base_model": str(small_model), "device": "cpu"},
            "data": {"env": "ArithmeticTool-v0", "env_kwargs": {"difficulty": 1, "max_turns": 2}, "max_samples": 4},
            "sft": sft,
            "grpo": grpo,
            "eval": {"max_samples": 2, "sft_accuracy_threshold": 0.0, "baseline": False},
            "monitoring": {"use_tensorboard": False},
            "output_dir": str(folder / "runs"),
            "name": name,
            **options,
        }
    )


def test_a_chain_replaces_what_it_has_made_elsewhere(
    small_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain(small_model, tmp_path).run()
    chain(small_model, tmp_path, sft={"learning_rate": 1e-3}, grpo={"learning_rate": 1e-4}).run()
    assert "GRPO: done again, since " in capsys.readouterr().out
    assert "learning_rate: 0.0001" in (tmp_path / "models" / "grpo" / "config.yaml").read_text()
    # Another chain that is told the same folders has made neither.
    with pytest.raises(ConfigError, match=r"models/grpo holds a run .* --overwrite"):
        chain(small_model, tmp_path, name="other", sft={"output_dir": str(tmp_path / "runs" / "mine")})
    assert not (tmp_path / "runs" / "other").exists()


def test_a_run_of_others_is_kept(small_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "4?"}, {"role": "assistant", "content": "4!"}]}\n')
    options = {"model": str(small_model), "dataset": str(file), "epochs": 1, "monitors": (), "device": "cpu"}
    run = train_sft(load_sft_config({**options, "output_dir": tmp_path / "models", "name": "sft"}))
    (run / "notes.txt").write_text("mine")
    weights = (run / "model" / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match=r"models/sft holds a run that this pipeline has not made.*--overwrite"):
        chain(small_model, tmp_path)
    assert not (tmp_path / "runs").exists()
    assert (run / "notes.txt").read_text() == "mine"
    assert (run / "model" / "model.safetensors").read_bytes() == weights

    pipeline = chain(small_model, tmp_path, overwrite=True)
    pipeline.stage1_prepare_data()
    pipeline.stage2_sft_training()
    assert not (run / "notes.txt").exists()
    chain(small_model, tmp_path)  # goes on without --overwrite: now it is its own

    shutil.rmtree(run)
    train_sft(load_sft_config({**options, "output_dir": tmp_path / "models", "name": "sft"}))
    with pytest.raises(ConfigError, match="has not made"):
        chain(small_model, tmp_path)
    pipeline.config = pipeline.config.model_copy(update={"overwrite": False})
    with pytest.raises(ConfigError, match="has not made"):
        pipeline.stage2_sft_training()


def test_folders_that_hold_no_run(tmp_path: Path) -> None:
    require_own(tmp_path, {}, section="sft", overwrite=False)
    require_own(tmp_path / "none", {}, section="sft", overwrite=False)
    (tmp_path / "thesis.tex").touch()
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"holds something that is no run.*sft\.output_dir"):
            require_own(tmp_path, {}, section="sft", overwrite=overwrite)
    require_own(tmp_path, {str(tmp_path): ["0"]}, section="sft", overwrite=False)  # stopped while it was cleared
    (tmp_path / "config.yaml").write_text("{")
    with pytest.raises(ConfigError, match="has not made"):
        require_own(tmp_path, {str(tmp_path): ["0"]}, section="sft", overwrite=False)


def test_an_attempt_is_known_by_what_the_run_has_written_down(tmp_path: Path) -> None:
    config = load_config({"updates": 1, "learning_rate": 1e-5, "env_kwargs": {"difficulty": [1, 2]}, "name": "ä",
                          "lora_targets": ["q_proj"], "output_dir": tmp_path})  # fmt: skip
    RunFolder(config.model_copy(update={"protocol": "hermes"}), "run")  # as the trainer does
    folder = run_folder(config)
    require_own(folder, {str(folder): [attempt(config.plain())]}, section="grpo", overwrite=False)
    other = attempt(config.model_copy(update={"seed": 1}).plain())
    with pytest.raises(ConfigError, match="has not made"):
        require_own(folder, {str(folder): [other]}, section="grpo", overwrite=False)


@pytest.mark.parametrize(
    ("sft", "grpo", "named"),
    [
        ("models/x", "models/x", "sft.output_dir .* and grpo.output_dir"),
        ("models/x", "models/x/", "sft.output_dir .* and grpo.output_dir"),
        ("models/y/../x", "models/x", "sft.output_dir .* and grpo.output_dir"),
        ("models/x", "models/x/grpo", "sft.output_dir .* and grpo.output_dir"),
        ("models/x/sft", "models/x", "sft.output_dir .* and grpo.output_dir"),
        ("runs/chain/grpo", None, "sft.output_dir .* and grpo.output_dir"),
        ("runs", None, "sft.output_dir .* holds the pipeline's own folder"),
        (None, "runs/chain", "grpo.output_dir .* holds the pipeline's own folder"),
        ("runs/chain/model", None, "sft.output_dir .* and the deployed model"),
        (None, "runs/chain/evaluation/x", "grpo.output_dir .* and the evaluations"),
    ],
)
def test_folders_must_lie_apart(tmp_path: Path, sft: str | None, grpo: str | None, named: str) -> None:
    def place(given: str | None, section: str) -> Path:
        return tmp_path / (given or f"runs/chain/{section}")

    first, second = place(sft, "sft"), place(grpo, "grpo")
    stages: dict[str, Any] = {
        "sft": SFTConfig(output_dir=first.parent, name=first.name),  # type: ignore[call-arg]
        "grpo": load_config({"updates": 1, "output_dir": second.parent, "name": second.name}),
    }
    with pytest.raises(ConfigError, match=named):
        check_apart(tmp_path / "runs" / "chain", stages)
    apart = stages | {"sft": load_sft_config({"output_dir": tmp_path, "name": "a"})}
    apart |= {"grpo": load_config({"updates": 1, "output_dir": tmp_path, "name": "ab"})}
    check_apart(tmp_path / "runs" / "chain", apart)


def test_equal_folders_are_refused_when_the_options_are_read(small_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none inside of the other"):
        chain(small_model, tmp_path, grpo={"output_dir": str(tmp_path / "models" / "sft")})
    assert list(tmp_path.iterdir()) == []
