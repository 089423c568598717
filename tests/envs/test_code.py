from __future__ import annotations

import ast
import contextlib
import inspect
import io
from typing import Any

import pytest

from trajgym.envs.check import check_env
from trajgym.envs.code import CodeEnv
from trajgym.envs.code_tasks import KINDS
from trajgym.envs.tools import Tool, tool
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.types import StopReason, Task


@tool
class python:  # noqa: N801  # the name of the tool
    """Run trusted programs in this very process, as an interpreter with a memory would."""

    def open(self, seed: int) -> None:
        """Begin with no names."""
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def __call__(self, code: str) -> str:
        """Run a program and return what it shows."""
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            exec(compile(tree, "<program>", "exec"), self.names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<program>", "eval"), self.names)
                if value is not None:
                    print(repr(value))
        return shown.getvalue()


def make(**kwargs: Any) -> CodeEnv:
    return CodeEnv(**{"tools": [python], **kwargs})


def test_the_contract_holds() -> None:
    assert isinstance(python, Tool)
    check_env(make(kinds=["prime_sum", "lamps", "determinant"]), skip_render_check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_demonstrations_earn_everything(kind: str) -> None:
    env = make(split="test", kinds=[kind])
    for seed in range(3):
        _, info = env.reset(seed=seed)
        task: Task = info["task"]
        *calls, last = env.expert(task)
        for action in calls:
            shown, reward, terminated, truncated, info = env.step(action)
            assert (reward, terminated, truncated) == (0.1, False, False)
        shown, reward, terminated, truncated, _ = env.step(last)
        assert (shown, reward, terminated, truncated) == ("", 1.0, True, False)
        # The answer had been shown before it was given.
        assert float(info["messages"][-1].content) == float(task.answer)


def test_an_answer_without_a_program_and_a_wrong_one_earn_nothing() -> None:
    env = make(kinds=["prime_sum"])
    for answer in ("I cannot tell.", "#### 0", "#### 1729"):
        env.reset(seed=1)
        _, reward, terminated, _, info = env.step(answer)
        assert (reward, terminated, info["stop_reason"]) == (0.0, True, StopReason.ANSWERED)


def test_a_program_that_fails_costs_a_turn_and_no_more() -> None:
    env = make(kinds=["prime_sum"])
    _, info = env.reset(seed=1)
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "1 / 0"}}\n</tool_call>'
    shown, reward, terminated, truncated, _ = env.step(call)
    assert "division by zero" in shown
    assert (reward, terminated, truncated) == (0.0, False, False)
    for action in env.expert(info["task"]):
        _, reward, terminated, _, _ = env.step(action)
    assert (reward, terminated) == (1.0, True)


def test_the_prompt_shows_the_problem_and_how_to_answer() -> None:
    env = make()
    text, info = env.reset(seed=2)
    assert text.endswith(info["task"].question)
    assert "python" in text
    assert "####" in text


def test_options_reach_the_tasks() -> None:
    env = make(split="test", difficulty=(2, 3), kinds=["lamps", "determinant"])
    seen = set()
    for seed in range(20):
        _, info = env.reset(seed=seed)
        seen.add(info["task"].id.rpartition("/")[0])
    assert seen == {"code/test/lamps", "code/test/determinant"}
    _, info = env.reset(options={"task": "code/test/lamps/7"})
    assert info["task"].id == "code/test/lamps/7"
    assert make(tasks=[Task("t", "1 + 1?", "2")]).reset(seed=0)[1]["task"].id == "t"


def test_what_the_defaults_are() -> None:
    defaults = {name: p.default for name, p in inspect.signature(CodeEnv).parameters.items()}
    assert defaults["tools"] == ("python",)
    assert defaults["split"] == "train"
    assert defaults["difficulty"] == (1, 3)
    env = make()
    assert env.max_turns == 8
    # The longest demonstration leaves room for mistakes.
    assert all(len(env.expert(env.reset(seed=seed)[1]["task"])) <= 4 for seed in range(60))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"kinds": ["detreminant"]}, "Did you mean 'determinant'"),
        ({"kind": ["determinant"]}, "Did you mean 'kinds'"),
        ({"split": "tset"}, "Did you mean 'test'"),
    ],
)
def test_unknown_names_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        make(**kwargs)


def test_other_mistakes_are_refused() -> None:
    with pytest.raises(ConfigError, match="difficulty="):
        make(difficulty=4)
    with pytest.raises(ConfigError, match="takes several"):
        make(kinds="determinant")
