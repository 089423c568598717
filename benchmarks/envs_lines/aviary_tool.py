"""A new tool."""

from aviary.core import Tool


def area(width: float, height: float) -> float:
    """Area of a rectangle."""
    return width * height


area_tool = Tool.from_function(area, allow_empty_param_descriptions=True)
