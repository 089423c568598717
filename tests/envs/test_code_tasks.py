from __future__ import annotations

import functools
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from trajgym.envs.arithmetic_wording import PEOPLE
from trajgym.envs.code_tasks import KINDS, CodeTasks
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.rewards.answer import correct
from trajgym.types import Task

EACH = 8  # tasks of each kind and split whose demonstrations are run
NAMES = re.compile(rf"\b({'|'.join(person.name for person in PEOPLE)})\b")

# Plays the programs of many tasks as an interpreter with a memory would: one namespace per task, the last expression
# of a program is shown. Reads a list of lists of programs, writes what the last program of each showed.
NOTEBOOK = """
import ast, contextlib, io, json, resource, sys, time
import numpy, sympy

def show(program, names):
    tree = ast.parse(program)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(compile(tree, "<program>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<program>", "eval"), names)
            if value is not None:
                print(repr(value))
    return shown.getvalue().strip()

def play(programs):
    names = {"__name__": "__main__"}
    begun = time.process_time()
    try:
        shown = [show(program, names) for program in programs][-1]
    except NameError as error:
        shown = f"NameError: {error}"
    return shown, time.process_time() - begun

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
played = [play(programs) for programs in json.load(sys.stdin)]
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
json.dump({"played": played, "grown_kib": grown}, sys.stdout)
"""


def _draw(n: int, split: str = "train", seed: int = 0, **options: Any) -> list[Task]:
    source, rng = CodeTasks(split, **options), np.random.default_rng(seed)
    return [source.sample(rng) for _ in range(n)]


def _programs(task: Task) -> list[str]:
    return [call.arguments["code"] for turn in task.solution for call in turn.calls]


def _play(tasks: list[list[str]]) -> Any:
    child = subprocess.run(
        [sys.executable, "-c", NOTEBOOK],
        input=json.dumps(tasks),
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(child.stdout)


@functools.cache
def _each_kind() -> tuple[Task, ...]:
    return tuple(
        task for split in ("train", "test") for name in KINDS for task in _draw(EACH, split, seed=11, kinds=[name])
    )


def test_running_the_demonstrations_gives_the_answers_that_were_found_in_another_way() -> None:
    tasks = _each_kind()
    assert len(tasks) == 2 * EACH * len(KINDS)
    report = _play([_programs(task) for task in tasks])
    wrong = [
        (task.id, task.answer, shown)
        for task, (shown, _) in zip(tasks, report["played"], strict=True)
        if not re.fullmatch(r"-?\d+(\.\d+)?", shown) or Fraction(shown) != Fraction(task.answer)
    ]
    assert wrong == []
    slow = {task.id: seconds for task, (_, seconds) in zip(tasks, report["played"], strict=True) if seconds > 0.5}
    assert slow == {}
    assert report["grown_kib"] < 64 * 1024  # all of them together; most of it is what sympy caches


def test_later_programs_use_what_earlier_ones_left() -> None:
    several = [task for task in _each_kind() if len(_programs(task)) > 1]
    assert len({task.metadata["kind"] for task in several}) > len(KINDS) / 3
    report = _play([_programs(task)[-1:] for task in several])
    assert all(shown.startswith("NameError") for shown, _ in report["played"])


def test_demonstrations_have_the_form_of_their_level() -> None:
    for task in _each_kind():
        *calls, last = task.solution
        assert last.text == f"#### {task.answer}"
        assert [[call.name for call in turn.calls] for turn in calls] == [["python"]] * len(calls)
        assert len(calls) in {1: {1}, 2: {1, 2}, 3: {2, 3}}[task.difficulty or 0]
        packages = {"numpy", "sympy"} & set(re.findall(r"\w+", " ".join(_programs(task))))
        assert bool(packages) == (task.difficulty == 3)
        assert not NAMES.search(" ".join(_programs(task)))  # else a name would decide about the split
        assert task.metadata == {"kind": task.id.split("/")[2], "group": KINDS[task.id.split("/")[2]].group}


def test_there_are_many_kinds_on_every_level() -> None:
    assert len(KINDS) >= 40
    assert len({kind.group for kind in KINDS.values()}) == 9
    assert min(Counter(kind.level for kind in KINDS.values()).values()) >= 10


def test_the_right_answer_is_accepted_and_others_are_not() -> None:
    for task in _each_kind():
        answer = Fraction(task.answer)
        unit = Fraction(1, 10 ** len(task.answer.partition(".")[2]))
        assert correct(task.solution[-1].text, task.answer)
        assert correct(f"The program printed {task.answer}.", task.answer)
        for wrong in (answer + unit, answer - unit, 10 * answer, answer / 10, answer + 1):
            assert not correct(f"#### {float(wrong)!r}", task.answer)
        assert not correct(f"#### {task.answer} or {float(answer + 1)!r}", task.answer)
        for program in _programs(task):
            assert not correct(f"```python\n{program}\n```\n####", task.answer)
            assert not correct(task.question, task.answer)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_spread_and_wordings_vary(kind: str) -> None:
    tasks = _draw(150, seed=3, kinds=[kind])
    assert Counter(task.answer for task in tasks).most_common(1)[0][1] <= 0.1 * len(tasks)
    assert len({str(_programs(task)) for task in tasks}) > 0.9 * len(tasks)
    wordings = Counter(_wording(task) for task in tasks)
    assert len(wordings) in (2, 3)
    assert min(wordings.values()) > 0.15 * len(tasks)


def _wording(task: Task) -> str:
    """The beginning and the end of the question, without what is drawn."""
    drawn = r'-?\d+|".*?"|\b[a-z]{30,}\b|sunny|cloudy|rainy|[a-z]+s\?$|\b[A-L]\?$|[a-z]+s cost\?$'
    words = re.sub(drawn, "#", NAMES.sub("X", task.question)).split()
    return " ".join(words[:2] + words[-2:])


@pytest.mark.parametrize("kind", KINDS)
def test_question_and_programs_speak_of_the_same_numbers(kind: str) -> None:
    for task in _draw(20, seed=5, kinds=[kind]):
        explained = re.sub("29 February 2024|20240229|90 degrees|z = 26", "", task.question)
        asked = {int(n) for n in re.findall(r"\d+", explained)}
        used = {int(n) for n in re.findall(r"\d+", " ".join(_programs(task)))}
        # A few are one off, such as "the numbers from 0 to 999" for a remainder modulo 1000.
        assert {n for n in asked if n > 20 and not {n - 1, n, n + 1} & used} == set(), task.question
        assert Fraction(task.answer) not in {abs(Fraction(n)) for n in re.findall(r"\d+(?:\.\d+)?", task.question)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_is_clean_text(kind: str) -> None:
    for task in _draw(30, "test", seed=6, kinds=[kind]):
        assert task.question.isascii()
        assert task.question == task.question.strip()
        assert "  " not in task.question
        assert task.question[0].isupper() or task.question[0].isdigit()
        assert task.question[-1] in "?.)"
        assert not re.search(r"\d(st|nd|rd|th)\b|[{}]|\bNone\b", task.question)
        assert len(task.question) < 700
        assert len(task.answer) <= 13


def test_the_splits_share_no_problem() -> None:
    for level in (1, 2, 3):
        train, test = ({str(_programs(t)) for t in _draw(500, s, difficulty=level)} for s in ("train", "test"))
        assert train.isdisjoint(test)


def test_another_wording_does_not_change_the_split() -> None:
    problems = []
    for split in ("train", "test"):
        questions = [task.question for task in _draw(4_000, split, kinds=["survivor"])]
        problems.append({_circle(question) for question in questions})
        assert len(problems[-1]) < 0.97 * len(set(questions))  # problems come up again: the check below could fail
    assert problems[0].isdisjoint(problems[1])


def _circle(question: str) -> tuple[int, int]:
    """Read how many there are, and which one leaves, out of either wording."""
    counted, moved = re.search(r"counted as (\d+)|Again and again (\d+) cards", question).groups()  # type: ignore[union-attr]
    return int(question.split()[0]), int(counted) if counted else int(moved) + 1


def test_both_splits_have_all_kinds_and_each_level_as_often() -> None:
    for split in ("train", "test"):
        tasks = _draw(1_200, split)
        levels = Counter(task.difficulty for task in tasks)
        assert set(levels) == {1, 2, 3}
        assert min(levels.values()) > 340
        assert {task.metadata["kind"] for task in tasks} == set(KINDS)
    only = _draw(50, kinds=["lamps", "determinant", "lamps"])
    assert {task.metadata["kind"] for task in only} == {"lamps", "determinant"}
    assert {task.difficulty for task in _draw(50, difficulty=2)} == {2}


def test_answers_of_both_splits_are_alike() -> None:
    for kind in ("prime_sum", "survivor", "best_window"):
        middle = {s: np.median([float(t.answer) for t in _draw(400, s, kinds=[kind])]) for s in ("train", "test")}
        assert middle["train"] == pytest.approx(middle["test"], rel=0.2)


def test_ids_make_the_same_task_again() -> None:
    for task in _each_kind():
        assert CodeTasks(task.id.split("/")[1]).get(task.id) == task


def test_tasks_do_not_depend_on_the_process_and_need_no_sympy() -> None:
    program = (
        "import hashlib, sys, numpy as np\n"
        "from trajgym.envs.code_tasks import KINDS, CodeTasks\n"
        "tasks = [CodeTasks('test').get(f'code/test/{kind}/{seed}') for kind in KINDS for seed in (0, 5)]\n"
        "assert 'sympy' not in sys.modules\n"
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
        for seed in ("1", "77")
    }
    assert len(seen) == 1
    assert len(seen.pop().strip()) == 64


def test_drawing_is_seeded_and_leaves_the_global_generators_alone() -> None:
    state = np.random.get_state()[1].tobytes()  # type: ignore[union-attr]
    assert _draw(50, seed=9) == _draw(50, seed=9)
    assert _draw(50, seed=9) != _draw(50, seed=10)
    assert np.random.get_state()[1].tobytes() == state  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "task_id",
    [
        "code/train/lamps/8",  # the other split
        "code/test/determinant/8",  # another level
        "code/test/lamp/8",
        "code/test/lamps/-8",
        "code/test/lamps/08",
        "code/test/lamps/1000000000",
        "code/test/lamps/8 ",
        "code/test/lamps/8\n",
        "code/test/lamps/\u0668",
        "code/test/lamps/",
        "arithmetic/test/2/8",
        "",
        8,
        None,
    ],
)
def test_ids_that_this_source_does_not_have_are_refused(task_id: Any) -> None:
    with pytest.raises(UnknownNameError, match="'code/test/lamps/0'"):
        CodeTasks("test", 2, ["lamps"]).get(task_id)


def test_a_wrong_id_is_answered_with_the_closest_ones() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'code/test/coin_ways/0'") as caught:
        CodeTasks("test").get("code/test/coinways/0")
    assert str(caught.value).count("code/test/") <= 7


@pytest.mark.parametrize(
    "difficulty", [0, 4, -1, (1, 4), (0, 3), (3, 2), (1,), (1, 2, 3), "2", 2.0, True, None, (1, 2.5)]
)
def test_bad_difficulties_are_refused(difficulty: Any) -> None:
    with pytest.raises(ConfigError, match="difficulty="):
        CodeTasks(difficulty=difficulty)


@pytest.mark.parametrize("split", ["tests", "", None, 1, ["train"]])
def test_bad_splits_are_refused(split: Any) -> None:
    with pytest.raises(UnknownNameError, match="'test', 'train'"):
        CodeTasks(split)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["prime_sums"], "Did you mean 'prime_sum'"),
        ([3], "Unknown kind of problem 3"),
        ([["lamps"]], "Unknown kind of problem"),
        ("lamps", "takes several"),
        (3, "takes several"),
        ([], "is empty"),
    ],
)
def test_bad_kinds_are_refused(kinds: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CodeTasks(kinds=kinds)


def test_kinds_must_fit_the_difficulty() -> None:
    with pytest.raises(ConfigError, match=r"'determinant', which is of level 3, but difficulty= asks for .* 1 to 2"):
        CodeTasks(difficulty=(1, 2), kinds=["lamps", "determinant"])


def test_a_source_says_what_it_is() -> None:
    assert repr(CodeTasks("test", 1, ["savings"])) == "CodeTasks('test', difficulty=(1, 1), kinds=('savings',))"
    assert list(itertools.islice(CodeTasks().kinds, 2)) == ["multiples_without_digit", "prime_sum"]
