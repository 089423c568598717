"""Reward terms and rubrics: what a step is worth, and why.

``sparse`` pays the right answer at the end, ``dense`` pays each step on its own merit, ``hybrid`` pays both.
"""

from __future__ import annotations

from trajgym.rewards.rubric import REWARDS, Rubric, Term, get_rubric, register_rubric
from trajgym.rewards.terms import accuracy, tool_success

__all__ = ["REWARDS", "Rubric", "Term", "accuracy", "get_rubric", "register_rubric", "tool_success"]

register_rubric("sparse", lambda: Rubric({"accuracy": (accuracy, 1.0)}))
register_rubric("dense", lambda: Rubric({"tool_success": (tool_success, 0.1)}))
register_rubric("hybrid", lambda: Rubric({"accuracy": (accuracy, 1.0), "tool_success": (tool_success, 0.1)}))
