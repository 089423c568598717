"""What TRL finds in an environment of ours: its tools with their schemas, and rows that name their task."""

from __future__ import annotations

import enum
from typing import Any, Literal

import gymnasium
import pytest
from typing_extensions import TypedDict

from trajgym.envs.tools import Tool, tool
from trajgym.errors import ConfigError, ToolDefinitionError, UnknownNameError
from trajgym.types import Task

pytest.importorskip("trl")

from transformers.utils import get_json_schema

from trajgym.trainers.trl_environment import environment_factory
from trajgym.trainers.trl_tools import RESERVED

TASKS = [Task(f"t-{i}", f"What is {i} + 1?", str(i + 1), difficulty=1) for i in range(5)]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(TypedDict):
    street: str
    number: int


@tool(name="look-up")
def rich(
    word: str,
    row: int,
    share: float = 0.5,
    exact: bool = False,
    colour: Colour = Colour.RED,
    mode: Literal["a", "b"] = "a",
    words: list[str] | None = None,
    counts: dict[str, int] | None = None,
    where: Place | None = None,
) -> str:
    """Look something up.

    It takes its time.

    Args:
        word: What
            to look up.
        where: The place.
    """
    return word


def schema_of(given: Tool) -> dict[str, Any]:
    environment = environment_factory("ArithmeticTool-v0", tasks=TASKS, tools=[given])()
    return dict(get_json_schema(getattr(environment, given.name))["function"])


def test_schemas_are_those_of_the_tools() -> None:
    schema = schema_of(rich)
    assert schema["name"] == "look-up"
    assert schema["description"] == "Look something up.\n\nIt takes its time."
    properties = schema["parameters"]["properties"]
    assert schema["parameters"]["required"] == ["word", "row"]
    assert properties["word"] == {"type": "string", "description": "What to look up."}
    assert {name: properties[name].get("type") for name in ("row", "share", "exact")} == {
        "row": "integer",
        "share": "number",
        "exact": "boolean",
    }
    assert properties["colour"]["enum"] == ["red", "blue"]
    assert properties["mode"]["enum"] == ["a", "b"]
    assert properties["words"]["items"] == {"type": "string"}
    assert properties["words"]["nullable"] is True
    assert properties["counts"]["additionalProperties"] == {"type": "integer"}
    assert properties["where"]["type"] == "object"
    assert '"street"' in properties["where"]["description"]


def test_calls_are_validated_as_anywhere() -> None:
    environment = environment_factory("ArithmeticTool-v0", tasks=TASKS, tools=[rich])()
    environment.reset(task_id="t-0")
    look_up = getattr(environment, "look-up")
    assert look_up(word="x", row=1) == "x"
    assert look_up(word="x", row="1").startswith("Error (wrong_type): look-up: the argument 'row' must be integer")
    assert look_up(row=1).startswith("Error (missing_argument)")
    assert look_up(word="x", row=1, self=2).startswith("Error (unexpected_argument)")


def test_tools_without_arguments_and_docs() -> None:
    @tool
    def ping() -> str:
        """Answer."""
        return "pong"

    assert schema_of(ping)["parameters"]["properties"] == {}


@pytest.mark.parametrize("name", [*RESERVED, "_hidden"])
def test_names_that_trl_would_not_show(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match=r"Rename it with @tool\(name"):
        environment_factory("ArithmeticTool-v0", tasks=TASKS, tools=[Tool(rich.target, name=name)])


def test_docs_that_transformers_cannot_read() -> None:
    @tool
    def pick(colour: str) -> str:
        """Pick a colour.

        Args:
            colour: Which (choices: red or blue)
        """
        return colour

    with pytest.raises(ToolDefinitionError, match="pick"):
        environment_factory("ArithmeticTool-v0", tasks=TASKS, tools=[pick])


def test_each_environment_has_a_state_of_its_own() -> None:
    factory = environment_factory("ArithmeticTool-v0", tasks=TASKS)
    one, other = factory(), factory()
    assert type(one) is type(other)  # TRL reads the tools from the class
    one.reset(task_id="t-0")
    other.reset(task_id="t-1")
    one.episode.finish([{"role": "assistant", "content": "#### 1"}], ended=True)
    assert (one.episode.rewards, other.episode.rewards) == ([1.0], [])
    assert one.episode.trajectory.task.id == "t-0"
    assert one.episode.trajectory.messages[-1].content == "#### 1"


def test_rows_are_the_environments_prompts() -> None:
    rows = environment_factory("ArithmeticTool-v0", tasks=TASKS).dataset().to_list()
    env = gymnasium.make("ArithmeticTool-v0", tasks=TASKS)
    for row, task in zip(rows, TASKS, strict=True):
        _, info = env.reset(options={"task": row["task_id"]})
        assert info["task"] == task
        assert row["prompt"] == [{"role": m.role, "content": m.content} for m in info["messages"]]
        assert (row["question"], row["answer"], row["difficulty"]) == (task.question, task.answer, 1)


def test_draws_of_rows() -> None:
    factory = environment_factory("ArithmeticTool-v0", tasks=TASKS)
    ids = [row["task_id"] for row in factory.dataset(4, seed=1)]
    assert len(set(ids)) == 4
    assert ids == [row["task_id"] for row in factory.dataset(4, seed=1)]
    assert ids != [row["task_id"] for row in factory.dataset(4, seed=2)]
    with pytest.raises(ConfigError, match="has 5 tasks, got n=6"):
        factory.dataset(6)
    with pytest.raises(ConfigError, match=r"dataset\(n\)"):
        environment_factory("ArithmeticTool-v0").dataset()


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_numbers_of_rows_that_are_none(n: Any) -> None:
    with pytest.raises(ConfigError, match="n must be"):
        environment_factory("ArithmeticTool-v0").dataset(n)


def test_descriptions_can_be_left_to_the_template() -> None:
    (row,) = environment_factory("ArithmeticTool-v0", instructions="none").dataset(1)
    assert "calculator" not in row["prompt"][0]["content"]
    (row,) = environment_factory("ArithmeticTool-v0", protocol="llama3_json").dataset(1)
    assert "tool_call" not in row["prompt"][0]["content"]


def test_what_is_no_environment_of_ours() -> None:
    with pytest.raises(ConfigError, match="no environment of trajgym's"):
        environment_factory("CartPole-v1")
    with pytest.raises(UnknownNameError, match="ArithmeticTool-v0"):
        environment_factory("ArithmeticTol-v0")
    with pytest.raises(UnknownNameError, match="hermes"):
        environment_factory("ArithmeticTool-v0", protocol="hermse")
