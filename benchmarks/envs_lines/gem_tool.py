"""A new tool."""

import re
from typing import Any

from gem.tools.base_tool import BaseTool


class Area(BaseTool):
    tool_type = "area"

    def instruction_string(self) -> str:
        return "Write <area>WIDTH HEIGHT</area> for the area of a rectangle."

    def execute_action(self, action: str) -> tuple[Any, ...]:
        found = re.search(r"<area>(\S+) (\S+)</area>", action)
        if found is None:
            return False, True, "", action
        return True, False, str(float(found[1]) * float(found[2])), action[: found.end()]
