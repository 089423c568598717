"""Exact arithmetic as a tool."""

from __future__ import annotations

from trajgym.envs.tools.base import ToolFailure, register_tool, tool
from trajgym.envs.tools.expression import CalculatorError, evaluate

__all__ = ["calculator"]


@register_tool
@tool
def calculator(expression: str) -> str:
    """Compute an arithmetic expression exactly and return the number.

    Numbers may be whole numbers, decimals, fractions or percentages (15% of 80), with thousands commas and
    currency signs. Operators: + - * / // % ^ or **, and brackets. Functions: sqrt, abs, round, min, max,
    floor, ceil. No variables, no units, no equations.

    Args:
        expression: The expression, for example (48 + 24) / 2.
    """
    try:
        return evaluate(expression)
    except CalculatorError as error:
        raise ToolFailure(error.kind, str(error)) from None
