"""Rewards by name, and everything else that stands for a rubric."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import trajgym.rewards as rewards
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.rewards import (
    REWARDS,
    TERMS,
    LengthPenalty,
    MathRewardFunction,
    Rubric,
    Schedule,
    StepReward,
    accuracy,
    get_reward_function,
    get_rubric,
    register_reward_function,
    register_rubric,
    register_term,
)
from trajgym.types import Action, Observation, Step, StopReason, Task

TASK = Task("sum", "48 + 24?", "72")
STEP = Step(Action("#### 72"), Observation(), terminated=True, stop_reason=StopReason.ANSWERED)
WEIGHTS = {
    "sparse": {"accuracy": 1.0},
    "dense": {"tool_success": 0.1},
    "hybrid": {"accuracy": 1.0, "tool_success": 0.1},
    "process": {"accuracy": 1.0, "milestone": 0.5},
    "shaped": {"accuracy": 1.0, "progress": 0.5},
    "tool_use": {"accuracy": 1.0, "needless_repeat": 0.05, "call_cost": 0.01, "result_used": 0.1},
    "accuracy": {"accuracy": 1.0},
    "length_penalty": {"accuracy": 1.0, "length_penalty": 1.0},
    "step": {"accuracy": 1.0, "step": 1.0},
    "combined": {"accuracy": 1.0, "length_penalty": 1.0, "step": 1.0},
    "math": {"accuracy": 1.0, "length_penalty": 0.5, "step": 0.3},
    "partial_credit": {"partial_credit": 1.0},
}


@pytest.fixture(autouse=True)
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REWARDS, "_items", dict(REWARDS))
    monkeypatch.setattr(TERMS, "_items", dict(TERMS))


def right(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    return [float(truth in text) for text, truth in zip(completions, answer, strict=True)]


@pytest.mark.parametrize("name", WEIGHTS)
def test_what_ships(name: str) -> None:
    assert get_rubric(name).weights == WEIGHTS[name]
    assert get_rubric(name) is not get_rubric(name)


def test_the_catalogue_is_complete() -> None:
    assert set(WEIGHTS) == set(REWARDS)
    table, terms = (rewards.__doc__ or "").split("The terms that")
    assert all(f"\n``{name}`` " in table for name in REWARDS)
    assert all(f"``{name}``" in terms for name in TERMS)


@pytest.mark.parametrize("name", [n for n in TERMS if n != "reward_model"])  # that one needs a trained model
def test_every_term_can_be_named(name: str) -> None:
    rubric = get_rubric({name: 0.5})
    assert rubric.weights == {name: 0.5}
    if name != "length_cost":  # needs token ids
        assert list(rubric.score(STEP, TASK, [])) == [name]


@pytest.mark.parametrize("name", [n for n in WEIGHTS if n != "dense"])
def test_environments_and_trainers_pay_the_same(name: str) -> None:
    env = gymnasium.make("trajgym:Arithmetic-v0", reward=name)
    _, info = env.reset(seed=0)
    truth = info["task"].answer
    for text, value in ((f"#### {truth}", 1.0), ("I give up.", 0.0)):
        env.reset(seed=0)
        paid = env.step(text)[1]
        assert get_reward_function(name)(completions=[text], ground_truth=[truth]) == [pytest.approx(paid)]
        assert paid == pytest.approx(value)


def test_what_grading_needs_is_at_hand() -> None:
    reading = rewards.read("#### 72")
    assert isinstance(reading, rewards.Reading)
    assert rewards.equal(reading.value, rewards.truth("72.0"))
    assert rewards.correct("#### 72", "72")
    assert rewards.grade("#### 72", "72", rewards.answer_kind(TASK)).correct
    assert rewards.read_expression("x + 1").tree is not None
    assert rewards.equal_expressions("x + 1", "1 + x")
    assert rewards.__all__ == sorted(rewards.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))


def test_importing_rewards_loads_nothing_slow() -> None:
    code = "import sys, trajgym.rewards; print(*({'sympy', 'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_options_of_a_name() -> None:
    assert get_rubric("step", step_bonus=0.2)(["Step 1: so\n#### 72"], answer=["72"]) == [1.2]
    assert get_rubric("math", step=0.0).weights == {"accuracy": 1.0, "length_penalty": 0.5}
    with pytest.raises(UnknownNameError, match=r"option of the reward 'step' 'step_bonas'\. Did you mean 'step_bonus'"):
        get_rubric("step", step_bonas=0.2)
    with pytest.raises(UnknownNameError, match="Known: none"):
        get_rubric("partial_credit", tiers=3)
    with pytest.raises(ConfigError, match="go with the name of a reward"):
        get_rubric(Rubric({}), step_bonus=0.2)


def test_everything_that_stands_for_a_rubric() -> None:
    rubric = Rubric({"right": (accuracy, 1.0)})
    assert get_rubric(rubric) is rubric
    assert get_rubric({"right": (accuracy, 1.0)}) == rubric
    assert get_rubric(StepReward).weights == get_rubric(StepReward()).weights == WEIGHTS["step"]
    assert get_rubric(MathRewardFunction, step=0.0).weights == WEIGHTS["length_penalty"]
    assert get_rubric(accuracy) == Rubric({"accuracy": (accuracy, 1.0)})
    assert get_rubric(LengthPenalty()).weights == {"LengthPenalty": 1.0}
    assert get_rubric(right).score(STEP, TASK, []) == {"right": 1.0}
    assert get_rubric({"mine": (right, 0.5)}).score(STEP, TASK, []) == {"mine": 0.5}


def test_gym_make_takes_them_all() -> None:
    for reward in ("math", StepReward, StepReward(), right, accuracy, {"accuracy": 1.0}, {"right": (right, 1.0)}):
        env = gymnasium.make("trajgym:Arithmetic-v0", reward=reward)
        _, info = env.reset(seed=0)
        assert env.step(f"#### {info['task'].answer}")[1] == 1.0
    with pytest.raises(UnknownNameError, match="Did you mean 'sparse'"):
        gymnasium.make("trajgym:Arithmetic-v0", reward="sparze")


def test_a_mapping_of_names_is_json() -> None:
    rubric = get_rubric(
        {
            "accuracy": 1,
            "step": {"weight": 0.3, "step_bonus": 0.2},
            "tool_success": [[0, 0.1], [0.5, 0]],
            "late": {"term": "length_penalty", "weight": [[0, 0], [1, 1]], "target_length": 3},
        }
    )
    assert rubric.weights == {"accuracy": 1.0, "step": 0.3, "tool_success": 0.1, "late": 0.0}
    assert rubric.at(0.25).weights == {"accuracy": 1.0, "step": 0.3, "tool_success": 0.05, "late": 0.25}
    assert rubric["tool_success"][1] == Schedule([(0.0, 0.1), (0.5, 0.0)])
    assert rubric.at(1.0).score(STEP, TASK, []) == {
        "accuracy": 1.0, "step": 0.0, "tool_success": 0.0, "late": pytest.approx(-0.004)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (3, "name or a Rubric"),
        (None, "name or a Rubric"),
        ([("right", accuracy)], "name or a Rubric"),
        (lambda step, task, history: 0.0, "name or a Rubric"),
        ("sparze", "Did you mean 'sparse'.*register_rubric.*register_reward_function"),
        ({"acuracy": 1.0}, "reward term 'acuracy'. Did you mean 'accuracy'.*register_term"),
        ({"step": {"step_bonus": 0.2}}, "'step' needs a weight"),
        ({"step": {"weight": 1.0, "step_bonas": 0.2}}, "option of the reward term 'step' 'step_bonas'"),
        ({"step": {"weight": "1"}}, "'step' must be a pair"),
        ({"step": "1"}, "'step' must be a pair"),
        ({"step": True}, "'step' must be a pair"),
        ({"step": None}, "'step' must be a pair"),
        ({"step": [[0.5, 1], [0.2, 1]]}, "must increase"),
        ({"step": (accuracy,)}, "pair"),
        ({"step": float("nan")}, "finite"),
        ({"step": {"weight": 1.0, "mode": "marker"}}, "Did you mean 'markers'"),
    ],
)
def test_everything_else_is_refused(reward: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_rubric(reward)


def test_rubrics_of_ones_own() -> None:
    register_rubric("mine", lambda: Rubric({"right": (accuracy, 3.0)}))
    assert get_rubric("mine").weights == {"right": 3.0}
    with pytest.raises(ConfigError, match="exists already"):
        register_rubric("mine", lambda: Rubric({}))
    register_rubric("mine", lambda: Rubric({}), replace=True)
    assert get_rubric("mine").weights == {}


def test_reward_functions_of_ones_own() -> None:
    assert register_reward_function("mine", right) is right
    assert get_rubric("mine").weights == {"mine": 1.0}
    assert get_reward_function("mine")(completions=["72", "73"], answer=["72", "72"]) == [1.0, 0.0]
    with pytest.raises(ConfigError, match="exists already"):
        register_reward_function("mine", lambda completions, **columns: [0.0])
    register_reward_function("mine", lambda completions, **columns: [7.0] * len(completions), clip=True, replace=True)
    assert get_reward_function("mine")(["72"]) == [1.0]
    with pytest.raises(ConfigError, match="reward function"):
        register_reward_function("other", lambda texts: [0.0])
    with pytest.raises(UnknownNameError, match="Did you mean 'mine'"):
        get_reward_function("mime")


def test_terms_of_ones_own() -> None:
    register_term("brief", lambda most=10: lambda step, task, history: float(len(step.action.text) < most))
    assert get_rubric({"brief": 0.5}).score(STEP, TASK, []) == {"brief": 0.5}
    assert get_rubric({"brief": {"weight": 0.5, "most": 3}}).score(STEP, TASK, []) == {"brief": 0.0}
    with pytest.raises(ConfigError, match="exists already"):
        register_term("brief", lambda: accuracy)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("def entry(): return Rubric({'right': (accuracy, 4.0)})", "{'right': 4.0}"),
        ("entry = Rubric({'right': (accuracy, 4.0)})", "{'right': 4.0}"),
        ("def entry(completions, **columns): return [0.5 for _ in completions]", "{'mine': 1.0}"),
        ("entry = accuracy", "{'mine': 1.0}"),
        ("from trajgym.rewards import StepReward as entry", "{'accuracy': 1.0, 'step': 1.0}"),
        ("def entry(): return {'step': 0.5}", "{'step': 0.5}"),
    ],
    ids=["maker", "rubric", "function", "term", "class", "mapping"],
)
def test_installed_packages_add_rewards(tmp_path: Path, code: str, shown: str) -> None:
    """In a fresh interpreter, with a package on its path that has an entry point."""
    (tmp_path / "theirs.py").write_text(f"from trajgym.rewards import Rubric, accuracy\n{code}\n")
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[trajgym.rewards]\nmine = theirs:entry\n")
    setup = f"import sys; sys.path.append({str(tmp_path)!r}); from trajgym.rewards import get_rubric"
    command = [sys.executable, "-c", f"{setup}; print(get_rubric('mine').weights)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (f"{shown}\n", "")
