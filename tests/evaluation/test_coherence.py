"""The slot for a judge."""

from __future__ import annotations

from collections.abc import Callable

from trajgym.evaluation.coherence import CRITERION, judged
from trajgym.evaluation.evaluate import Evaluation
from trajgym.evaluation.samples import samples_of
from trajgym.evaluation.summary import summarise
from trajgym.rewards.judge import Judge
from trajgym.types import Task, Trajectory


def test_a_judges_grades_are_a_measure(make_evaluation: Callable[..., Evaluation]) -> None:
    class Half:
        def ratings(self, episodes: object) -> list[float]:
            assert isinstance(episodes, list)
            return [0.5 if "#### 72" in words else 0.25 for _, words in episodes]

    evaluation = make_evaluation(["72", "1", "72", "72"], attempts=2)
    broken = Trajectory(Task("t-9", "", ""), (), (), fault="OSError: full")
    evaluation = Evaluation((*evaluation.trajectories, broken, broken), 2)
    grades = judged(evaluation, Half())
    assert grades == {("t-0", 0): 0.5, ("t-0", 1): 0.25, ("t-1", 0): 0.5, ("t-1", 1): 0.5}
    found = summarise(samples_of(evaluation, coherence=grades)).measures["coherence"]
    assert (found.value, found.count) == (0.4375, 4)
    assert judged(Evaluation(()), Half()) == {}


def test_our_judge_is_one() -> None:
    assert callable(Judge(lambda prompts: prompts, CRITERION).ratings)
