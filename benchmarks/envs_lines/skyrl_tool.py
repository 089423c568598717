"""A new tool; the environment that offers it reads the call, and hands over its text."""

from skyrl_gym.tools.core import ToolGroup, tool


class Shapes(ToolGroup):
    def __init__(self) -> None:
        super().__init__("Shapes")

    @tool
    def area(self, text: str) -> str:
        width, height = map(float, text.split())
        return str(width * height)
