"""Mending files: what pays is a file that passes hidden tests, and nothing that looks like it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from trajgym.envs.check import check_env
from trajgym.envs.debug import DebugEnv
from trajgym.envs.debug_desk import DOCS, Desk, results
from trajgym.envs.debug_programs import BUG_KINDS, PROGRAMS
from trajgym.envs.debug_tasks import DebugTasks, _function
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.evaluation.audit import audit
from trajgym.types import ExpertTurn, StopReason, Task, ToolCall

# sum_multiples of 3, which forgets the last number
SOURCE = PROGRAMS["sum_multiples"].wrong(PROGRAMS["sum_multiples"].bugs[0], 3)
TASK = Task(
    "t",
    "sum_multiples must return the sum of the multiples of 3 up to n. What is sum_multiples(12) then?",
    "30",
    metadata={
        "program": {
            "function": "sum_multiples",
            "spec": "the sum of the multiples of 3 up to n",
            "source": SOURCE,
            "visible": [{"arguments": [n], "expected": e} for n, e in ((3, 3), (4, 3), (9, 18))],
            "hidden": [{"arguments": [n], "expected": e} for n, e in ((6, 9), (7, 9), (15, 45))],
            "passing": 1,
        }
    },
)


def call(name: str, **arguments: Any) -> ExpertTurn:
    return ExpertTurn(calls=(ToolCall(name, arguments),))


def replace(line: int, text: str) -> ExpertTurn:
    return call("replace_line", line=line, text=text)


MEND = replace(3, "    for number in range(1, n + 1):")
TEST, ANSWER = call("run_tests"), ExpertTurn("#### 30")


def play(env: DebugEnv, turns: list[ExpertTurn], task: Task = TASK) -> tuple[list[float], StopReason | None, list[str]]:
    env.reset(seed=0, options={"task": task})
    rewards, stop, shown = [], None, []
    for turn in turns:
        text, reward, _, _, info = env.step(env.protocol.render_turn(turn))
        rewards.append(reward)
        shown.append(text)
        stop = info["stop_reason"]
    return rewards, stop, shown


@pytest.mark.parametrize(
    ("reward", "paid"),
    [("sparse", [0.0, 0.0, 0.0, 1.0]), ("dense", [0.0, 0.0, 1.0, 0.0]), ("hybrid", [0.0, 0.0, 0.1, 1.0])],
)
def test_what_mending_pays(reward: str, paid: list[float]) -> None:
    assert play(DebugEnv(reward=reward), [TEST, MEND, TEST, ANSWER])[:2] == (pytest.approx(paid), StopReason.ANSWERED)


def test_demonstrations_earn_everything_and_each_step_of_theirs_works() -> None:
    env, source = DebugEnv(), DebugTasks("test")
    for seed in range(12):
        task = source.get(f"debug/test/{seed}")
        rewards, stop, _ = play(env, list(task.solution), task)
        assert (sum(rewards), stop) == (pytest.approx(1.1), StopReason.ANSWERED)
        assert all(result.error is None for step in env._steps for result in step.results)


def test_a_right_number_without_a_right_file_pays_nothing() -> None:
    assert play(DebugEnv(), [ANSWER])[0] == [0.0]
    assert play(DebugEnv(), [MEND, ExpertTurn("#### 31")])[0] == [0.0, 0.0]
    for reward in ("dense", "hybrid"):
        rewards, _, _ = play(DebugEnv(reward=reward), [MEND, TEST, ExpertTurn("#### 31")])
        assert sum(rewards) == pytest.approx(0.0 if reward == "dense" else 0.1)


def test_gains_are_paid_once_and_only_by_reports() -> None:
    worse = replace(3, "    for number in range(1, n):")
    rewards, _, _ = play(DebugEnv(), [MEND, TEST, TEST, worse, TEST, MEND, TEST])
    assert rewards == pytest.approx([0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    "line",
    [
        "    return {3: 3, 4: 3, 9: 18, 12: 30}.get(n, 0)",  # knows the shown tests and the question
        "    print(30, 9, 9, 45)",
        "    import os; os._exit(0)",
        "    raise SystemExit(0)",
        "    global repr; repr = lambda value: '9'; return 9",
        "    global print; print = lambda *a: None; return 9",
        "    import sys; sys.stdout.write('9\\n9\\n45\\n'); return 0",
        "    while True: pass",
        "    return type('Any', (int,), {'__eq__': lambda s, o: True, '__repr__': lambda s: '9'})()",
        "    this is no Python",
        "    return [n, 'x' * 1000000]",
    ],
)
def test_no_trick_in_the_file_passes_for_a_mended_one(line: str) -> None:
    rewards, stop, shown = play(DebugEnv(reward="sparse"), [replace(2, line), TEST, ANSWER])
    assert (rewards, stop) == ([0.0, 0.0, 0.0], StopReason.ANSWERED)
    assert "of 3 tests pass." in shown[1]


def test_what_is_expected_never_reaches_the_interpreter() -> None:
    """A file that shows everything it can see of the code that runs it sees arguments, and no results."""
    peek = "import inspect, sys\ndef sum_multiples(n):\n    return [sys._getframe(1).f_globals.get('expected'), 0][0]"
    desk = Desk.of(TASK)
    desk.lines = peek.split("\n")
    assert desk.passed(desk.hidden) == 0
    assert results(peek, ("sum_multiples(6)",)) == ("None",)


def test_reports_and_values() -> None:
    _, _, shown = play(DebugEnv(), [call("read_file"), TEST, call("evaluate", expression="sum_multiples(9) + 1")])
    assert shown[0].split("\n")[2] == "3     for number in range(1, n):"
    assert shown[1] == ("1 of 3 tests pass.\nsum_multiples(3) gave 0, not 3.\nsum_multiples(9) gave 9, not 18.")
    assert shown[2] == "10"
    _, _, shown = play(DebugEnv(), [replace(1, "def sum_multiples(n)"), TEST])
    assert shown[1].startswith("0 of 3 tests pass. The file does not run: SyntaxError")
    _, _, shown = play(DebugEnv(), [replace(5, "            total += missing"), TEST])
    assert "sum_multiples(9) gave NameError, not 18." in shown[1]


@pytest.mark.parametrize(
    ("turn", "error", "words"),
    [
        (call("docs", topic="love"), "not_found", "Topics: sum_multiples, range"),
        (replace(0, "x"), "no_line", "lines 1 to 6"),
        (replace(7, "x"), "no_line", "lines 1 to 6"),
        (replace(1, "a\nb"), "bad_line", "no line break"),
        (replace(1, "a" * 201), "bad_line", "at most 200"),
        (call("evaluate", expression="import os"), "syntax", "no expression"),
        (call("evaluate", expression="1) + (2"), "syntax", "no expression"),
        (call("evaluate", expression="(" * 9999), "syntax", "no expression"),
        (call("replace_line", line="3", text="x"), None, "line"),
        (call("delete_file"), None, "delete_file"),
    ],
)
def test_what_cannot_be_done_is_said(turn: ExpertTurn, error: str | None, words: str) -> None:
    env = DebugEnv()
    env.reset(seed=0, options={"task": TASK})
    shown, reward, terminated, truncated, info = env.step(env.protocol.render_turn(turn))
    assert words in shown
    assert (reward, terminated, truncated) == (0.0, False, False)
    if error is not None:
        assert info["step"].results[0].error == error


@pytest.mark.parametrize("reward", ["sparse", "dense", "hybrid"])
def test_the_contract_holds_and_no_exploit_pays(reward: str) -> None:
    check_env(gymnasium.make("Debug-v0", reward=reward), episodes=2, skip_render_check=True)
    result = audit(lambda: DebugEnv(reward=reward), tasks=5)
    assert result.passed, result.findings
    assert result.leaks == ()


def test_a_clone_goes_on_by_itself() -> None:
    env = DebugEnv()
    env.reset(seed=0, options={"task": TASK})
    env.step(env.protocol.render_turn(replace(2, "    total = 7")))
    twin = env.clone()
    for turn in (replace(2, "    total = 0"), MEND):
        env.step(env.protocol.render_turn(turn))
    assert [e.step(e.protocol.render_turn(TEST))[0].split(".")[0] for e in (env, twin)] == [
        "3 of 3 tests pass",
        "0 of 3 tests pass",
    ]


def test_every_bug_shows_in_its_tasks_and_every_topic_exists() -> None:
    seen = set()
    for seed in range(400):
        task = DebugTasks().get(f"debug/train/{seed}")
        program = task.metadata["program"]
        broken, cases = _function(program["function"], program["source"]), program["visible"] + program["hidden"]
        wrong = []
        for case in cases:
            try:
                wrong.append(broken(*case["arguments"]) != case["expected"])
            except Exception:
                wrong.append(True)
        assert any(wrong[:4])
        assert sum(wrong[4:]) >= 2
        assert len({case["expected"] for case in program["hidden"]}) >= 3
        assert program["passing"] == 4 - sum(wrong[:4])
        asked = task.solution[-2].calls[0].arguments["expression"]
        assert asked in task.question
        assert {len(case) for case in cases} == {2}
        seen.add(task.metadata["bug"])
    assert seen == set(BUG_KINDS)
    assert {bug.topic for program in PROGRAMS.values() for bug in program.bugs} <= set(DOCS)


def test_tasks_are_seeded_named_and_split() -> None:
    train, test = DebugTasks("train"), DebugTasks("test", bugs=["boundary", "operator"])
    drawn = [train.sample(np.random.default_rng(i)) for i in range(40)]
    held_out = [test.sample(np.random.default_rng(i)) for i in range(40)]
    assert all(train.get(task.id) == task for task in drawn)
    assert {task.metadata["bug"] for task in held_out} == {"boundary", "operator"}
    specs = [{task.metadata["program"]["spec"] for task in tasks} for tasks in (drawn, held_out)]
    assert not specs[0] & specs[1], "no function with its constant is in both"
    for wrong in ("debug/test/1", "debug/train/x", "", 3):
        with pytest.raises(UnknownNameError):
            train.get(wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError):
        DebugTasks(bugs=["typo"])
    with pytest.raises(ConfigError, match="names no kind"):
        DebugTasks(bugs=[])


@pytest.mark.parametrize("program", [None, {}, "x", {**TASK.metadata["program"], "hidden": []}])
def test_a_task_without_a_program_is_refused(program: Any) -> None:
    with pytest.raises(ConfigError, match="holds no program"):
        DebugEnv().reset(options={"task": Task("t", "?", "1", metadata={"program": program})})
