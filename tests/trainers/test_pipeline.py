"""The chain from data to deployment: its gate, what it keeps, what it does again, and how it goes on."""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trajgym.cli import main
from trajgym.errors import CheckpointError, ConfigError, TemplateError
from trajgym.evaluation.store import folder_fingerprint
from trajgym.trainers.interrupt import Interrupted
from trajgym.trainers.models import load_model
from trajgym.trainers.pipeline import STAGES, AgenticRLPipeline, GateNotMet
from trajgym.trainers.runfolder import RunFolder

Options = dict[str, Any]
KEPT = "with nothing changed; kept"


pytestmark = pytest.mark.usefixtures("frozen")


@pytest.fixture(scope="module")
def options(small_model: Path) -> Callable[..., Options]:
    """Options of a chain that takes a few seconds and learns nothing."""

    def make(folder: Path, **changes: Any) -> Options:
        base: Options = {
            "model": {"base_model": str(small_model), "device": "cpu"},
            "data": {"env": "ArithmeticTool-v0", "env_kwargs": {"difficulty": 1, "max_turns": 2}, "max_samples": 6},
            "sft": {"num_epochs": 1, "batch_size": 2, "save_every": 1, "use_lora": True, "lora_rank": 2},
            "grpo": {"updates": 1, "groups_per_update": 1, "num_generations": 2, "max_new_tokens": 4, "slots": 8,
                     "max_episode_tokens": 1000, "use_lora": True, "lora_rank": 2},
            "eval": {"max_samples": 3, "sft_accuracy_threshold": 0.0},
            "monitoring": {"use_tensorboard": False},
            "output_dir": str(folder),
            "name": "chain",
        }  # fmt: skip
        return {name: {**value, **changes.pop(name, {})} if isinstance(value, dict) else value
                for name, value in base.items()} | changes  # fmt: skip

    return make


@pytest.fixture(scope="module")
def done(options: Callable[..., Options], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chain that has come to its end, after the gate has stopped it once."""
    folder = tmp_path_factory.mktemp("done")
    with pytest.raises(GateNotMet) as stopped:
        AgenticRLPipeline(options(folder, eval={"sft_accuracy_threshold": 0.9})).run()
    assert stopped.value.accuracy < stopped.value.threshold == 0.9
    assert "lower --eval.sft-accuracy-threshold" in str(stopped.value)
    chain = folder / "chain"
    assert not (chain / "grpo").exists(), "the gate lets nothing through"
    assert "stopped at the gate" in (chain / "summary.md").read_text()
    return AgenticRLPipeline(options(folder)).run()


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def test_everything_is_in_one_folder(done: Path) -> None:
    found = results(done)
    assert list(found["stages"]) == list(STAGES)
    assert {stage["status"] for stage in found["stages"].values()} == {"done"}
    assert list(found["models"]) == ["before", "sft", "grpo"]
    assert found["stages"]["data"]["train"] == 6
    assert [model["measures"]["accuracy"]["count"] for model in found["models"].values()] == [3, 3, 3]
    pairs = [(comparison["before"], comparison["after"]) for comparison in found["comparisons"]]
    assert pairs == [("before", "sft"), ("before", "grpo"), ("sft", "grpo")]
    assert {"config", "train problems", "test problems", "sft weights", "deployment weights"} <= set(found["hashes"])
    assert found["hashes"]["sft weights"] == folder_fingerprint(done / "sft" / "model")
    for name in ("summary.md", "summary.html"):
        text = html.unescape((done / name).read_text())
        assert found["decision"]["next"][:40] in text
        assert "tool_use" in text


def test_three_models_answer_the_same_problems_side_by_side(done: Path) -> None:
    folder = done / "evaluation" / "grpo_evaluation"
    files = [folder / f"model-{number}" / "samples.jsonl" for number in (1, 2, 3)]
    samples = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    assert [rows[0]["model"] for rows in samples] == ["before", "sft", "grpo"]
    for answers in zip(*samples, strict=True):
        assert len({answer["task_id"] for answer in answers}) == 1
        for answer in answers:
            assert answer["prediction"] is None, "nothing can be read from four tokens"
            assert (answer["marked"], answer["correct"], answer["strict"]) == (False, False, False)
    assert (folder / "report.html").read_text().count('data-right="wrong wrong wrong"') == 3


def test_what_is_deployed_loads(done: Path) -> None:
    told = results(done)["stages"]["deployment"]
    assert told["serve"] == f"trajgym serve {done / 'model'}"
    model, tokenizer = load_model(told["model"])
    assert model.config.vocab_size == len(tokenizer)
    assert not (done / "model" / "adapter_config.json").exists()


def test_the_same_call_repeats_nothing(
    done: Path, options: Callable[..., Options], capsys: pytest.CaptureFixture[str]
) -> None:
    before = (done.parent / "history.jsonl").read_text()
    written = (done / "sft" / "model" / "model.safetensors").stat().st_mtime_ns
    AgenticRLPipeline(options(done.parent)).run()
    assert capsys.readouterr().out.count(KEPT) == len(STAGES)
    assert (done / "sft" / "model" / "model.safetensors").stat().st_mtime_ns == written
    assert (done.parent / "history.jsonl").read_text() == before


def test_only_what_depends_on_a_change_is_done_again(
    done: Path, options: Callable[..., Options], capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = AgenticRLPipeline(options(done.parent, eval={"max_samples": 2}))
    assert pipeline.run() == done
    said = capsys.readouterr().out
    assert said.count(KEPT) == 3, "SFT, GRPO and deployment"
    assert "Evaluation after RL: done again, since test: " in said
    assert results(done)["models"]["grpo"]["measures"]["accuracy"]["count"] == 2
    history = [json.loads(line) for line in (done.parent / "history.jsonl").read_text().splitlines()]
    assert "eval.max_samples: 3 before, 2 now" in history[-1]["changed"]


def test_a_changed_option_is_told_by_name(
    options: Callable[..., Options], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rate in (1e-3, 2e-3):
        pipeline = AgenticRLPipeline(options(tmp_path, sft={"learning_rate": rate}))
        pipeline.stage1_prepare_data()
        first = pipeline.stage2_sft_training()
    assert "options.learning_rate: 0.001 before, 0.002 now" in capsys.readouterr().out
    (Path(first["model"]) / "model.safetensors").unlink()
    again = pipeline.stage2_sft_training()
    assert "its model is gone or changed" in capsys.readouterr().out
    assert again["weights"] == first["weights"]


def test_a_stopped_chain_goes_on_inside_of_the_stage(
    done: Path, options: Callable[..., Options], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = RunFolder.save

    def stop(self: RunFolder, update: int, *rest: Any) -> Path:
        path = save(self, update, *rest)
        if update == 2:
            raise KeyboardInterrupt
        return path

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", stop)
        with pytest.raises(Interrupted, match="the same command"):
            AgenticRLPipeline(options(tmp_path)).run()
    pipeline = AgenticRLPipeline(options(tmp_path))
    pipeline.stage1_prepare_data()
    result = pipeline.stage2_sft_training()
    assert "resume: true" in (tmp_path / "chain" / "sft" / "config.yaml").read_text()
    assert result["weights"] == results(done)["hashes"]["sft weights"], "as if nothing had happened"


def test_rl_without_sft(options: Callable[..., Options], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = AgenticRLPipeline(options(tmp_path))
    pipeline.stage1_prepare_data()
    with pytest.raises(ConfigError, match="RL without SFT mostly fails; sft: null asks for it"):
        pipeline.stage4_grpo_training()
    folder = AgenticRLPipeline({**options(tmp_path), "sft": None, "overwrite": True}).run()
    assert "! No SFT stage" in capsys.readouterr().out
    assert list(results(folder)["models"]) == ["before", "grpo"]
    assert results(folder)["stages"]["deployment"]["chosen"] == "grpo"


def test_the_worse_model_is_not_deployed(done: Path, options: Callable[..., Options]) -> None:
    pipeline = AgenticRLPipeline(options(done.parent, eval={"max_samples": 2}))
    compared = pipeline.folder.records["grpo_evaluation"].result["comparisons"]
    (pair,) = (found for found in compared if (found["before"], found["after"]) == ("sft", "grpo"))
    assert pipeline._choice()[0] == "grpo"
    pair |= {"difference": -0.25, "low": -0.4, "high": -0.1, "significant": True}
    assert pipeline._choice() == ("sft", "GRPO's model is clearly worse than SFT's, so SFT's is deployed.")
    asked = AgenticRLPipeline(options(done.parent, deploy={"model": "sft"}))
    assert asked._choice()[0] == "sft"


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"sft": {"epochz": 1}}, ConfigError, "Did you mean 'epochs'"),
        ({"grpo": {"env": "Other-v0"}}, ConfigError, r"Set data\.env"),
        ({"eval": {"max_sample": 1}}, ConfigError, "Did you mean 'max_samples'"),
        ({"data": {"env": "Arithmetik-v0"}}, ConfigError, "Arithmetic"),
        ({"model": {"base_model": "/nowhere"}}, ConfigError, "nowhere"),
        ({"grpo": {"batch_size": 3, "groups_per_update": 1}}, ConfigError, "Give one of them"),
    ],
)
def test_wrong_options_write_nothing(
    options: Callable[..., Options], tmp_path: Path, changes: Options, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        AgenticRLPipeline(options(tmp_path, **changes))
    assert list(tmp_path.iterdir()) == []


def test_damage_is_told(options: Callable[..., Options], tmp_path: Path, small_model: Path) -> None:
    pipeline = AgenticRLPipeline(options(tmp_path))
    pipeline.stage1_prepare_data()
    pipeline.stage2_sft_training()
    folder = pipeline.path
    checkpoint = sorted((folder / "sft" / "checkpoints").iterdir())[-1]
    (checkpoint / "trainer.pt").write_bytes(b"no")
    pipeline.folder.records["sft"].status = "running"
    with pytest.raises(CheckpointError, match="is damaged"):
        pipeline.stage2_sft_training()
    (folder / "pipeline.json").write_text("{")
    with pytest.raises(CheckpointError, match="Begin again with --overwrite"):
        AgenticRLPipeline(options(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ConfigError, match="holds no pipeline"):
        AgenticRLPipeline(options(tmp_path, name="other"))


def test_a_model_without_a_template(options: Callable[..., Options], tmp_path: Path, small_model: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in small_model.iterdir():
        if file.name != "chat_template.jinja":
            (bare / file.name).write_bytes(file.read_bytes())
    with pytest.raises(TemplateError, match="no chat template"):
        AgenticRLPipeline(options(tmp_path / "runs", model={"base_model": str(bare)}))
    assert not (tmp_path / "runs").exists(), "it is told before anything is written"


def test_the_command(
    done: Path, options: Callable[..., Options], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = done.parent / "chain.json"
    recipe.write_text(json.dumps(options(done.parent, eval={"max_samples": 2})))
    assert main(["pipeline", str(recipe)]) == 0
    assert str(done / "summary.html") in capsys.readouterr().err
    assert main(["pipeline", str(recipe), "--eval.sft-accuracy-threshold", "0.9"]) == 3
    printed = capsys.readouterr()
    assert printed.err.startswith("trajgym pipeline: The gate before GRPO is not met: ")
    assert "Next: Improve SFT before any RL." in printed.out
    assert list(results(done)["stages"]) == ["data", "sft", "sft_evaluation"]
    assert main(["pipeline", "history", str(done.parent)]) == 0
    assert "next:     Improve SFT before any RL." in capsys.readouterr().out
    assert main(["pipeline", "history", str(tmp_path)]) == 1
    assert main(["pipeline"]) == 2
    assert main(["pipeline", "--help"]) == 0
    assert "pipeline_quickstart" in capsys.readouterr().out


@pytest.mark.slow
def test_a_killed_chain_ends_like_another(tmp_path: Path) -> None:
    """The recipe, killed in SFT and in GRPO: in the end the weights are those of a run that nothing disturbed."""
    command = [sys.executable, "-m", "trajgym.cli", "pipeline", "pipeline_quickstart", "--model.device", "cpu",
               "--data.max-samples", "96", "--sft.epochs", "1", "--sft.save_every", "1", "--grpo.updates", "3",
               "--grpo.save_every", "1", "--eval.max-samples", "10", "--eval.sft-accuracy-threshold", "0"]  # fmt: skip
    subprocess.run([*command, "--output-dir", str(tmp_path / "whole")], check=True)
    for stage in ("sft", "grpo"):
        process = subprocess.Popen([*command, "--output-dir", str(tmp_path / "killed")])
        checkpoints = tmp_path / "killed" / "pipeline_quickstart-seed0" / stage / "checkpoints"
        while process.poll() is None and not [p for p in checkpoints.glob("update-*") if p.suffix != ".partial"]:
            time.sleep(0.05)
        assert process.poll() is None, "it ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([*command, "--output-dir", str(tmp_path / "killed")], check=True)
    whole, killed = (results(tmp_path / name / "pipeline_quickstart-seed0") for name in ("whole", "killed"))
    for name in ("sft weights", "grpo weights", "train problems", "test problems"):
        assert whole["hashes"][name] == killed["hashes"][name]
    assert whole["models"]["grpo"]["measures"]["accuracy"] == killed["models"]["grpo"]["measures"]["accuracy"]


@pytest.mark.slow
def test_the_shipped_recipe(tmp_path: Path) -> None:
    """SFT lifts the embedded model on problems that are longer than those it knows."""
    assert main(["pipeline", "pipeline_quickstart", "--output-dir", str(tmp_path), "--model.device", "cpu"]) == 0
    found = results(tmp_path / "pipeline_quickstart-seed0")
    (lifted,) = [c for c in found["comparisons"] if (c["before"], c["after"]) == ("before", "sft")]
    assert lifted["low"] > 0
