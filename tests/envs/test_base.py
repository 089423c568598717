"""The environment contract: Gymnasium's meaning of every word, and no string that breaks it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.envs.base import ToolEnv
from trajgym.envs.tools import tool
from trajgym.errors import ConfigError, EpisodeError, RewardError, UnknownNameError
from trajgym.rewards import Rubric, accuracy
from trajgym.types import Message, Step, StopReason, Task

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "%s"}}\n</tool_call>'
TASK = Task("sum", "48 + 24?", "72", difficulty=2)


def make(**kwargs: Any) -> ToolEnv:
    return ToolEnv([TASK], **{"tools": ["calculator"], **kwargs})


def started(**kwargs: Any) -> ToolEnv:
    env = make(**kwargs)
    env.reset(seed=0)
    return env


def test_the_first_observation_is_the_prompt() -> None:
    env = make()
    text, info = env.reset(seed=0)
    assert info["task"] == TASK
    assert [m.role for m in info["messages"]] == ["system", "user"]
    assert text == "\n\n".join(m.content for m in info["messages"])
    assert "calculator" in text
    assert text.endswith("48 + 24?")


def test_calling_and_answering() -> None:
    env = started()
    text, reward, terminated, truncated, info = env.step(CALL % "48+24")
    assert (text, reward, terminated, truncated) == ("72", 0.1, False, False)
    assert info["stop_reason"] is None
    assert info["messages"][-1] == Message("tool", "72", name="calculator", call_id="call_0")
    text, reward, terminated, truncated, info = env.step("So it is\n#### 72")
    assert (text, reward, terminated, truncated) == ("", 1.0, True, False)
    assert info["stop_reason"] is StopReason.ANSWERED
    assert info["messages"] == env.messages
    assert isinstance(info["step"], Step)


@pytest.mark.parametrize(
    ("reward", "expected"), [("sparse", [0.0, 0.0, 1.0]), ("dense", [0.1, 0.0, 0.0]), ("hybrid", [0.1, 0.0, 1.0])]
)
def test_reward_modes(reward: str, expected: list[float]) -> None:
    env = started(reward=reward)
    got = [env.step(a) for a in (CALL % "48+24", CALL % "1/0", "#### 72")]
    assert [r for _, r, *_ in got] == expected
    for _, r, _, _, info in got:
        assert sum(info["reward_terms"].values()) == pytest.approx(r)


def test_a_rubric_of_ones_own() -> None:
    terms = {"accuracy": (accuracy, 2.0), "brief": (lambda s, task, history: float(len(s.action.text) < 10), 0.5)}
    for reward in (terms, Rubric(terms)):
        _, total, _, _, info = started(reward=reward).step("#### 72")
        assert total == 2.5
        assert info["reward_terms"] == {"accuracy": 2.0, "brief": 0.5}


def test_a_term_that_fails_is_named() -> None:
    env = started(reward={"broken": (lambda s, t, h: 1 / 0, 1.0)})
    with pytest.raises(RewardError, match="'broken' raised ZeroDivisionError"):
        env.step("#### 72")
    for value in (float("nan"), float("inf"), "1", None, 1j):
        env = started(reward={"odd": (lambda s, t, h, v=value: v, 1.0)})
        with pytest.raises(RewardError, match="finite number"):
            env.step("#### 72")


def test_nothing_is_paid_twice() -> None:
    env = started()
    assert env.step("#### 72")[1] == 1.0
    with pytest.raises(EpisodeError, match="over"):
        env.step("#### 72")
    env.reset(seed=0)
    paid = [env.step(CALL % "48+24")[1] for _ in range(3)]
    assert paid == [0.1, 0.0, 0.0]


def test_calling_for_the_sake_of_calling_is_capped_by_what_the_task_needs() -> None:
    env = started(max_turns=20)
    paid = [env.step(CALL % f"{i}+1")[1] for i in range(10)]
    assert sum(paid) == pytest.approx(0.1 * 2)


def test_answers_in_tool_output_or_in_a_cut_dialogue_are_not_answers() -> None:
    env = started(max_turns=2)
    assert env.step(CALL % "72")[1] == 0.1
    _, _, terminated, truncated, info = env.step(CALL % "48+24")
    assert (terminated, truncated, info["stop_reason"]) == (False, True, StopReason.MAX_TURNS)
    assert "accuracy" in info["reward_terms"]
    assert info["reward_terms"]["accuracy"] == 0.0
    env.reset(seed=0)
    env.step(CALL % "72")
    assert env.step("I have no idea.")[1] == 0.0


def test_invalid_calls_end_the_episode_only_in_a_row() -> None:
    env = started(max_invalid=2, max_turns=20)
    bad = "<tool_call>\n{broken"
    text, reward, terminated, _, info = env.step(bad)
    assert text.startswith("Error (")
    assert (reward, terminated) == (0.0, False)
    assert info["step"].error is not None
    env.step(CALL % "1+1")
    assert not env.step(bad)[2]
    _, _, terminated, truncated, info = env.step(bad)
    assert (terminated, truncated, info["stop_reason"]) == (True, False, StopReason.INVALID_CALLS)


def test_good_siblings_of_a_bad_call_run() -> None:
    env = started()
    text = env.step(CALL % "1+1" + "\n" + '<tool_call>\n{"name": "nope", "arguments": {}}\n</tool_call>')[0]
    assert text.startswith("2\n\nError (unknown_tool)")


def test_one_turn_environments_grade_the_first_action() -> None:
    env = gymnasium.make("Arithmetic-v0")
    _, info = env.reset(seed=3)
    assert "calculator" not in info["messages"][0].content
    _, reward, terminated, truncated, _ = env.step(f"#### {info['task'].answer}")
    assert (reward, terminated, truncated) == (1.0, True, False)


def test_seeds_decide_everything_and_global_generators_nothing() -> None:
    env = gymnasium.make("ArithmeticTool-v0")
    random.seed(1)
    np.random.seed(1)
    state, legacy = random.getstate(), np.random.get_state()[1].copy()
    first = [env.reset(seed=s)[1]["task"].id for s in range(5)]
    assert [env.reset(seed=s)[1]["task"].id for s in range(5)] == first
    assert len(set(first)) == 5
    env.reset(seed=9)
    follow = [env.reset()[1]["task"].id for _ in range(3)]
    env.reset(seed=9)
    assert [env.reset()[1]["task"].id for _ in range(3)] == follow
    env.reset(seed=9, options={"task": first[0]})  # choosing a task leaves the sequence behind it as it was
    assert [env.reset()[1]["task"].id for _ in range(3)] == follow
    assert random.getstate() == state
    assert (np.random.get_state()[1] == legacy).all()


def test_tasks_by_id_or_as_objects() -> None:
    env = make()
    other = Task("other", "1?", "1")
    assert env.reset(options={"task": "sum"})[1]["task"] is TASK
    assert env.reset(options={"task": other})[1]["task"] is other
    with pytest.raises(UnknownNameError, match="Did you mean 'sum'"):
        env.reset(options={"task": "som"})
    with pytest.raises(UnknownNameError, match="reset option 'tsak'"):
        env.reset(options={"tsak": "sum"})


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"rewrad": "sparse"}, "Did you mean 'reward'"),
        ({"reward": "hybird"}, "Did you mean 'hybrid'"),
        ({"reward": 3}, "name or a Rubric"),
        ({"protocol": "hermse"}, "Did you mean 'hermes'"),
        ({"tools": ["calculater"]}, "Did you mean 'calculator'"),
        ({"tools": "calculator"}, "list of names"),
        ({"tools": ["calculator", "calculator"]}, "calculator"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_turns": True}, "max_turns"),
        ({"max_invalid": 1.5}, "max_invalid"),
        ({"instructions": "short"}, "instructions"),
        ({"tasks": []}, "task"),
        ({"reward": {"a": 1.0}}, "pair"),
        ({"reward": {"a": (len, "1")}}, "weight"),
    ],
)
def test_wrong_arguments_say_what_is_right(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gymnasium.make("ArithmeticTool-v0", **kwargs)


def test_known_arguments_are_listed_for_families_too() -> None:
    with pytest.raises(UnknownNameError, match=r"difficulty.*distractors"):
        gymnasium.make("ArithmeticTool-v0", dificulty=3)


def test_out_of_order_use() -> None:
    with pytest.raises(EpisodeError, match="before reset"):
        make().step("x")
    with pytest.raises(ConfigError, match="one assistant turn"):
        started().step(7)  # type: ignore[arg-type]
    env = started()
    env.close()
    env.close()
    with pytest.raises(EpisodeError):
        env.step("x")


def test_system_messages() -> None:
    assert make(system="").prompt(TASK) == (Message("user", "48 + 24?"),)
    described = make(system="Be brief. {tools}").prompt(TASK)[0].content
    assert described.startswith("Be brief. ")
    assert "calculator" in described
    assert "calculator" not in make(instructions="none").prompt(TASK)[0].content
    assert len(make(instructions="signature").system) < len(make(instructions="schema").system)


def test_rendering(capsys: pytest.CaptureFixture[str]) -> None:
    env = started(render_mode="ansi")
    env.step(CALL % "48+24")
    env.step("#### 72")
    page = env.render()
    assert page is not None
    for part in ("user      │ 48 + 24?", "calculator│ 72", "reward 0.1 (tool_success +0.1)", "[answered]"):
        assert part in page
    assert capsys.readouterr().out == ""
    env = started(render_mode="human")
    env.step("#### 72")
    assert "reward 1 (accuracy +1)  [answered]" in capsys.readouterr().out
    assert env.render() is None


def test_stateful_tools_live_one_episode() -> None:
    log: list[str] = []

    @tool
    class counter:  # noqa: N801
        """Count calls."""

        def open(self, seed: int) -> None:
            self.count = 0
            log.append("open")

        def __call__(self) -> str:
            """Add one."""
            self.count += 1
            return str(self.count)

        def close(self) -> None:
            log.append("close")

    env = make(tools=[counter])
    for _ in range(2):
        env.reset()
        for expected in ("1", "2"):
            assert env.step('<tool_call>\n{"name": "counter", "arguments": {}}\n</tool_call>')[0] == expected
    env.step("#### 1")
    env.close()
    assert log.count("open") == log.count("close") == 2


@settings(max_examples=150)
@given(
    st.lists(
        st.text() | st.sampled_from([CALL % "1+1", CALL % "9**9**9", "<tool_call>", "#### 72", "\ud800"]), max_size=5
    )
)
def test_any_string_is_a_legal_action(actions: list[str]) -> None:
    env = make()
    env.reset(seed=0)
    for action in actions:
        assert action in env.action_space
        text, reward, terminated, truncated, info = env.step(action)
        assert text in env.observation_space
        assert 0.0 <= reward <= 1.0
        assert sum(info["reward_terms"].values()) == pytest.approx(reward)
        assert not (terminated and truncated)
        assert (info["stop_reason"] is not None) == (terminated or truncated)
        if terminated or truncated:
            env.reset()


def test_gymnasium_wrappers() -> None:
    env = RecordEpisodeStatistics(TimeLimit(gymnasium.make("ArithmeticTool-v0", difficulty=3), 2))
    _, info = env.reset(seed=1)
    moves = env.unwrapped.expert(info["task"])  # type: ignore[attr-defined]
    assert env.step(moves[0])[2:4] == (False, False)
    _, _, terminated, truncated, info = env.step(moves[1])
    assert (terminated, truncated) == (False, True)
    assert info["episode"]["r"] == pytest.approx(0.2)
    assert info["episode"]["l"] == 2


@pytest.mark.parametrize("mode", ["sync", "async", "vector_entry_point"])
def test_vector_environments_give_the_same_as_single_ones(mode: str) -> None:
    vector = gymnasium.make_vec("ArithmeticTool-v0", num_envs=3, vectorization_mode=mode, difficulty=2)
    singles = [gymnasium.make("ArithmeticTool-v0", difficulty=2) for _ in range(3)]
    try:
        texts, infos = vector.reset(seed=5)
        expected = [env.reset(seed=5 + i) for i, env in enumerate(singles)]
        assert tuple(texts) == tuple(text for text, _ in expected)
        plays = [env.unwrapped.expert(info["task"]) for env, (_, info) in zip(singles, expected, strict=True)]  # type: ignore[attr-defined]
        for turn in range(3):
            actions = tuple(play[turn] for play in plays)
            texts, rewards, terminated, truncated, infos = vector.step(actions)
            alone = [env.step(action) for env, action in zip(singles, actions, strict=True)]
            assert tuple(texts) == tuple(a[0] for a in alone)
            np.testing.assert_allclose(rewards, [a[1] for a in alone])
            assert list(terminated) == [a[2] for a in alone]
            assert list(truncated) == [False] * 3
            assert [s.action.text for s in infos["step"]] == list(actions)
            np.testing.assert_allclose(
                infos["reward_terms"]["tool_success"], [a[4]["reward_terms"]["tool_success"] for a in alone]
            )
    finally:
        vector.close()


def test_a_turn_that_a_budget_cut_runs_nothing_and_is_scored() -> None:
    seen: list[Step] = []

    def refund(step: Step, task: Task, history: Sequence[Step]) -> float:
        seen.append(step)
        return -0.5 if step.stop_reason is StopReason.TURN_TOKENS else 0.5

    env = ToolEnv([Task("a", "1+1?", "2")], tools=["calculator"], reward={"kept": (refund, 1.0)})
    env.reset(seed=0)
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
    assert env.step(call)[1] == 0.5
    text, reward, terminated, truncated, info = env.cut(call, StopReason.TURN_TOKENS)
    assert (text, reward, terminated, truncated) == ("", -0.5, False, True)
    assert info["stop_reason"] is StopReason.TURN_TOKENS
    assert (info["step"].results, info["step"].action.calls) == ((), ())
    assert info["messages"][-1].content == call
    assert len(seen) == 2
    for again in (lambda: env.cut("x", StopReason.TURN_TOKENS), lambda: env.step("x")):
        with pytest.raises(EpisodeError, match="over"):
            again()
