"""Problems with other numbers: right by construction, by another calculator, and in the environment; doubts refuse."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs.gsm8k_solution import annotated
from trajgym.envs.tools.expression import evaluate
from trajgym.errors import ConfigError, DataError
from trajgym.trainers.data_augmented import Augmented
from trajgym.trainers.data_expert import expert_set
from trajgym.trainers.data_links import link
from trajgym.trainers.data_numerals import numerals
from trajgym.trainers.data_renumber import renumber, renumbered
from trajgym.trainers.data_working import read_working
from trajgym.trainers.datasets import GSM8KDataset, tasks_of

QUESTION = "A crate holds 40 pens. Ann buys 9 crates and gives away 70 pens. How many pens are left?"
ANSWER = "She buys 40*9=<<40*9=360>>360 pens.\nThere are 360-70=<<360-70=290>>290 left.\n#### 290"


def free(question: str, answer: str) -> list[int]:
    return [int(v) for v in link(question, list(numerals(question)), read_working(answer)).free]


def test_all_numbers_change_together() -> None:
    new = renumber(QUESTION, ANSWER, seed=3)
    assert set(new.changes) == {"40", "9", "70"}
    pens, crates, gone = (int(new.changes[old]) for old in ("40", "9", "70"))
    assert new.question == QUESTION.replace("40", str(pens)).replace(" 9 ", f" {crates} ").replace("70", str(gone))
    total, left = pens * crates, pens * crates - gone
    assert new.answer == (
        f"She buys {pens}*{crates}=<<{pens}*{crates}={total}>>{total} pens.\n"
        f"There are {total}-{gone}=<<{total}-{gone}={left}>>{left} left.\n#### {left}"
    )
    assert renumber(QUESTION, ANSWER, seed=3) == new != renumber(QUESTION, ANSWER, seed=4)


def test_the_same_numbers_give_the_same_results() -> None:
    links = link(QUESTION, list(numerals(QUESTION)), read_working(ANSWER))
    same = links.recomputed({})
    assert same is not None
    assert same.results == (360, 290)
    assert links.recomputed({Fraction(70): Fraction(400)}) is None  # less than nothing would be left


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        # 40 is a given number and a result: whatever follows may mean either.
        (
            "He sold half of 80 pens, has 40 pads and 23 keys.",
            "<<80/2=40>>\n<<40+23=63>>\n<<63+40=103>>\n#### 103",
            [23],
        ),
        # Half brings a 2 and a 50 along; the week a 7.
        ("He sells half of his 50 pens at $7 a week.", "<<50/2=25>>\n<<25*7=175>>\n#### 175", []),
        # A number that is given twice may mean two things.
        ("He has 20 pens and 20 pads at $6.", "<<20+20=40>>\n<<40*6=240>>\n#### 240", [6]),
        # 24 may say over again what 8 and 3 say.
        ("He has 8 rows of 3 pens, so 24, at $9 each.", "<<8*3=24>>\n<<24*9=216>>\n#### 216", [9]),
        # A broken number on the way must not change.
        ("He has 30 pens at $9.", "<<30/4*9=67.5>>\n#### 67.5", None),
        # Percentages stay.
        ("He keeps 20% of 80 pens.", "<<80*.2=16>>16\n#### 16", [80]),
    ],
)
def test_doubts_leave_numbers_alone(question: str, answer: str, expected: list[int] | None) -> None:
    if not expected:
        with pytest.raises(DataError):
            free(question, answer)
    else:
        assert free(question, answer) == expected


@pytest.mark.parametrize(
    ("question", "answer", "why"),
    [
        (QUESTION.replace("pens", "years old"), ANSWER, "ages"),
        (QUESTION + " He gave away at least 3.", ANSWER, "bounds and choices"),
        (QUESTION, ANSWER.replace("<<40*9=360>>", "<<40*x=360>>"), "not plain arithmetic"),
        (QUESTION, ANSWER.replace("=290>>", "=291>>"), "an annotation of the solution is not exact"),
        (QUESTION, ANSWER.replace("#### 290", "#### 360"), "the answer is not the last result"),
        (QUESTION + " There are 33 pads.", ANSWER, "the question gives a number that the solution does not use"),
        (QUESTION, ANSWER.replace("40*9=<<40*9", "40*9=<<40*8+40"), "uses a number that the question does not give"),
        (QUESTION, "He takes 55 home.\n" + ANSWER, "shows a number that the question does not give"),
        (QUESTION, "It is so.\n#### 290", "the solution has no annotations"),
        ("Ann has 3 pens and 4 pads. All?", "<<3+4=7>>7\n#### 7", "no number can be changed without doubt"),
    ],
)
def test_problems_that_cannot_be_renumbered_say_why(question: str, answer: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        renumber(question, answer)


def test_a_number_in_words_is_not_left_behind() -> None:
    spoken = ANSWER.replace("There are 360-70", "Of three hundred sixty, there are 360-70")
    assert free(QUESTION, spoken) == [70]
    with pytest.raises(DataError, match="without doubt"):
        free("Ann has 12 pens and 7 pads.", "She has <<12+7=19>>nineteen things.\n#### 19")


def test_commas_and_money_keep_their_form() -> None:
    question = "A car costs $12,000 and a boat $7,000. How much more is the car?"
    answer = "It is $12,000 - $7,000 = $<<12000-7000=5000>>5,000 more.\n#### 5,000"
    new = renumber(question, answer)
    assert re.search(r"\$\d+,000 and a boat \$\d,000\.", new.question)
    assert new.answer.endswith(",000")
    check([{"question": question, "answer": answer}], Augmented("x", (vars(new) | {},), (0,)))


def test_rows_and_copies() -> None:
    rows = [{"question": QUESTION, "full_answer": ANSWER}, {"question": "Why?", "answer": "#### 1"}]
    made = renumbered(rows, copies=4, seed=5)
    assert made.sources == (0,) * 4
    assert len({row["question"] for row in made.rows} | {QUESTION}) == 5
    assert made.refused == {"the solution has no annotations": (1,)}
    assert made.summary.startswith("1 of 2 problems renumbered (50.0%), 4 new rows; 1 refused:")
    assert renumbered(rows, copies=4, seed=5) == made
    check(rows, made)
    with pytest.raises(ConfigError, match="copies must be a whole number from 1"):
        renumbered(rows, copies=0)


def check(rows: Any, made: Augmented) -> None:
    """Check new problems by other means than those that made them."""
    for row, source in zip(made.rows, made.sources, strict=True):
        old_question = rows[source]["question"]
        old = rows[source].get("answer") or rows[source]["full_answer"]
        digits = re.compile(r"\d[\d,]*")
        assert digits.sub("#", row["question"]) == digits.sub("#", old_question)
        assert digits.sub("#", row["answer"]) == digits.sub("#", old)
        assert row["question"] != old_question
        calculations = annotated(row["answer"])
        for expression, result in calculations:
            assert Fraction(evaluate(expression)) == Fraction(result.replace(",", ""))
        for result, shown in re.findall(r"=([^<>=]*)>>(\d[\d,]*(?:\.\d+)?)", row["answer"]):
            assert Fraction(result.replace(",", "")) == Fraction(shown.replace(",", ""))
        final = row["answer"].rpartition("####")[2].replace(",", "").strip()
        assert Fraction(final) == Fraction(calculations[-1][1].replace(",", ""))
        assert int(final) > 0


def test_problems_of_gsm8k(gsm8k_data: Path) -> None:
    data = GSM8KDataset("test", 300, path=gsm8k_data / "gsm8k")
    made = renumbered(data.rows)
    assert 0.15 < made.share < 0.4
    check(data.rows, made)
    assert not expert_set(tasks_of(made.rows[:25])).dropped


@pytest.mark.slow
def test_all_problems_of_gsm8k(gsm8k_data: Path) -> None:
    data = GSM8KDataset("train", path=gsm8k_data / "gsm8k")
    made = renumbered(data.rows, seed=1)
    assert made.share > 0.2
    check(data.rows, made)
    found = expert_set(tasks_of(made.rows))
    assert not found.dropped
