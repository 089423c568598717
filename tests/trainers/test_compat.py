"""The document's tool from end to end: four actions, text that is a mapping too, and errors that are not ignored."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trajgym.errors import ConfigError, DataError, UnknownNameError
from trajgym.rewards.catalogue import REWARDS
from trajgym.trainers.compat import Answer, GRPOTrainerWrapper, NoSFTWarning, RLTrainingTool, SFTTrainerWrapper
from trajgym.trainers.compat_options import EvaluateCall, GRPOCall, LoadCall, RewardCall, SFTCall, read_call
from trajgym.trainers.data_sources import DATASETS
from trajgym.trainers.models import load_model
from trajgym.trainers.options import Options

ROWS = [{"question": f"What is {n} + 2?", "answer": f"{n} + 2 = {n + 2}. #### {n + 2}"} for n in range(30)]
SHORT = {"instructions": "signature", "max_turns": 2}  # so that prompts fit into a narrow model


pytestmark = pytest.mark.usefixtures("frozen")


@pytest.fixture(scope="module")
def trained(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """The skeleton call with SFT, then with GRPO from where that has ended, paid by the data set's namesake."""
    folder, tool = tmp_path_factory.mktemp("models"), RLTrainingTool()
    tool.register_dataset("my_dataset", ROWS)
    tool.register_reward_function("my_dataset", lambda completions, **_: [0.5] * len(completions))
    skeleton: dict[str, Any] = {
        "action": "train", "max_samples": 4, "num_epochs": 1, "batch_size": 4, "use_lora": True, "lora_rank": 8,
        "lora_alpha": 16, "use_tensorboard": False, "env_kwargs": SHORT, "device": "cpu",
    }  # fmt: skip
    sft = tool.run({**skeleton, "algorithm": "sft", "model": str(small_model), "custom_dataset": ROWS,
                    "warmup_ratio": 0.0, "output_dir": str(folder / "sft")})  # fmt: skip
    grpo = tool.run({**skeleton, "algorithm": "grpo", "model_name": str(folder / "sft"), "dataset": "my_dataset",
                     "num_generations": 4, "max_new_tokens": 4, "max_episode_tokens": 1000,
                     "output_dir": str(folder / "grpo")})  # fmt: skip
    for registry in (DATASETS, REWARDS):
        registry._items.pop("my_dataset")  # type: ignore[attr-defined]
    return {"sft": sft, "grpo": grpo}


@pytest.fixture
def two_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and two problems that count as GSM8K's."""
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "train.jsonl").write_text("\n".join(map(json.dumps, ROWS[:2])))
    monkeypatch.setenv("TRAJGYM_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_skeleton_runs_as_it_stands_and_only_the_algorithm_switches(two_problems: Path) -> None:
    skeleton = {"action": "train", "model": "tiny", "max_samples": 100, "num_epochs": 3, "batch_size": 4,
                "use_lora": True, "lora_rank": 8, "lora_alpha": 16}  # fmt: skip
    for algorithm in ("sft", "grpo"):
        answer = RLTrainingTool().run({**skeleton, "algorithm": algorithm})
        assert (answer["status"], answer["num_epochs"], answer["dataset_size"]) == ("success", 3, 2)
        assert (answer["dataset"], answer["data_share"]) == ("gsm8k", 1.0)
        assert answer["output_dir"] == f"output/{algorithm}"
        load_model(answer["model_path"])
    finished = (two_problems / "output" / "grpo" / "training.json").read_bytes()
    with pytest.raises(ConfigError, match=r"output/grpo holds a run already\. Give another output_dir, resume=True"):
        RLTrainingTool().run({**skeleton, "algorithm": "grpo"})
    assert (two_problems / "output" / "grpo" / "training.json").read_bytes() == finished


def test_only_what_was_trained_on_is_counted(small_model: Path, tmp_path: Path) -> None:
    long = {"question": "What is 30 + 2?", "answer": "30 + 2 = 32. " * 400 + "#### 32"}
    answer = RLTrainingTool().run(
        {"model": str(small_model), "custom_dataset": [*ROWS[:3], long], "num_epochs": 1, "env_kwargs": SHORT,
         "use_tensorboard": False, "device": "cpu", "output_dir": str(tmp_path / "run")}
    )  # fmt: skip
    assert (answer["dataset_size"], answer["num_samples"], answer["data_share"]) == (3, 3, 0.75)
    assert answer["left_out"] == {"rows longer than max_length (1024)": 1}
    assert json.loads((tmp_path / "run" / "data.json").read_text())["rows"] == 3


def test_training_answers_with_the_documents_keys(trained: dict[str, Answer]) -> None:
    keys = {"status", "algorithm", "model", "output_dir", "num_epochs", "dataset_size", "model_path", "num_samples"}
    for name, answer in trained.items():
        told = json.loads(answer)
        assert keys <= set(told)
        assert (answer["status"], answer["algorithm"], answer["num_epochs"]) == ("success", name.upper(), 1)
        assert answer["num_samples"] == answer["dataset_size"] == 4
        assert answer["data_share"] == pytest.approx(4 / 30)
        assert "4 of 30 problems (13.3 %)" in answer["note"]
        assert json.loads((Path(answer["output_dir"]) / "training.json").read_text()) == told
    assert trained["sft"]["final_loss"] > 0
    assert trained["grpo"]["average_reward"] == 0, "no episode gets to an answer within four tokens"
    assert trained["grpo"]["dataset"] == "my_dataset"


def test_lora_is_applied_and_merged(trained: dict[str, Answer], small_model: Path) -> None:
    before = load_file(small_model / "model.safetensors")
    after = load_file(Path(trained["sft"]["model_path"]) / "model.safetensors")
    moved = {name for name, weight in after.items() if not weight.equal(before[name])}
    assert {name.split(".")[-2] for name in moved} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    load_model(trained["grpo"]["model_path"])
    run = Path(trained["grpo"]["output_dir"])
    assert "model: " + trained["sft"]["model_path"] in (run / "config.yaml").read_text()
    (checkpoint,) = (run / "checkpoints").iterdir()
    adapters = load_file(checkpoint / "model" / "adapter_model.safetensors")
    assert {name.split(".")[-3] for name in adapters} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert {min(adapter.shape) for adapter in adapters.values()} == {8}
    optimised = torch.load(checkpoint / "trainer.pt", weights_only=True)["optimizer"]["state"].values()
    trained_shapes = sorted(tuple(state["exp_avg"].shape) for state in optimised)
    assert trained_shapes == sorted(tuple(adapter.shape) for adapter in adapters.values()), "the adapters alone"


def test_evaluation(trained: dict[str, Answer]) -> None:
    answer = RLTrainingTool().run(
        {"action": "evaluate", "model_path": trained["grpo"]["output_dir"], "custom_dataset": ROWS, "max_samples": 3,
         "metrics": ["accuracy", "accuracy_at_k", "average_length", "format_correctness"], "k": 2, "env_kwargs": SHORT,
         "return_details": True, "max_new_tokens": 4, "use_lora": True, "device": "cpu"}
    )  # fmt: skip
    assert (answer["status"], answer["num_samples"], answer["average_length"]) == ("success", 3, 4)
    assert f"{answer['accuracy']:<12.2%}".strip() == "0.00%"
    assert {"average_reward", "accuracy_at_k", "format_correctness"} <= set(answer.values)
    assert "average_steps" not in answer.values
    assert [row["question"] for row in answer["details"]] == [row["question"] for row in ROWS[:3]]
    assert {"prediction", "ground_truth", "steps", "correct", "ground_truth_steps"} <= set(answer["errors"][0])
    assert "4 of 30 problems" in answer["note"], "a low accuracy is explained by the share of the data"


def test_evaluation_without_adapters_is_of_the_base(trained: dict[str, Answer], small_model: Path) -> None:
    asked = {"action": "evaluate", "model_path": trained["sft"]["model_path"], "custom_dataset": ROWS, "device": "cpu",
             "max_samples": 1, "metrics": ["accuracy"], "env_kwargs": SHORT, "max_new_tokens": 2}  # fmt: skip
    tool = RLTrainingTool()
    assert tool.run({**asked, "use_lora": False})["evaluated"] == str(small_model)
    assert tool.run(asked)["evaluated"] == trained["sft"]["output_dir"]


def test_rl_without_sft_is_warned_of(small_model: Path, tmp_path: Path) -> None:
    call = {"algorithm": "grpo", "model": str(small_model), "custom_dataset": ROWS[:1], "num_generations": 4,
            "batch_size": 4, "gradient_accumulation_steps": 1, "num_epochs": 1, "max_new_tokens": 1, "device": "cpu",
            "env_kwargs": SHORT, "max_episode_tokens": 1000, "use_tensorboard": False,
            "output_dir": str(tmp_path / "grpo")}  # fmt: skip
    with pytest.warns(NoSFTWarning, match="run algorithm 'sft' first"):
        RLTrainingTool().run(call)


@pytest.mark.parametrize("kind", ["raw", "sft", "rl"])
def test_data(kind: str, small_model: Path) -> None:
    columns = {"raw": {"question", "answer"}, "sft": {"prompt", "completion", "text"},
               "rl": {"prompt", "ground_truth", "question", "full_answer"}}  # fmt: skip
    answer = RLTrainingTool().run({"action": "load_dataset", "custom_dataset": ROWS, "format": kind, "max_samples": 5,
                                   "split": "train[:20]", "model_name": str(small_model)})  # fmt: skip
    assert set(answer["sample_keys"]) == columns[kind]
    assert (answer["dataset_size"], answer["available"], answer["format"], answer["split"]) == (
        5,
        20,
        kind,
        "train[:20]",
    )


def test_rewards() -> None:
    tool = RLTrainingTool()
    length = tool.run({"action": "create_reward", "reward_type": "length_penalty", "max_length": 1024})
    assert (length["max_length"], length["penalty_weight"]) == (1024, 0.001)
    assert length["reward"]["length_penalty"]["target_length"] == 1024
    step = tool.run({"action": "create_reward", "reward_type": "step", "step_bonus": 0.2})
    assert (step["reward_type"], step["step_bonus"]) == ("step", 0.2)
    accuracy = tool.run({"action": "create_reward"})
    assert (accuracy["reward"], accuracy["status"]) == ("accuracy", "success")
    assert "right final answer" in accuracy["description"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"action": "trian"}, "Did you mean 'train'"),
        ({"algorithm": "grop"}, "Did you mean 'grpo'"),
        ({"lora_rnk": 8}, "Did you mean 'lora_rank'"),
        ({"action": "load_dataset", "fromat": "sft"}, "Did you mean 'format'"),
        ({"action": "load_dataset", "format": "sfft"}, "Did you mean 'sft'"),
        ({"action": "load_dataset", "dataset": "gsm8"}, "Did you mean 'gsm8k'"),
        ({"action": "load_dataset", "custom_dataset": ROWS, "split": "train[1]"}, "such as 'train[:1000]'"),
        ({"action": "load_dataset", "custom_dataset": [{"q": "?"}], "format": "rl", "model_name": "tiny"}, "question"),
        ({"action": "create_reward", "reward_typ": "step"}, "Did you mean 'reward_type'"),
        ({"action": "create_reward", "reward_type": "step", "max_length": 5}, "option of the reward 'step'"),
        ({"action": "evaluate", "model_pth": "tiny"}, "Did you mean 'model_path'"),
        ({"action": "evaluate"}, "needs model_path"),
        ({"action": "evaluate", "model_path": "tiny", "metrics": ["acuracy"]}, "Did you mean 'accuracy'"),
        ({"action": "evaluate", "model_path": "tiny", "k": 0}, "k: Input should be greater"),
    ],
)
def test_errors(call: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError)) as error:
        RLTrainingTool().run(call)
    assert message in str(error.value)
    answer = RLTrainingTool(errors="return").run(call)
    assert answer["status"] == "error"
    assert message in answer["message"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"action": ["train"]}, "Unknown action ['train']"),
        ({"algorithm": ["sft"]}, "Unknown algorithm ['sft']"),
        ({"algorithm": None}, "Unknown algorithm None"),
        ({"action": "evaluate", "model_path": 7}, "model_path: Input should be a valid string, got 7"),
        ({"action": "evaluate", "model_path": "tiny", "k": "x"}, "k: Input should be a valid integer"),
        ({"action": "evaluate", "model_path": "tiny", "metrics": "accuracy"}, "metrics: Input should be a valid list"),
        ({"action": "evaluate", "model_path": "tiny", "temperature": -1}, "temperature: Input should be greater than"),
        ({"action": "create_reward", "reward_config": "abc"}, "reward_config: Input should be a valid dictionary"),
        ({"algorithm": "sft", "lora_rank": "x"}, "lora_rank: Input should be a valid integer"),
        ({"algorithm": "sft", "num_epochs": "x"}, "num_epochs: Input should be a valid number"),
        ({"algorithm": "grpo", "max_new_tokens": 0}, "max_new_tokens: Input should be greater than or equal to 1"),
        ({"algorithm": "grpo", "env_kwargs": None}, "env_kwargs: Input should be a valid dictionary, got None"),
        ({"output_dir": "~nobody-here/run"}, "output_dir: there is no such user"),
        ("x", "Options must be a mapping, such as {'action': 'train'}, got 'x'"),
        (None, "Options must be a mapping"),
        ([1], "Options must be a mapping"),
    ],
)
def test_values_of_a_wrong_type(call: Any, message: str) -> None:
    answer = RLTrainingTool(errors="return").run(call)
    assert answer["status"] == "error"
    assert message in answer["message"]


@pytest.mark.parametrize("kind", [LoadCall, RewardCall, EvaluateCall, SFTCall, GRPOCall])
def test_every_option_has_a_type(kind: type[Options]) -> None:
    checked_later = {"dataset", "custom_dataset", "custom_reward", "max_length", "target_length", "penalty_weight",
                     "step_bonus"} if kind is not SFTCall else {"dataset", "custom_dataset"}  # fmt: skip
    for option in set(kind.model_fields) - checked_later:
        for value in (object(), [object()], {"a": object()} if option not in ("env_kwargs", "reward_config") else ()):
            with pytest.raises(ConfigError, match=rf"\b{option}\b.*got"):
                read_call("it", kind, {option: value})


def test_sft_refuses_rows_without_columns(tmp_path: Path) -> None:
    call = {"model": "tiny", "custom_dataset": [{"text": "?"}], "output_dir": str(tmp_path / "run")}
    with pytest.raises(DataError, match="SFT needs rows with question and answer"):
        RLTrainingTool().run(call)
    assert list(tmp_path.iterdir()) == []


def test_the_page_of_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(code, "pipeline.md", "exec"), {})
    assert "less penalty_weight for each character" in capsys.readouterr().out


def test_the_page_of_the_docs_lists_every_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (?:… with )?`(\w+)` \| (`.*) \|$", page, re.MULTILINE)
    # What stands in brackets are values.
    told = {action: set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", options))) for action, options in table}
    calls: dict[str, type[Options]] = {"load_dataset": LoadCall, "create_reward": RewardCall, "evaluate": EvaluateCall}
    for action, call in calls.items():
        assert told[action] == set(call.model_fields)
    for wrapper in (SFTTrainerWrapper, GRPOTrainerWrapper):
        assert set(wrapper.call.model_fields) <= told["train"] | told[wrapper.algorithm]
        assert told["train"] | told[wrapper.algorithm] <= {*wrapper.keys(), "algorithm"}
        other = GRPOTrainerWrapper if wrapper is SFTTrainerWrapper else SFTTrainerWrapper
        assert not told[wrapper.algorithm] & set(other.keys())


def test_an_answer_is_text_and_mapping() -> None:
    answer = Answer({"a": 1, "b": "é"})
    assert json.loads(answer) == {"a": 1, "b": "é"} == pickle.loads(pickle.dumps(answer)).values
    assert (answer["a"], answer.get("c"), answer[0], answer[-1]) == (1, None, "{", "}")
    with pytest.raises(KeyError):
        answer["c"]
    with pytest.raises(UnknownNameError):
        RLTrainingTool(errors="ignore")  # type: ignore[arg-type]
