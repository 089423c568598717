"""A new tool."""

from trajgym.envs.tools import tool


@tool
def area(width: float, height: float) -> float:
    """Area of a rectangle."""
    return width * height
