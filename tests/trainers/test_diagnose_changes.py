"""What is proposed: bounded steps, with the reason where they stop, that the configuration accepts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trajgym.errors import ConfigError
from trajgym.trainers import diagnose_changes as changes
from trajgym.trainers.config import load_config
from trajgym.trainers.diagnose_changes import Change, Move, model_size

MOVES: dict[str, Move] = {
    name: move for name, move in vars(changes).items() if name.isupper() and callable(move) and name in changes.__all__
}


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("tiny", 923e3), ("Qwen/Qwen3-0.6B", 0.6e9), ("HuggingFaceTB/SmolLM2-135M-Instruct", 135e6),
        ("runs/a/model", None), ("meta-llama/Llama-3.1-8B", 8e9), ("Qwen/Qwen3-30B-A3B", 30e9), ("", None),
        ("models/7batch", None),
    ],
)  # fmt: skip
def test_the_size_of_a_model_is_read_from_its_name(model: str, size: float | None) -> None:
    assert model_size({"model": model}) == size
    assert model_size({"model": model, "model_parameters": 5}) == 5


@pytest.mark.parametrize(
    ("options", "to", "reason"),
    [
        ({"model": "a-0.6B", "learning_rate": 1e-6}, 5e-6, False),
        ({"model": "a-0.6B", "learning_rate": 1e-5}, 1e-5, True),  # capped, and says why
        ({"model": "a-0.6B", "learning_rate": 5e-6}, 1e-5, True),
        ({"model": "somewhere/model", "learning_rate": 1e-5}, 1e-5, True),  # nobody knows its size
        ({"model": "a-0.6B", "learning_rate": 1e-5, "use_lora": True}, 5e-5, False),
        ({"model": "a-8B", "learning_rate": 1e-5}, 5e-5, False),
        ({"model": "a-8B", "learning_rate": 2e-5}, 5e-5, True),
        ({"model": "a-0.6B", "learning_rate": 1e-4}, 1e-4, True),  # never lowered by a rule that would raise it
        ({"model": "tiny", "learning_rate": 1e-4}, 5e-4, False),
    ],
)
def test_the_learning_rate_is_raised_with_care(options: dict[str, Any], to: float, reason: bool) -> None:
    change = changes.RAISE_RATE(options)
    assert change is not None
    assert change.to == pytest.approx(to)
    assert bool(change.reason) is reason
    assert ("stays at" in str(change)) is (change.now == change.to)
    if reason and options["model"] != "a-8B":
        assert "under 1B parameters" in change.reason


@pytest.mark.parametrize(("now", "to"), [(0.0, 0.05), (0.01, 0.05), (0.05, 0.1), (0.3, 0.4), (0.4, None), (0.9, None)])
def test_the_kl_coefficient_is_raised_below_what_is_too_large(now: float, to: float | None) -> None:
    change = changes.RAISE_KL({"kl_coef": now})
    assert (change and change.to) == to


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())
def test_what_is_not_known_is_not_changed(move: Move) -> None:
    assert move({}) is None


def _with_algorithm(values: dict[str, Any]) -> dict[str, Any]:
    """Let gae be that of ppo, which alone has a value model."""
    if values["estimator"] == "gae":
        return {**values, "algorithm": "ppo"}
    return {name: value for name, value in values.items() if name != "value_epochs"}


VALID = st.fixed_dictionaries(
    {
        "learning_rate": st.floats(1e-7, 1e-3), "kl_coef": st.floats(0, 1), "num_generations": st.integers(2, 16),
        "groups_per_update": st.integers(8, 64), "minibatches": st.integers(1, 8), "inner_epochs": st.integers(1, 8),
        "max_turn_tokens": st.integers(100, 600), "max_episode_tokens": st.integers(601, 4000),
        "use_lora": st.booleans(),
        "overlong_penalty": st.sampled_from([0.0, 0.5]), "overlong_buffer": st.integers(1, 128),
        "microbatch_tokens": st.integers(1, 20000), "temperature": st.floats(0.1, 2), "value_epochs": st.integers(1, 9),
        "estimator": st.sampled_from(["return_to_go", "vine", "gae"]), "max_grad_norm": st.floats(0.01, 10),
        "kl_form": st.sampled_from(["k3_ratio", "k1_in_reward"]), "dynamic_sampling": st.sampled_from([0, 2]),
    }
).map(_with_algorithm)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(VALID)
def test_what_is_proposed_is_accepted_and_moves(values: dict[str, Any]) -> None:
    try:
        options = load_config({"updates": 1, **values}).plain()
    except ConfigError:  # such as two options that exclude each other
        assume(False)
    for name, move in MOVES.items():
        change = move(options)
        if change is None:
            continue
        load_config(options | {change.option: change.to})
        assert change.now == options[change.option]
        assert name == "RAISE_RATE" or change.to != change.now
        if name.startswith(("RAISE", "MORE", "LONGER")):
            assert change.to >= change.now
        if name.startswith(("LOWER", "FEWER", "SHORTER", "SMALLER")):
            assert change.to < change.now


def test_a_change_in_words() -> None:
    assert str(Change("dtype", "float32", "bfloat16")) == "dtype float32 → bfloat16"
    assert str(Change("deterministic", True, False)) == "deterministic true → false"
    assert str(Change("kl_coef", 0.4, 0.4, "large enough")) == "kl_coef stays at 0.4 (large enough)"
