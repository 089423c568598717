"""Faults: what makes an episode invalid, how that is written down, and how it is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trajgym.envs.tools.worker import as_clean_text, one_line
from trajgym.errors import EnvironmentFault
from trajgym.types import Trajectory

__all__ = ["SamplerFault", "Straggler", "fault_counts", "fault_summary", "fault_text"]

_MAX_FAULT = 1_000  # characters


class Straggler(EnvironmentFault):
    """An episode was still not over when nobody could wait for it any longer."""


class SamplerFault(EnvironmentFault):
    """The policy's engine made a turn out of something else than probabilities."""


def fault_text(error: BaseException) -> str:
    """Write what was raised as ``Class: message`` in one line that can be printed and stored."""
    return " ".join(as_clean_text(one_line(error), _MAX_FAULT).split())


def fault_counts(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Return how many trajectories are invalid, by the class of what was raised, most frequent first."""
    return dict(Counter(_fault_of(t).partition(":")[0] for t in trajectories if not t.valid).most_common())


def fault_summary(trajectories: Sequence[Trajectory]) -> str:
    """Say how many trajectories are invalid and why the first one is; empty when all are valid.

    >>> from trajgym.types import Task
    >>> lost = Trajectory(Task("t", "", ""), (), (), fault="OSError: no space left")
    >>> fault_summary([lost, lost])
    '2 of 2 episodes failed, the first with OSError: no space left.'
    """
    lost = [t for t in trajectories if not t.valid]
    if not lost:
        return ""
    return f"{len(lost)} of {len(trajectories)} episodes failed, the first with {_fault_of(lost[0]).rstrip('.')}."


def _fault_of(trajectory: Trajectory) -> str:
    return trajectory.fault or "no step"
