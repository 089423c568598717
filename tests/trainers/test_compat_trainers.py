"""The document's options, one by one: each changes something, and others are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import ConfigError, DataError, UnknownNameError
from trajgym.rewards.catalogue import REWARDS, register_reward_function
from trajgym.trainers.compat_data import NamedTasks
from trajgym.trainers.compat_trainers import GRPOTrainerWrapper, SFTTrainerWrapper
from trajgym.trainers.data_sources import DATASETS, register_dataset

ROWS = [{"question": f"{n} + 2?", "answer": f"It is {n + 2}. #### {n + 2}"} for n in range(6)]

SKELETON = {"model": "Qwen/Qwen3-0.6B", "max_samples": 100, "num_epochs": 3, "batch_size": 4, "use_lora": True,
            "lora_rank": 8, "lora_alpha": 16}  # fmt: skip

# Option, a value that is not the default, our trainer's option, the value there.
SHARED: list[tuple[str, Any, str, Any]] = [
    ("model", "tiny", "model", "tiny"),
    ("model_name", "tiny", "model", "tiny"),
    ("max_samples", 7, "max_samples", 7),
    ("num_epochs", 2, "epochs", 2),
    ("use_lora", False, "use_lora", False),
    ("lora_rank", 4, "lora_rank", 4),
    ("lora_rank", 4, "lora_alpha", 8),
    ("lora_alpha", 99, "lora_alpha", 99),
    ("lora_target_modules", ["q_proj"], "lora_targets", ("q_proj",)),
    ("learning_rate", 2e-6, "learning_rate", 2e-6),
    ("warmup_ratio", 0.3, "warmup_ratio", 0.3),
    ("weight_decay", 0.02, "weight_decay", 0.02),
    ("save_steps", 9, "save_every", 9),
    ("output_dir", "models/a", "output_dir", Path("models")),
    ("output_dir", "models/a", "name", "a"),
    ("use_tensorboard", False, "monitors", ()),
    ("use_wandb", True, "monitors", ("tensorboard", "wandb")),
    ("seed", 3, "seed", 3),
    ("device", "cpu", "device", "cpu"),
    ("dtype", "bfloat16", "dtype", "bfloat16"),
    ("env", "GSM8K-v0", "env", "GSM8K-v0"),
    ("overwrite", True, "overwrite", True),
]
SFT = [
    *SHARED,
    ("batch_size", 2, "batch_size", 2),
    ("gradient_accumulation_steps", 5, "gradient_accumulation", 5),
    ("logging_steps", 9, "log_every", 9),
    ("eval_steps", 9, "eval_every", 9),
    ("eval_samples", 9, "eval_samples", 9),
    ("max_length", 99, "max_length", 99),
    ("packing", True, "packing", True),
    ("dataset", "expert", "dataset", "expert"),
    ("env_kwargs", {"max_turns": 2}, "env_kwargs", {"max_turns": 2}),
    ("split", "test", "env_kwargs", {"split": "test"}),
]
GRPO = [
    *SHARED,
    ("batch_size", 8, "groups_per_update", 4),
    ("gradient_accumulation_steps", 8, "groups_per_update", 4),
    ("logging_steps", 9, "log_every", 9),
    ("num_generations", 4, "num_generations", 4),
    ("num_generations", 4, "groups_per_update", 4),
    ("max_new_tokens", 64, "max_turn_tokens", 64),
    ("temperature", 0.8, "temperature", 0.8),
    ("kl_coef", 0.1, "kl_coef", 0.1),
    ("clip_range", 0.1, "clip_range", 0.1),
    ("clip_range", 0.1, "clip_range_high", 0.1),
    ("split", "test", "env_kwargs", {"split": "test", "reward": "accuracy"}),
    ("reward_type", "step", "env_kwargs", {"split": "train", "reward": {"accuracy": 1.0, "step": {"weight": 1.0}}}),
    ("reward_type", "hybrid", "env_kwargs", {"split": "train", "reward": "hybrid"}),
    ("custom_reward", len, "env_kwargs", {"split": "train", "reward": len}),
    ("env_kwargs", {"max_turns": 2}, "env_kwargs", {"split": "train", "reward": "accuracy", "max_turns": 2}),
]


@pytest.fixture
def registered() -> Iterator[None]:
    """A data set and a reward of one name, and a reward of another."""
    register_dataset("my_dataset", ROWS)
    register_dataset("other", ROWS)
    register_reward_function("my_dataset", lambda completions, **_: [0.5] * len(completions))
    yield
    for registry, names in ((DATASETS, ("my_dataset", "other")), (REWARDS, ("my_dataset",))):
        for name in names:
            registry._items.pop(name, None)  # type: ignore[attr-defined]


def problems(**given: Any) -> Any:
    """What GRPO would be trained on."""
    wrapper = GRPOTrainerWrapper(given)
    return wrapper._problems(wrapper.config)


@pytest.mark.parametrize(("key", "value", "ours", "there"), SFT)
def test_every_option_of_sft_has_an_effect(key: str, value: Any, ours: str, there: Any) -> None:
    assert getattr(SFTTrainerWrapper({key: value}).config, ours) == there
    assert getattr(SFTTrainerWrapper().config, ours) != there


@pytest.mark.parametrize(("key", "value", "ours", "there"), GRPO)
def test_every_option_of_grpo_has_an_effect(key: str, value: Any, ours: str, there: Any) -> None:
    assert getattr(GRPOTrainerWrapper({key: value}).config, ours) == there
    assert getattr(GRPOTrainerWrapper().config, ours) != there


def test_the_skeleton_fits_both() -> None:
    sft, grpo = SFTTrainerWrapper(SKELETON).config, GRPOTrainerWrapper(SKELETON).config
    for config in (sft, grpo):
        assert (config.model, config.max_samples, config.epochs) == ("Qwen/Qwen3-0.6B", 100, 3)
        assert (config.use_lora, config.lora_rank, config.lora_alpha) == (True, 8, 16)
    assert sft.batch_size == 4
    assert (grpo.num_generations, grpo.groups_per_update) == (8, 2), "4 × 4 answers in groups of 8"
    assert (sft.learning_rate, grpo.learning_rate, grpo.kl_coef) == (5e-5, 1e-5, 0.05)


def test_combined_reward_of_the_full_template() -> None:
    parts = [{"type": "accuracy", "weight": 1.0}, {"type": "length_penalty", "weight": 0.5, "target_length": 200},
             {"type": "step", "weight": 0.3, "step_bonus": 0.1}]  # fmt: skip
    wrapper = GRPOTrainerWrapper(reward_type="combined", reward_config={"components": parts})
    assert wrapper.config.env_kwargs["reward"] == {
        "accuracy": 1.0,
        "length_penalty": {"weight": 0.5, "target_length": 200},
        "step": {"weight": 0.3, "step_bonus": 0.1},
    }


def test_the_full_template_as_a_whole(tmp_path: Path) -> None:
    parts = [{"type": "accuracy", "weight": 1.0}, {"type": "length_penalty", "weight": 0.5, "target_length": 200},
             {"type": "step", "weight": 0.3, "step_bonus": 0.1}]  # fmt: skip
    config = GRPOTrainerWrapper(
        {
            "model": "tiny",
            "output_dir": str(tmp_path / "models" / "grpo_full"),
            "num_epochs": 3,
            "batch_size": 4,
            "learning_rate": 1e-5,
            "warmup_ratio": 0.1,
            "num_generations": 4,
            "max_new_tokens": 512,
            "temperature": 0.8,
            "kl_coef": 0.05,
            "clip_range": 0.2,
            "use_lora": True,
            "lora_rank": 16,
            "lora_alpha": 32,
            "reward_type": "combined",
            "reward_config": {"components": parts},
        }
    ).config
    assert config.model_dump(
        include={"epochs", "learning_rate", "warmup_ratio", "num_generations", "max_turn_tokens", "temperature",
                 "kl_coef", "clip_range", "clip_range_high", "use_lora", "lora_rank", "lora_alpha", "groups_per_update",
                 "output_dir", "name"}
    ) == {
        "epochs": 3, "learning_rate": 1e-5, "warmup_ratio": 0.1, "num_generations": 4, "max_turn_tokens": 512,
        "temperature": 0.8, "kl_coef": 0.05, "clip_range": 0.2, "clip_range_high": 0.2, "use_lora": True,
        "lora_rank": 16, "lora_alpha": 32, "groups_per_update": 4, "output_dir": tmp_path / "models",
        "name": "grpo_full",
    }  # fmt: skip
    assert list(config.env_kwargs["reward"]) == ["accuracy", "length_penalty", "step"]


def test_the_clip_is_left_alone_where_it_does_not_act() -> None:
    config = GRPOTrainerWrapper(objective="cispo").config
    fields = type(config).model_fields
    for name in ("clip_range", "clip_range_high"):
        assert getattr(config, name) == fields[name].default


def test_the_clip_is_the_documents_on_both_sides_unless_one_is_chosen() -> None:
    config = GRPOTrainerWrapper({"model": "tiny"}).config
    assert (config.clip_range, config.clip_range_high) == (0.2, 0.2)
    config = GRPOTrainerWrapper({"model": "tiny", "clip_range_high": 0.28}).config
    assert (config.clip_range, config.clip_range_high) == (0.2, 0.28)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 3}, "3) × gradient_accumulation_steps (4) = 12 answers, which cannot be divided into groups"),
        ({"batch_size": 4, "gradient_accumulation_steps": 1}, "Change num_generations to 2 or 4, or batch_size to 8"),
        ({"batch_size": 4, "groups_per_update": 1}, "say the same"),
        ({"custom_reward": len, "reward_type": "step"}, "exclude each other"),
        ({"env_kwargs": {"reward": "sparse"}, "reward_type": "step"}, "Give one of them"),
        ({"reward_type": "acuracy"}, "Did you mean 'accuracy'"),
        ({"num_generation": 4}, "Did you mean 'num_generations'"),
        ({"num_epochs": 1, "epochs": 2}, "twice"),
        ({"split": "test", "env_kwargs": {"split": "train"}}, "split is given twice"),
        ({"output_dir": "/"}, "a folder of its own"),
    ],
)
def test_grpo_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        GRPOTrainerWrapper(given)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lora_rnk": 4}, "Unknown option of sft training 'lora_rnk'. Did you mean 'lora_rank'"),
        ({"kl_coef": 0.1}, "Unknown option of sft training 'kl_coef'"),
        ({"model": "tiny", "model_name": "tiny"}, "Give one of them"),
        ({"optimizer": "sgd"}, "must be 'adamw'"),
        ({"lora_rank": "many"}, "lora_rank"),
    ],
)
def test_sft_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        SFTTrainerWrapper(given)
    assert message in str(error.value)


@pytest.mark.usefixtures("registered")
def test_a_data_set_brings_its_namesake() -> None:
    paired = GRPOTrainerWrapper(dataset="my_dataset")
    assert paired.config.env_kwargs == {"reward": "my_dataset"}
    assert GRPOTrainerWrapper(dataset="my_dataset", reward_type="accuracy").reward == "accuracy"
    assert GRPOTrainerWrapper(dataset="other").reward == "accuracy"
    with pytest.warns(UserWarning, match="was registered for the data set 'my_dataset'"):
        assert GRPOTrainerWrapper(dataset="other", reward_type="my_dataset").reward == "my_dataset"
    config, used, available, _ = problems(dataset="my_dataset", max_samples=4)
    assert (used, available, config.max_samples) == (4, 6, None)
    assert isinstance(config.env_kwargs["tasks"], NamedTasks)
    assert "my_dataset: 4 problems, sha256:" in config.dump()


def test_rows_can_be_given_as_they_are() -> None:
    for given in ({"custom_dataset": ROWS}, {"dataset": ROWS}):
        assert GRPOTrainerWrapper(given).dataset == "custom_dataset"
        config, used, _, _ = problems(**given)
        assert used == len(config.env_kwargs["tasks"]) == 6
    assert problems(custom_dataset=ROWS, split="train[:2]")[1] == 2
    with pytest.raises(DataError, match="truth"):
        problems(custom_dataset=[{"question": "Why?", "answer": "#### because"}])


def test_endless_problems_are_drawn() -> None:
    assert GRPOTrainerWrapper(env="ArithmeticTool-v0").dataset == "expert"
    config, used, available, _ = problems(env="ArithmeticTool-v0", max_samples=5)
    assert (used, available, len(config.env_kwargs["tasks"])) == (5, None, 5)


def test_nothing_to_save_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Call train\(\) first"):
        SFTTrainerWrapper(output_dir=tmp_path / "none").save_model()


def test_the_documents_names_are_known() -> None:
    assert set(SKELETON) | {"num_generations", "reward_config", "split"} <= set(GRPOTrainerWrapper.keys())
    with pytest.raises(UnknownNameError):
        SFTTrainerWrapper(monitors=())
