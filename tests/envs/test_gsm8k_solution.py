"""Demonstrations of GSM8K: the annotated calls in order, no result told before its call, and never too many turns."""

from __future__ import annotations

import os
import re
from fractions import Fraction
from pathlib import Path

import pytest

from trajgym.envs.gsm8k import GSM8KEnv
from trajgym.envs.gsm8k_solution import MOST_CALL_TURNS, annotated, demonstration
from trajgym.envs.gsm8k_tasks import GSM8KTasks
from trajgym.types import Task

DATA = Path(os.environ.get("TRAJGYM_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data") / "gsm8k"
real = pytest.mark.skipif(not DATA.is_dir(), reason=f"no data in {DATA}")


def solved(full: str) -> list[tuple[str, list[str]]]:
    """The turns of a demonstration as texts and expressions, without the last one, which answers."""
    *turns, last = demonstration(full, "7")
    assert (last.text, last.calls) == ("#### 7", ())
    return [(turn.text, [call.arguments["expression"] for call in turn.calls]) for turn in turns]


@pytest.mark.parametrize(
    ("answer", "turns"),
    [
        ("He has 3 * 4 = <<3*4=12>>12 pens.\n#### 12", [("He has", ["3*4"])]),
        ("It costs 3 x $4 = $<<3*4=12>>12.\n#### 12", [("It costs", ["3*4"])]),
        ("A box of 3*4=<<3*4=12>>12 pens.\n#### 12", [("A box of", ["3*4"])]),
        ("The box: 3*4=<<3*4=12>>12 pens.\n#### 12", [("The box", ["3*4"])]),
        # the result stands in the text, in digits or in words: no text
        ("To get 12 pens he does 3*4=<<3*4=12>>12.\n#### 12", [("", ["3*4"])]),
        ("To get 12.0 pens he does 3*4=<<3*4=12>>12.\n#### 12", [("", ["3*4"])]),
        ("Twelve pens: 3*4=<<3*4=12>>12.\n#### 12", [("", ["3*4"])]),
        ("All 1,200 pens: 300*4=<<300*4=1200>>1200.\n#### 1200", [("", ["300*4"])]),
        # a result that cannot be read is not taken for an innocent one
        ("He has 3*4=<<3*4=1e99999999>>12.\n#### 12", [("", ["3*4"])]),
        ("He has 1/0=<<1/0=1/0>>12.\n#### 12", [("", ["1/0"])]),
        ("#1: he has 3*4=<<3*4=12>>12.\n#### 12", [("", ["3*4"])]),
        # several in a line, several lines, none
        (
            "He has 3*4=<<3*4=12>>12 pens and gets 12+1=<<12+1=13>>13.\n#### 13",
            [("He has", ["3*4"]), ("12 pens and gets", ["12+1"])],
        ),
        (
            "He has 3*4=<<3*4=12>>12.\nNow 12/2=<<12/2=6>>6 left.\n#### 7",
            [("He has", ["3*4"]), ("Now", ["12/2"])],
        ),
        ("He counts them.\n#### 1,234", []),
        ("Broken << and <<3>> and >> are words.\n#### -5", []),
    ],
)
def test_one_call_a_turn(answer: str, turns: list[tuple[str, list[str]]]) -> None:
    assert solved(answer) == turns


def worked(*steps: str) -> str:
    """A worked solution of steps such as ``"3*4=12"``, with a word before each."""
    return "\n".join(f"Then <<{step}>>" for step in steps)


CHAIN = [f"{2**n}*2={2 ** (n + 1)}" for n in range(1, 10)]


@pytest.mark.parametrize("steps", range(8))
def test_what_fits_is_left_as_it_is(steps: int) -> None:
    assert solved(worked(*CHAIN[:steps])) == [("Then", [step.partition("=")[0]]) for step in CHAIN[:steps]]


def test_calls_that_wait_for_nothing_go_together() -> None:
    steps = [*CHAIN[:3], "100*3=300", *CHAIN[3:7]]
    turns = solved(worked(*steps))
    assert [expressions for _, expressions in turns][2:4] == [["8*2", "100*3"], ["16*2"]]
    assert turns[2][0] == "Then\nThen"
    assert len(turns) == MOST_CALL_TURNS


def test_a_turn_takes_as_many_as_it_must() -> None:
    steps = [f"{n}*100={100 * n}" for n in range(11, 31)]
    turns = solved(worked(*steps))
    assert len(turns) == MOST_CALL_TURNS
    assert [e for _, expressions in turns for e in expressions] == [step.partition("=")[0] for step in steps]


def test_in_a_chain_the_first_two_share_a_turn_and_no_text_tells_the_result() -> None:
    full = worked(*CHAIN[:8]).replace("Then <<4*2", "With 4 then <<4*2")
    assert solved(full)[:2] == [("Then", ["2*2", "4*2"]), ("Then", ["8*2"])]


def test_a_result_that_cannot_be_read_might_be_waited_for() -> None:
    unknown = [*CHAIN[:2], "1/3=?", "100*3=300", *CHAIN[2:6]]
    known = [*CHAIN[:2], "1/3=0.5", "100*3=300", *CHAIN[2:6]]
    assert ["1/3", "100*3"] not in [expressions for _, expressions in solved(worked(*unknown[2:], *unknown[:2]))]
    assert ["1/3", "100*3"] in [expressions for _, expressions in solved(worked(*known[2:], *known[:2]))]


# ---------------------------------------------------------------------------------------------- the real data


@pytest.fixture(scope="module")
def problems() -> list[Task]:
    return [task for split in ("train", "test") for task in GSM8KTasks(split, path=DATA)]


@real
def test_every_annotation_is_a_call_and_every_demonstration_fits(problems: list[Task]) -> None:
    assert len(problems) == 8792
    for task in problems:
        found = annotated(task.metadata["full_answer"])
        *turns, last = task.solution
        assert [c.arguments["expression"] for turn in turns for c in turn.calls] == [e.strip() for e, _ in found]
        assert len(turns) == min(len(found), MOST_CALL_TURNS)
        assert task.difficulty == len(found)
        assert (last.text, last.calls) == (f"#### {task.answer}", ())


@real
def test_the_demonstrations_with_shared_turns_are_played_to_their_end(problems: list[Task]) -> None:
    shared = [task for task in problems if any(len(turn.calls) > 1 for turn in task.solution)]
    assert len(shared) == 52
    env = GSM8KEnv(tasks=shared)
    assert env.max_turns == MOST_CALL_TURNS + 1
    for task in shared:
        env.reset(options={"task": task})
        ends = [env.step(action)[1:4] for action in env.expert(task)]
        assert [end[1:] for end in ends] == [(False, False)] * MOST_CALL_TURNS + [(True, False)]
        assert ends[-1][0] == 1.0


@real
def test_four_chains_have_two_calls_of_which_one_waits_for_the_other(problems: list[Task]) -> None:
    waiting = 0
    for task in problems:
        found = iter(annotated(task.metadata["full_answer"]))
        for turn in task.solution[:-1]:
            results = [result for _, (_, result) in zip(turn.calls, found, strict=False)]
            for i, call in enumerate(turn.calls):
                waiting += bool(set(results[:i]) & set(re.findall(r"[\d.]+", call.arguments["expression"])))
    assert waiting == 4


@real
def test_no_text_gives_away_what_its_calls_are_to_compute(problems: list[Task]) -> None:
    told = 0
    for task in problems:
        found = iter(annotated(task.metadata["full_answer"]))
        for turn in task.solution[:-1]:
            told += bool(turn.text)
            numbers = [n.replace(",", "") for n in re.findall(r"\d[\d,]*\.?\d*|\.\d+", turn.text)]
            for _, (_, result) in zip(turn.calls, found, strict=False):
                assert Fraction(result.replace(",", "")) not in [Fraction(n.rstrip(".")) for n in numbers], turn
            assert "<<" not in turn.text
            assert "####" not in turn.text
    assert told > 20_000  # most turns say something
