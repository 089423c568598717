from __future__ import annotations

import pytest

from trajgym.envs.tools import ToolSessions, get_tool
from trajgym.types import ToolCall


def run(**arguments: object) -> tuple[str, str | None]:
    with ToolSessions(["calculator"], seed=0) as sessions:
        (result,) = sessions.run([ToolCall("calculator", arguments)])
    return result.content, result.error


def test_what_a_policy_is_told() -> None:
    calculator = get_tool("calculator")
    assert calculator.parameters["required"] == ["expression"]
    assert calculator.parameters["properties"]["expression"]["type"] == "string"
    assert calculator.signature == "calculator(expression: string)"


@pytest.mark.parametrize(
    ("expression", "value"), [("48/2", "24"), ("(48 + 24) / 2", "36"), ("0.1+0.2", "0.3"), ("1/3", "1/3")]
)
def test_values_are_exact(expression: str, value: str) -> None:
    assert run(expression=expression) == (value, None)


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("1/0", "division_by_zero"),
        ("", "empty"),
        ("2+", "syntax_error"),
        ("9^9^9^9", "too_large"),
        ("a(1)", "unknown_name"),
    ],
)
def test_errors_keep_their_kind(expression: str, kind: str) -> None:
    content, error = run(expression=expression)
    assert error == kind
    assert content
    assert "\n" not in content


def test_arguments_are_strict() -> None:
    assert run(expression=24)[1] == "wrong_type"
    assert run(expr="1")[1] == "missing_argument"
