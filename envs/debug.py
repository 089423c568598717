"""Programs with a bug: an environment in which a policy reads, looks up, edits and tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from trajgym.envs.debug_desk import VERBS, Desk
from trajgym.envs.debug_tasks import DebugTasks
from trajgym.envs.stage import StageEnv
from trajgym.envs.tasks import TaskSource
from trajgym.envs.vector import vector_of
from trajgym.rewards import RewardLike, Rubric, Settled, accuracy, term
from trajgym.types import Step, Task

__all__ = ["REWARDS", "DebugEnv", "mended", "tests_gained", "vector_env"]

_REPORT = re.compile(r"(\d+) of (\d+) tests pass\.")


@term
def mended(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for the right answer behind a file that passes every hidden test, else 0."""
    if not accuracy(step, task, history):
        return 0.0
    desk = Desk.replay(task, history)
    return float(desk.passed(desk.hidden) == len(desk.hidden))


@term
def tests_gained(step: Step, task: Task, history: Sequence[Step]) -> float:
    """By how much this step's report of passed tests is the best so far, as a share of those that failed at first.

    All of an episode's sum to at most 1.
    """
    total = len(task.metadata["program"]["visible"])
    start = int(task.metadata["program"].get("passing", 0))
    if total <= start:
        return 0.0
    before = max([start, *(n for earlier in history for n in _reports(earlier))])
    after = max([before, *_reports(step)])
    return (after - before) / (total - start)


def _reports(step: Step) -> list[int]:
    """Return how many tests passed in each report of a step."""
    shown = [result.content for result in step.results if result.call.name == "run_tests" and result.error is None]
    return [int(found[1]) for found in map(_REPORT.match, shown) if found]


REWARDS = {
    "sparse": Rubric({"accuracy": (mended, 1.0)}),
    "dense": Rubric({"tests_gained": (Settled(tests_gained, right=mended), 1.0)}),
    "hybrid": Rubric({"accuracy": (mended, 1.0), "tests_gained": (tests_gained, 0.1)}),
}
"""What ``reward="sparse"``, ``"dense"`` and ``"hybrid"`` mean here."""


class DebugEnv(StageEnv):
    """A file with one wrong line, which the policy finds, mends and tests.

    ## Description
    The question says what a function must return. The policy reads the file, runs its tests, looks things up, replaces
    lines, and says what a certain call returns when the function is right. Twelve functions, each with a constant of
    its own, and bugs of six kinds: a range's end, a comparison, an operator, a start value, a name, a line that stands
    in the wrong place.

    Saying the number is not enough: the file must pass tests that are never shown, and their results are compared
    outside of the interpreter, which does not know what is expected. A file that knows the shown tests by heart earns
    nothing in the end.

    ## Action Space
    ``Unicode()``: one assistant turn, as in :class:`trajgym.envs.base.ToolEnv`. The calls of one turn are carried out
    one after the other.

    ## Observation Space
    ``Unicode()``: the file, the page, the tests' report, or the value.

    ## Rewards
    ``"sparse"``: at the end, 1 for the right answer with a file that passes the hidden tests. ``"dense"``: for each
    report better than all before, the share of the failing tests that were gained, taken back at the end unless file
    and answer are right. ``"hybrid"``: ``"sparse"``, and 0.1 times those shares, which are kept. Other rewards as in
    :class:`trajgym.envs.base.ToolEnv`; those do not look at the file.

    ## Episode End
    As in :class:`trajgym.envs.base.ToolEnv`; ``max_turns`` defaults to 12, where demonstrations take 7: an edit that
    was wrong can be mended.

    ## Arguments
    ``Debug-v0`` offers the tools ``read_file``, ``docs``, ``replace_line``, ``run_tests`` and ``evaluate``. It needs an
    interpreter that can be isolated, as ``CodeTool-v0`` does.

    ## Version History
    * v0: first version

    Args:
        split: ``"train"`` or ``"test"``.
        bugs: Kinds of bugs, from :data:`trajgym.envs.debug_programs.BUG_KINDS`; all when left out.
        tasks: Replaces the generated files; each task needs one, see :class:`trajgym.envs.debug_desk.Desk`.
        reward: As above.
        max_turns: Most turns in an episode.
        instructions: Short by default.
        **kwargs: Passed to :class:`trajgym.envs.base.ToolEnv`.
    """

    answer_rule: ClassVar[str] = (
        "Mend the file; hidden tests decide. Then end with a line: #### followed by the number."
    )

    def __init__(
        self,
        *,
        split: str = "train",
        bugs: Iterable[str] | None = None,
        tasks: TaskSource | Iterable[Task] | None = None,
        reward: RewardLike = "hybrid",
        max_turns: int = 12,
        instructions: str = "signature",
        **kwargs: Any,
    ) -> None:
        source = tasks if tasks is not None else DebugTasks(split, bugs)
        rubric = REWARDS.get(reward, reward) if isinstance(reward, str) else reward
        super().__init__(
            source, reward=rubric, max_turns=max_turns, instructions=instructions, **{"tools": VERBS, **kwargs}
        )

    def world(self, task: Task) -> Desk:
        """Return the task's desk with its file as it was found."""
        return Desk.of(task)


vector_env = vector_of(DebugEnv)
