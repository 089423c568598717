"""Changed tasks keep their answers, and a drop on them is told from chance."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from trajgym.envs.arithmetic_tasks import held_out
from trajgym.errors import ConfigError
from trajgym.evaluation.robustness import add_distractor, changed, check_forgetting, compare_changed, paraphrase
from trajgym.evaluation.samples import Sample
from trajgym.evaluation.working import numbers_given
from trajgym.types import Task

MakeSamples = Callable[..., list[Sample]]
TASK = Task("t-0", "Tim has 3 boxes of 4 pens. Half are red. How many are red?", "6")


def test_a_distractor_adds_one_number_that_nothing_knows() -> None:
    for task in held_out(30):
        twin = add_distractor(task)
        assert twin is not None
        assert (twin.answer, twin.solution) == (task.answer, task.solution)
        [number] = map(int, twin.metadata["distractors"])
        added = numbers_given(twin.question).numerals - numbers_given(task.question).numerals
        assert added == {number}
        assert number != int(task.answer)
        assert twin.question.endswith(task.question.split(". ")[-1]), "the question itself stays at the end"
        assert add_distractor(task) == twin


def test_a_single_sentence_gets_its_distractor_in_front() -> None:
    twin = add_distractor(Task("t-1", "What is 3 times 4?", "12"))
    assert twin is not None
    assert twin.question.endswith(". What is 3 times 4?")


def test_paraphrases_keep_every_number() -> None:
    assert paraphrase(lambda q: q.replace("Tim", "Ann"))(TASK) == dataclasses.replace(
        TASK, question=TASK.question.replace("Tim", "Ann")
    )
    for bad in ("", "Tim has 3 boxes of 5 pens. Half are red.", TASK.question.upper(), "How many are red?"):
        assert paraphrase(lambda q, bad=bad: bad)(TASK) is None  # type: ignore[misc]


def test_twins_say_where_they_come_from() -> None:
    tasks = [TASK, dataclasses.replace(TASK, id="t-1", answer="7")]
    [(task, twin)] = changed(tasks, lambda t: t if t.answer == "6" else None, "odd")
    assert (task, twin.id, twin.metadata) == (TASK, "t-0#odd", {"change": "odd", "origin": "t-0"})
    with pytest.raises(ConfigError, match="applied to none of the 2 tasks"):
        changed(tasks, lambda t: None, "nothing")
    with pytest.raises(ConfigError, match="must return a Task or None, got str"):
        changed(tasks, lambda t: t.question, "text")  # type: ignore[arg-type,return-value]


def test_a_model_is_compared_with_itself(make_samples: MakeSamples) -> None:
    original = make_samples(["72", "72", "1"])
    twins = [dataclasses.replace(s, task_id=f"{s.task_id}#noise") for s in make_samples(["72", "1"])]
    found = compare_changed("noise", original, twins)
    assert (found.before, found.after, found.tasks, found.broken) == ("as given", "noise", 2, 1)
    with pytest.raises(ConfigError, match="same tasks"):
        compare_changed("noise", original[:1], twins)


def test_forgetting(make_samples: MakeSamples) -> None:
    good, bad = make_samples(["72"] * 50), make_samples(["72"] * 20 + ["1"] * 30)
    assert check_forgetting(("before", good), ("after", bad)).forgot
    same = check_forgetting(("before", good), ("after", good))
    assert (same.forgot, same.unknown) == (False, False)
    few = check_forgetting(("before", good[:3]), ("after", [*good[:2], bad[-1]][:2] + make_samples(["1"] * 3)[2:]))
    assert (few.forgot, few.unknown) == (False, True)
    assert not check_forgetting(("before", good), ("after", bad), tolerance=0.9).forgot
    with pytest.raises(ConfigError, match="tolerance"):
        check_forgetting(("before", good), ("after", good), tolerance=2)
