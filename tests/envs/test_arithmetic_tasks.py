from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trajgym.envs.arithmetic_story import DOMAINS
from trajgym.envs.arithmetic_tasks import ArithmeticTasks, held_out
from trajgym.envs.arithmetic_wording import PEOPLE, WORD_NUMBERS
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.types import Task

APPLY = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}


def _draw(n: int, split: str = "train", seed: int = 0, **options: Any) -> list[Task]:
    source, rng = ArithmeticTasks(split, **options), np.random.default_rng(seed)
    return [source.sample(rng) for _ in range(n)]


def _expressions(task: Task) -> list[str]:
    return [call.arguments["expression"] for turn in task.solution for call in turn.calls]


@settings(max_examples=300, deadline=None)
@given(split=st.sampled_from(["train", "test"]), steps=st.integers(1, 8), seed=st.integers(0, 10**9 - 1))
def test_an_independent_reader_of_the_solution_reaches_the_answer(split: str, steps: int, seed: int) -> None:
    task = ArithmeticTasks(split, difficulty=(1, 8)).get(f"arithmetic/{split}/{steps}/{seed}")
    digits = re.findall(r"\d+", task.question)
    worded = {str(number) for word, number in WORD_NUMBERS.items() if re.search(rf"\b{word}\b", task.question.lower())}
    value: Fraction | None = None
    results = []
    for expression in _expressions(task):
        left, op, right = re.fullmatch(r"(\d+)([-+*/])(\d+)", expression).groups()  # type: ignore[union-attr]
        assert left in digits if value is None else Fraction(left) == value
        assert right in digits or right in worded
        value = APPLY[op](Fraction(left), Fraction(right))
        assert value.denominator == 1
        assert 0 <= value < 1000
        results.append(str(value))
    assert task.answer == results[-1]
    assert task.metadata == {"steps": results}
    assert task.difficulty == steps == len(results)
    assert [len(turn.calls) for turn in task.solution] == [1] * steps + [0]
    assert [turn.text for turn in task.solution] == [""] * steps + [f"#### {task.answer}"]
    assert all(call.name == "calculator" for turn in task.solution for call in turn.calls)


@settings(max_examples=100, deadline=None)
@example(steps=1, seed=38194)
@given(steps=st.integers(1, 8), seed=st.integers(0, 10**9 - 1))
def test_a_question_is_clean_text_of_bounded_length(steps: int, seed: int) -> None:
    question = ArithmeticTasks(difficulty=(1, 8)).get(f"arithmetic/train/{steps}/{seed}").question
    sentences = re.findall(r"[A-Z][A-Za-z0-9 ,]*[.?](?: |$)", question)
    assert "".join(sentences) == question
    assert len(sentences) == steps + 2 + seed % 2
    # The longest opening and closing sentences have 24 words together, any other one has at most 14.
    assert len(question.split()) <= 24 + 14 * (steps + seed % 2)
    assert re.search(r"(How|What|Find)[^.?]*[.?]$", question)


def test_a_pronoun_can_mean_only_one() -> None:
    names = [person.name for person in PEOPLE]
    names += [holder.name for domain in DOMAINS for cast in domain.casts for holder in cast.holders]
    holder = re.compile(rf"\b({'|'.join(names)})\b", re.IGNORECASE)
    pronouns = 0
    for task in _draw(1500, difficulty=(2, 6), distractors=0.5):
        sentences = re.findall(r"[^.?]+[.?]", task.question)
        for before, sentence in itertools.pairwise(sentences):
            if re.search(r"\b(she|he|it|her|him)\b", sentence, re.IGNORECASE) and not holder.search(sentence):
                pronouns += 1
                assert len(set(holder.findall(before))) <= 1, task.question
                assert not _IRRELEVANT.search(before), task.question
    assert pronouns > 500


def test_ids_make_the_same_task_again() -> None:
    for split in ("train", "test"):
        for task in _draw(100, split, difficulty=(1, 8)):
            # Another share of distractors does not matter: the seed says whether there is one.
            assert ArithmeticTasks(split, difficulty=(1, 8), distractors=0.0).get(task.id) == task


def test_tasks_do_not_depend_on_the_process() -> None:
    program = (
        "import hashlib, numpy as np\n"
        "from trajgym.envs.arithmetic_tasks import ArithmeticTasks, held_out\n"
        "rng = np.random.default_rng(5)\n"
        "tasks = [ArithmeticTasks('test', (1, 8)).sample(rng) for _ in range(50)] + held_out(20, (1, 3), seed=4)\n"
        "print(hashlib.sha256(repr(tasks).encode()).hexdigest())\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "77")
    }
    assert len(seen) == 1
    assert len(seen.pop().strip()) == 64


def _normalised(question: str) -> str:
    """Replace names, pronouns and things, without any help from the generator."""
    names = {person.name for person in PEOPLE}
    names |= {holder.name for domain in DOMAINS for cast in domain.casts for holder in cast.holders}
    things = {thing for domain in DOMAINS for cast in domain.casts for thing in cast.things}
    text = re.sub(rf"\b({'|'.join(names)})\b", "X", question, flags=re.IGNORECASE)
    text = re.sub(r"\b(she|he|it|her|him|his|its)\b", "X", text, flags=re.IGNORECASE)
    return re.sub(rf"\b({'|'.join(things)})\b", "T", text)


@pytest.mark.parametrize(("steps", "n"), [(1, 10_000), ((2, 4), 1_000)])
def test_the_splits_share_no_question_whatever_the_names(steps: int | tuple[int, int], n: int) -> None:
    # One step: there the same problem comes up again and again, with other names.
    train, test = (_draw(n, split, difficulty=steps, distractors=0.0) for split in ("train", "test"))
    assert {task.question for task in train}.isdisjoint(task.question for task in test)
    normal = [{_normalised(task.question) for task in tasks} for tasks in (train, test)]
    assert normal[0].isdisjoint(normal[1])
    if steps == 1:
        assert len(normal[0]) < 0.99 * n  # the check above could have failed


def test_a_distractor_does_not_change_the_split() -> None:
    with_one = {_core(t) for t in _draw(4000, "train", difficulty=1, distractors=1.0)}
    without = {_core(t) for t in _draw(4000, "test", difficulty=1, distractors=0.0)}
    assert with_one.isdisjoint(without)


def _core(task: Task) -> str:
    """The normal form without the distractor, known by its words."""
    sentences = re.findall(r"[^.?]+[.?]", _normalised(task.question))
    kept = [s.strip() for s in sentences if not _IRRELEVANT.search(s)]
    assert len(kept) == (task.difficulty or 0) + 2
    return " ".join(kept)


_IRRELEVANT = re.compile(
    r"years old|spoons|pictures|nails|minutes|miles away|rooms in|pages|ticket|The room|at the party", re.IGNORECASE
)


@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_distractors_are_as_frequent_as_asked(share: float) -> None:
    tasks = _draw(4000, difficulty=2, distractors=share)
    found = sum(len(re.findall(r"[.?]", task.question)) == 5 for task in tasks) / len(tasks)
    assert found == pytest.approx(share, abs=0.03 if 0 < share < 1 else 0)


def test_difficulties_and_operations_are_all_drawn_and_operands_have_mostly_two_digits() -> None:
    tasks = _draw(4000, difficulty=(2, 5))
    levels = Counter(task.difficulty for task in tasks)
    assert set(levels) == {2, 3, 4, 5}
    assert min(levels.values()) > 850
    expressions = [e for task in tasks for e in _expressions(task)]
    operations = Counter(re.sub(r"\d", "", e) for e in expressions)
    assert all(operations[op] > 0.15 * len(expressions) for op in "+-*/")
    added = [e for e in expressions if re.search(r"[-+]", e)]
    assert sum(len(re.split(r"[-+]", e)[1]) == 2 for e in added) > 0.7 * len(added)


def test_drawing_is_seeded_and_leaves_the_global_generators_alone() -> None:
    state = np.random.get_state()[1].tobytes()  # type: ignore[union-attr]
    assert _draw(50, seed=9) == _draw(50, seed=9)
    assert _draw(50, seed=9) != _draw(50, seed=10)
    assert np.random.get_state()[1].tobytes() == state  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "task_id",
    [
        "arithmetic/train/2/8",  # the other split
        "arithmetic/test/5/8",  # more steps than this source has
        "arithmetic/test/0/8",
        "arithmetic/test/9/8",
        "arithmetic/test/2/-8",
        "arithmetic/test/2/08",
        "arithmetic/test/2/1000000000",
        "arithmetic/test/2/8 ",
        "arithmetic/test/2/8\n",
        "arithmetic/test/2/\u0668",
        "arithmetic/test/2/",
        "gsm8k/test/2",
        "",
        8,
        None,
    ],
)
def test_ids_that_this_source_does_not_have_are_refused(task_id: Any) -> None:
    with pytest.raises(UnknownNameError, match="arithmetic/test/1/0"):
        ArithmeticTasks("test").get(task_id)


@pytest.mark.parametrize(
    "difficulty", [0, 9, -1, (1, 9), (0, 3), (3, 2), (1,), (1, 2, 3), "2", 2.0, True, None, (1, 2.5)]
)
def test_bad_difficulties_are_refused(difficulty: Any) -> None:
    with pytest.raises(ConfigError, match="difficulty="):
        ArithmeticTasks(difficulty=difficulty)
    with pytest.raises(ConfigError, match="difficulty="):
        held_out(3, difficulty)


@pytest.mark.parametrize("distractors", [-0.1, 1.1, float("nan"), float("inf"), "0.3", None, True])
def test_bad_shares_are_refused(distractors: Any) -> None:
    with pytest.raises(ConfigError, match="distractors="):
        ArithmeticTasks(distractors=distractors)


@pytest.mark.parametrize("split", ["tests", "", None, 1, ["train"]])
def test_bad_splits_are_refused(split: Any) -> None:
    with pytest.raises(UnknownNameError, match="'test', 'train'"):
        ArithmeticTasks(split)


def test_held_out_sets_are_distinct_balanced_and_fixed() -> None:
    tasks = held_out(202, (1, 4), seed=3)
    assert len({task.question for task in tasks}) == len({task.id for task in tasks}) == 202
    assert Counter(task.difficulty for task in tasks) == {1: 51, 2: 51, 3: 50, 4: 50}
    assert all(task.id.startswith("arithmetic/test/") for task in tasks)
    assert tasks == held_out(202, (1, 4), seed=3)
    assert tasks[:50] == held_out(50, (1, 4), seed=3)
    assert not {task.id for task in tasks} & {task.id for task in held_out(202, (1, 4), seed=4)}
    assert ArithmeticTasks("test").get(tasks[7].id) == tasks[7]


@pytest.mark.parametrize(
    "options", [{"n": 0}, {"n": 2.5}, {"n": True}, {"n": 3, "seed": "x"}, {"n": 3, "distractors": 2}]
)
def test_bad_held_out_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{[*options][-1]}="):
        held_out(**options)
