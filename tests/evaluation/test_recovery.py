"""Self-corrections, counted in episodes that were played."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trajgym.envs.debug import DebugEnv
from trajgym.envs.debug_tasks import DebugTasks
from trajgym.evaluation.recovery import Recovery, recovery
from trajgym.policies.base import TextPolicy
from trajgym.protocols import get_protocol
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.types import ExpertTurn, Message, Task, ToolCall, Trajectory

HERMES = get_protocol("hermes")
TASK = DebugTasks().get("debug/train/3")
READ, TEST, DOCS, MEND, AGAIN, VALUE, ANSWER = TASK.solution
NO_LINE = ExpertTurn(calls=(ToolCall("replace_line", {"line": 99, "text": "x"}),))
NO_EXPRESSION = ExpertTurn(calls=(ToolCall("evaluate", {"expression": "1 +"}),))
BROKEN = '<tool_call>{"name": '


class Script(TextPolicy):
    """Plays given turns."""

    def __init__(self, turns: Sequence[ExpertTurn | str]) -> None:
        super().__init__()
        self._turns = [turn if isinstance(turn, str) else HERMES.render_turn(turn) for turn in turns]

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        return self._turns[sum(m.role == "assistant" for m in messages)]


def played(*turns: ExpertTurn | str) -> Trajectory:
    with EnvPool(DebugEnv, threads=1) as pool:
        return collect(Script(turns), pool, [Episode(0, 0, TASK)])[0]


def counts(found: Recovery) -> tuple[int, int, int]:
    return found.erred.successes, found.mended.successes, found.solved.successes


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ((MEND, VALUE, ANSWER), (0, 0, 0)),
        ((NO_LINE, MEND, ANSWER), (1, 1, 1)),  # looked, found the mistake, did better
        ((NO_LINE, MEND, ExpertTurn("#### 1")), (1, 1, 0)),
        ((NO_LINE, READ, ANSWER), (1, 0, 0)),  # another tool mends nothing
        ((NO_LINE, NO_EXPRESSION, MEND, ANSWER), (1, 0, 0)),  # one of two mistakes was left
        ((NO_LINE, NO_EXPRESSION, MEND, VALUE, ANSWER), (1, 1, 1)),
        ((BROKEN, MEND, ANSWER), (1, 1, 1)),
        ((BROKEN, ANSWER), (1, 0, 0)),
        ((MEND, NO_LINE, ANSWER), (1, 0, 0)),  # what was right before does not mend what came after
    ],
)
def test_what_counts_as_mended(turns: Sequence[ExpertTurn | str], expected: tuple[int, int, int]) -> None:
    assert counts(recovery([played(*turns)])) == expected


def test_shares_are_of_what_went_wrong() -> None:
    trajectories = [played(MEND, ANSWER), played(NO_LINE, MEND, ANSWER), played(NO_LINE, ANSWER)]
    lost = Trajectory(TASK, (), (), fault="gone")
    found = recovery([*trajectories, lost])
    assert (found.erred.trials, found.mended.trials, found.solved.trials) == (3, 2, 2)
    assert (found.erred.value, found.mended.value, found.solved.value) == (pytest.approx(2 / 3), 0.5, 0.5)
    assert str(found).startswith("something went wrong in 2 of 3 episodes; 1 of these mended it, 1 solved")
    assert recovery([]).mended.value == 0.0
