# ruff: noqa: D101, D102
"""A new tool; the environment that offers it reads the call, and hands over its text."""

from skyrl_gym.tools.core import ToolGroup, tool


class Shapes(ToolGroup):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("Shapes")

    @tool  # type: ignore[untyped-decorator]
    def area(self, text: str) -> str:
        width, height = map(float, text.split())
        return str(width * height)
