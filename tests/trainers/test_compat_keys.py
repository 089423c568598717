"""Every option of the founding document's four actions has an effect: one row for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import ConfigError
from trajgym.trainers.compat import RLTrainingTool
from trajgym.trainers.compat_evaluate import _arena
from trajgym.trainers.compat_options import EvaluateCall, GRPOCall, LoadCall, RewardCall, SFTCall, read_call
from trajgym.trainers.compat_trainers import GRPOTrainerWrapper, SFTTrainerWrapper
from trajgym.trainers.options import Options

ROWS = [{"question": f"{n} + 2?", "answer": f"It is {n + 2}. #### {n + 2}"} for n in range(6)]
MADE_UP = "ArithmeticTool-v0"
RUN, DATA = "test_compat.py::", "test_compat_data.py::"


def _load(**options: Any) -> Any:
    return RLTrainingTool().run({"action": "load_dataset", "max_samples": 3, **options})


def _reward(**options: Any) -> Any:
    return RLTrainingTool().run({"action": "create_reward", **options})["reward"]


def _model_name(**_: Any) -> None:
    with pytest.raises(ConfigError, match="/nowhere"):  # whose template is to write the rows
        _load(custom_dataset=ROWS, format="sft", model_name="/nowhere")


def _env_kwargs(**_: Any) -> None:
    one, other = (_load(env=MADE_UP, format="raw", env_kwargs={"difficulty": d})["fingerprint"] for d in (1, 4))
    assert one != other


def _penalty(**_: Any) -> None:
    reward = _reward(reward_type="length_penalty", target_length=77, penalty_weight=0.5)
    assert reward["length_penalty"] == {"weight": 1.0, "target_length": 77, "penalty_weight": 0.5}


def _reward_config(**_: Any) -> None:
    assert _reward(reward_type="step", reward_config={"step_bonus": 0.7})["step"]["step_bonus"] == 0.7


def _played(key: str, value: Any) -> Callable[..., None]:
    """The option decides how problems are played; what that means is tested where they are."""

    def check(**_: Any) -> None:
        usual, told = (
            _arena(read_call("evaluate", EvaluateCall, {"env": MADE_UP, **given})) for given in ({}, {key: value})
        )
        was, now = (getattr(a if key in ("seed", "temperature") else a.options, key) for a in (usual, told))
        assert now == value != was

    return check


def _protocol(**_: Any) -> None:
    arena = _arena(read_call("evaluate", EvaluateCall, {"env": MADE_UP, "protocol": "react"}))
    assert arena.arguments["protocol"] == "react"


def _optimizer(**_: Any) -> None:
    for wrapper in (SFTTrainerWrapper, GRPOTrainerWrapper):
        assert wrapper(model="tiny", optimizer="adamw").config == wrapper(model="tiny").config  # the only one there is
        with pytest.raises(ConfigError, match="optimizer must be 'adamw'"):
            wrapper(model="tiny", optimizer="sgd")


class Begun(Exception):
    """Carries the project that a run would be logged to."""


def _wandb_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **_: Any) -> None:
    def begin(*args: Any, **kwargs: Any) -> None:
        raise Begun(os.environ.get("WANDB_PROJECT"))

    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.setattr("trajgym.trainers.sft.train_sft", begin)
    monkeypatch.setattr("trajgym.trainers.grpo.train", begin)
    for wrapper in (SFTTrainerWrapper, GRPOTrainerWrapper):
        for project in ("mine", None):
            told = {"model": "tiny", "custom_dataset": ROWS, "output_dir": str(tmp_path / "run")}
            with pytest.raises(Begun) as begun:
                wrapper(told, wandb_project=project).train()
            assert begun.value.args == (project,)


Rows = Mapping[str, str | Callable[..., None]]
TRAINED = "test_compat_trainers.py::test_every_option_of_{}_has_an_effect"
OWN: Rows = {"optimizer": _optimizer, "wandb_project": _wandb_project}

CALLS: dict[type[Options], Rows] = {
    LoadCall: {
        **dict.fromkeys(("custom_dataset", "format"), RUN + "test_data"),
        **dict.fromkeys(("dataset", "env", "split"), DATA + "test_what_is_loaded_is_what_is_trained_on"),
        "env_kwargs": _env_kwargs,
        "max_samples": DATA + "test_the_first_rows_are_loaded",
        "model_name": _model_name,
        "seed": DATA + "test_seed_decides_what_is_made_up",
    },
    RewardCall: {
        **dict.fromkeys(("max_length", "reward_type", "step_bonus"), RUN + "test_rewards"),
        "penalty_weight": _penalty,
        "reward_config": _reward_config,
        "target_length": _penalty,
    },
    EvaluateCall: {
        **dict.fromkeys(
            ("custom_dataset", "k", "max_new_tokens", "max_samples", "metrics", "model_path", "return_details"),
            RUN + "test_evaluation",
        ),
        **dict.fromkeys(
            ("dataset", "env", "env_kwargs", "split"),
            DATA + "test_every_split_of_an_environments_own_problems_has_its_effect",
        ),
        "device": _played("device", "cpu"),
        "dtype": _played("dtype", "bfloat16"),
        "max_episode_tokens": _played("max_episode_tokens", 999),
        "protocol": _protocol,
        "seed": _played("seed", 3),
        "slots": _played("slots", 5),
        "temperature": _played("temperature", 0.3),
        "thinking": _played("thinking", True),
        "use_lora": RUN + "test_evaluation_without_adapters_is_of_the_base",
    },
    SFTCall: {
        **dict.fromkeys(SFTCall.model_fields, TRAINED.format("sft")),
        "custom_dataset": RUN + "test_only_what_was_trained_on_is_counted",
        **OWN,
    },
    GRPOCall: {
        **dict.fromkeys(GRPOCall.model_fields, TRAINED.format("grpo")),
        **dict.fromkeys(("custom_dataset", "dataset"), "test_compat_trainers.py::test_rows_can_be_given_as_they_are"),
        "reward_config": "test_compat_trainers.py::test_combined_reward_of_the_full_template",
        **OWN,
    },
}


@pytest.mark.parametrize("call", CALLS)
def test_there_is_a_row_for_every_key(call: type[Options]) -> None:
    assert set(CALLS[call]) == set(call.model_fields)


@pytest.mark.parametrize(("call", "key"), [(call, key) for call, rows in CALLS.items() for key in sorted(rows)])
def test_it_has_an_effect(
    call: type[Options],
    key: str,
    shown_in: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = CALLS[call][key]
    if isinstance(row, str):
        shown_in(row, key)
    else:
        row(tmp_path=tmp_path, monkeypatch=monkeypatch)
