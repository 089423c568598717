"""Which tool, when, in what order: the office, its questions, and what choosing pays."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from trajgym.envs.check import check_env
from trajgym.envs.choice import ToolChoiceEnv
from trajgym.envs.choice_office import BLOCK, CATALOGUE, ITEMS, Office, office_tools
from trajgym.envs.choice_tasks import ChoiceTasks, tools_needed
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.evaluation.audit import audit
from trajgym.types import ExpertTurn, StopReason, Task, ToolCall

DEEP = ChoiceTasks("train", 12).get("choice/train/12/3/1")


def call(name: str, **arguments: str) -> ToolCall:
    return ToolCall(name, arguments)


def play(env: ToolChoiceEnv, turns: list[ExpertTurn], task: Task) -> tuple[list[float], StopReason | None, list[str]]:
    env.reset(seed=0, options={"task": task})
    rewards, stop, shown = [], None, []
    for turn in turns:
        text, reward, _, _, info = env.step(env.protocol.render_turn(turn))
        rewards.append(reward)
        shown.append(text)
        stop = info["stop_reason"]
    return rewards, stop, shown


def test_sixty_tools_of_distinct_use() -> None:
    assert len(set(CATALOGUE)) == 60
    tools = office_tools(60)
    assert len({tool.description for tool in tools}) == 60
    for i in range(0, 60, BLOCK):
        enter, code, box = CATALOGUE[i + 3 : i + BLOCK]
        place = enter.removeprefix("enter_")
        assert (code, box) == (f"{place}_code", f"{place}_box")
        assert all(name.startswith("get_") for name in CATALOGUE[i : i + 3])


@pytest.mark.parametrize("count", [1, 3, 5, 6, 7, 13, 60])
@pytest.mark.parametrize(("reward", "gained"), [("sparse", 0.0), ("dense", 0.0), ("hybrid", 0.2)])
def test_demonstrations_earn_everything_among_any_number_of_tools(count: int, reward: str, gained: float) -> None:
    env = ToolChoiceEnv(tools_count=count, reward=reward)
    for seed in range(20):
        task = env.tasks.sample(np.random.default_rng(seed))
        calls = sum(len(turn.calls) for turn in task.solution)
        cost = 0.02 * calls if reward == "hybrid" else 0.0
        rewards, stop, _ = play(env, list(task.solution), task)
        assert (sum(rewards), stop) == (pytest.approx(1.0 + gained - cost), StopReason.ANSWERED)
        assert task.difficulty == calls


def test_what_depends_on_another_tool_says_which() -> None:
    enter, code, box = (turn.calls[0] for turn in DEEP.solution[:3])
    _, _, shown = play(ToolChoiceEnv(), [ExpertTurn(calls=(code,)), ExpertTurn(calls=(box,))], DEEP)
    assert all(f"Call {enter.name} first." in text for text in shown)
    _, _, shown = play(
        ToolChoiceEnv(), [ExpertTurn(calls=(enter,)), ExpertTurn(calls=(call(box.name, code="1"),))], DEEP
    )
    assert shown[1] == "There is no box '1'."
    wrong = call(code.name, item="moon")
    _, _, shown = play(ToolChoiceEnv(), [ExpertTurn(calls=(enter,)), ExpertTurn(calls=(wrong,))], DEEP)
    assert shown[1] == "There is no item 'moon'."


def test_the_calls_of_one_turn_act_in_their_order() -> None:
    calls = tuple(c for turn in DEEP.solution for c in turn.calls)
    rewards, _, _ = play(ToolChoiceEnv(), [ExpertTurn(calls=calls), DEEP.solution[-1]], DEEP)
    assert rewards == pytest.approx([0.2 - 0.06, 1.0])
    rewards, _, _ = play(ToolChoiceEnv(), [ExpertTurn(calls=calls[::-1])], DEEP)
    assert rewards == pytest.approx([-0.06]), "a turn with calls that fail is not paid"


def test_what_is_no_choice_is_not_paid() -> None:
    env = ToolChoiceEnv(tools_count=3, difficulty=1)
    task = env.tasks.sample(np.random.default_rng(0))
    (right,) = task.solution[0].calls
    every = tuple(call(name, item=right.arguments["item"]) for name in env.tools)
    assert play(env, [ExpertTurn(calls=every)], task)[0] == pytest.approx([-0.06])
    other = next(c for c in every if c.name != right.name)
    assert play(env, [ExpertTurn(calls=(other,)), ExpertTurn(calls=(right,))], task)[0] == pytest.approx([-0.02, 0.18])
    assert play(env, [ExpertTurn(calls=(right,))] * 3, task)[0] == pytest.approx([0.18, -0.02, -0.02])


def test_dense_pay_is_taken_back_unless_the_answer_is_right() -> None:
    rewards, _, _ = play(ToolChoiceEnv(reward="dense"), [*DEEP.solution[:-1], ExpertTurn("#### 1")], DEEP)
    assert rewards[0] == pytest.approx(0.5 / 3)
    assert sum(rewards) == pytest.approx(0.0)


def test_no_tool_is_needed_where_the_question_says_the_answer() -> None:
    env = ToolChoiceEnv(difficulty=0)
    task = env.tasks.sample(np.random.default_rng(0))
    assert task.answer in task.question
    assert play(env, list(task.solution), task)[0] == pytest.approx([1.0])
    name, item = task.metadata["tool"], task.metadata["item"]
    assert sum(play(env, [ExpertTurn(calls=(call(name, item=item),)), task.solution[-1]], task)[0]) < 1.0


@pytest.mark.parametrize("reward", ["sparse", "dense", "hybrid"])
@pytest.mark.parametrize(("count", "levels"), [(3, (0, 1)), (12, (1, 3)), (60, 3)])
def test_the_contract_holds_and_no_exploit_pays(reward: str, count: int, levels: Any) -> None:
    options = {"reward": reward, "tools_count": count, "difficulty": levels}
    if count == 12:
        check_env(gymnasium.make("ToolChoice-v0", **options), skip_render_check=True)
    result = audit(lambda: ToolChoiceEnv(**options), tasks=10)
    assert result.passed, result.findings
    assert result.leaks == ()


def test_a_clone_goes_on_by_itself() -> None:
    env = ToolChoiceEnv()
    env.reset(seed=0, options={"task": DEEP})
    enter, *others = env.expert(DEEP)
    twin = env.clone()
    env.step(enter)
    assert "first" in twin.step(others[0])[0]
    after = env.clone()
    assert [env.step(turn)[:2] for turn in others] == [after.step(turn)[:2] for turn in others]


def test_other_tools_run_beside_those_of_the_office() -> None:
    env = ToolChoiceEnv(tools=("calculator", *office_tools(3)), tools_count=3)
    task = env.tasks.sample(np.random.default_rng(0))
    both = ExpertTurn(calls=(call("calculator", expression="1+1"), *task.solution[0].calls))
    assert play(env, [both], task)[2] == [f"2\n\n{task.answer}"]


def test_tasks_are_seeded_named_and_split() -> None:
    train, test = ChoiceTasks("train", 60), ChoiceTasks("test", 60)
    drawn, held_out = ([source.sample(np.random.default_rng(i)) for i in range(60)] for source in (train, test))
    assert all(train.get(task.id) == task for task in drawn)
    asked = [{(task.metadata["tool"], task.metadata["item"]) for task in tasks} for tasks in (drawn, held_out)]
    assert not asked[0] & asked[1]
    for wrong in ("choice/test/60/1/0", "choice/train/12/1/0", "choice/train/60/0/1", "choice/train/60/1/x", ""):
        with pytest.raises(UnknownNameError):
            train.get(wrong)
    assert all(Office(s).number("get_price", ITEMS[0]).isdigit() for s in range(5))


def test_bounds() -> None:
    assert ChoiceTasks(tools_count=3).difficulty == (1, 1)
    assert ChoiceTasks(tools_count=5).difficulty == (1, 2)
    assert [tools_needed(level) for level in range(4)] == [1, 1, 5, 6]
    bounds: list[dict[str, Any]] = [{"tools_count": 0}, {"tools_count": 61}, {"tools_count": True}, {"difficulty": 4}]
    for options in [*bounds, {"tools_count": 5, "difficulty": 3}, {"difficulty": (2, 1)}]:
        with pytest.raises(ConfigError):
            ToolChoiceEnv(**options)
    for named in ({"split": "tset"}, {"reward": "hybird"}, {"tool_count": 3}):
        with pytest.raises(UnknownNameError):
            ToolChoiceEnv(**named)  # type: ignore[arg-type]
    for office in (None, "x", True, 1.5):
        with pytest.raises(ConfigError, match="holds no office"):
            ToolChoiceEnv().reset(options={"task": Task("t", "?", "1", metadata={"office": office})})
