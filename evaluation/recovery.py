"""Self-correction within an episode: how often something went wrong, was mended, and the task solved after all.

>>> from trajgym.types import Action, Observation, Step, StopReason, Task, ToolCall, ToolResult
>>> call = ToolCall("python", {"code": "print(1/0)"})
>>> failed = ToolResult(call, "ZeroDivisionError", "exception")
>>> wrong = Step(Action("", calls=(call,)), Observation(), results=(failed,))
>>> better = ToolCall("python", {"code": "print(72)"})
>>> right = Step(Action("", calls=(better,)), Observation(), results=(ToolResult(better, "72"),))
>>> end = Step(Action("#### 72"), Observation(), 1.0, {"accuracy": 1.0}, stop_reason=StopReason.ANSWERED)
>>> found = recovery([Trajectory(Task("t", "?", "72"), (), steps) for steps in ((wrong, right, end), (right, end))])
>>> found.erred.successes, found.mended.value, found.solved.value
(1, 1.0, 1.0)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trajgym.evaluation.evaluate import Share, succeeded
from trajgym.types import Step, Trajectory

__all__ = ["Recovery", "recovery"]

UNREAD = ""
"""Stands for the tool of a call that could not be read: any later call mends it."""


@dataclass(frozen=True)
class Recovery:
    """What became of episodes in which something went wrong.

    Args:
        erred: Episodes with a call that failed or could not be read, of all that are valid.
        mended: Of those, the ones in which each tool whose call failed was later called otherwise, with success.
        solved: Of those that erred, the ones that were mended and ended with the right answer.
    """

    erred: Share
    mended: Share
    solved: Share

    def __str__(self) -> str:
        erred, mended, solved = self.erred, self.mended, self.solved
        return (
            f"something went wrong in {erred.successes} of {erred.trials} episodes; {mended.successes} of these mended "
            f"it, {solved.successes} solved the task after that"
        )


def recovery(trajectories: Iterable[Trajectory]) -> Recovery:
    """Count self-corrections.

    To repeat the very call that failed mends nothing, even if it should succeed the second time.

    Args:
        trajectories: Of an evaluation; those that our machinery has spoilt are left out.
    """
    valid = [trajectory for trajectory in trajectories if trajectory.valid]
    erred = [trajectory for trajectory in valid if any(map(_failed, trajectory.steps))]
    mended = [trajectory for trajectory in erred if _mended(trajectory)]
    solved = [trajectory for trajectory in mended if succeeded(trajectory)]
    return Recovery(Share(len(erred), len(valid)), Share(len(mended), len(erred)), Share(len(solved), len(erred)))


def _failed(step: Step) -> bool:
    return step.error is not None or any(result.error is not None for result in step.results)


def _mended(trajectory: Trajectory) -> bool:
    """Whether nothing that went wrong was left as it was."""
    open_errors: dict[str, list[object]] = {}  # by tool, the arguments with which it failed
    for step in trajectory.steps:
        for result in step.results:
            name, arguments = result.call.name, dict(result.call.arguments)
            if result.error is not None:
                open_errors.setdefault(name, []).append(arguments)
                continue
            open_errors.pop(UNREAD, None)
            if arguments not in open_errors.get(name, []):
                open_errors.pop(name, None)
        if step.error is not None:
            open_errors.setdefault(UNREAD, [])
    return not open_errors
