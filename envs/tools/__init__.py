"""Tools: ``@tool`` makes one, :func:`register_tool` names it, :class:`ToolSessions` runs those of an episode."""

from __future__ import annotations

import trajgym.envs.tools.calculator
import trajgym.envs.tools.python  # noqa: F401  (both register their tool)
from trajgym.envs.tools.base import Tool, ToolFailure, get_tool, register_tool, select_tools, tool
from trajgym.envs.tools.execution import ToolSessions

__all__ = [
    "Tool",
    "ToolFailure",
    "ToolSessions",
    "get_tool",
    "register_tool",
    "select_tools",
    "tool",
]
