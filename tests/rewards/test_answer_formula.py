r"""Finding the formula that a completion gives as its answer, and comparing it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import DataError
from trajgym.rewards.answer_formula import correct_formula, read_formula, truth_formula
from trajgym.rewards.answer_reading import REASONS, RULES

pytest.importorskip("sympy")

RIGHT = [
    (r"so \boxed{x^2+1}", "1+x^2"),
    (r"\boxed{\text{The set } } is wrong, \boxed{\{1,2\}}", r"\{2,1\}"),
    (r"The final answer is: $\boxed{\dfrac{\pi}{2}}$", r"\frac{\pi}{2}"),
    ("#### 2x - 1", "-1+2x"),
    ("#### $2x - 1$", "2x-1"),
    ("## Solution\n#### Step 1\nadd\n#### Solution\nThe answer is $\\frac{1}{2}x$.", "x/2"),
    ("Final answer: **[0, 1)**", "[0,1)"),
    ("<answer>(-1, 2)</answer>", "(-1,2)"),
    ("<answer>\n$$x = 3$$\n</answer>", "3"),
    ("Answer: \\[ \\begin{pmatrix}1\\\\2\\end{pmatrix} \\]", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ('{"answer": "\\\\frac{1}{2}"}', "0.5"),
    ("A: x + 1", "1 + x"),
    ("The answer is $x + 1$, as we wanted to show.", "x+1"),
    ("The answer is (A).", "A"),
    (r"\boxed{\text{east}}", "east"),
    (r"\boxed{red}", r"\text{red}"),
    ("So we get $x = 3$.", "3"),
    ("Then\n$$\n\\boxed{y=2x}\n$$", "y = 2x"),
    ("x = 3", "3"),
    ("#### x\nQuestion: and now?\n#### y", "x"),
    (r"<think>\boxed{3}</think>\boxed{4}", "4"),
    (r"\boxed{1} \boxed{2}", "2"),
    # read as a number
    ("The answer is 72 clips in 2 months", "72"),
    ("#### 72 clips", "72"),
    ("#### $72.00", "72"),
    ("so $x=5$ gives a total of 72 dollars.", "72"),
    ("She sold 72.", "72"),
    ("50%", "50"),
    # truths as whole solutions
    ("#### x+1", "First add.\n#### 1+x"),
    ("#### x+1", r"First add: \boxed{2}, then $\boxed{1+x}$."),
]

WRONG = [
    (r"\boxed{70 \text{ or } 72}", "72"),
    (r"\boxed{2x}", "2"),
    (r"\boxed{50\%}", "0.5"),
    ("<answer></answer> 72", "72"),
    (r"\boxed{72", "72"),
    (r"\boxed{x} \boxed{", "x"),
    (r"<think>\boxed{3}</think>\boxed{4}", "3"),
    ("The answer is $x$ and not $y$", "x"),
    ("The answer is x + 1 because we can", "x+1"),
    ("I do not know.", "x"),
    ("", "x"),
    ("#### Solution", r"\text{solution}"),
    ("the answer is x\nthe answer is y", "x"),
    ("ground_truth", "x"),
]


@pytest.mark.parametrize(("completion", "answer"), RIGHT)
def test_right(completion: str, answer: str) -> None:
    assert correct_formula(completion, answer)


@pytest.mark.parametrize(("completion", "answer"), WRONG)
def test_wrong(completion: str, answer: str) -> None:
    assert not correct_formula(completion, answer)


@pytest.mark.parametrize(
    ("completion", "rule", "reason", "source"),
    [
        (r"so \boxed{ x^2 + 1 }.", "boxed", "", "x^2 + 1"),
        ("The answer is $x$.", "answer_is", "", "$x$."),
        ("The answer is $x+1$ whenever it rains.", "answer_is", "", "x+1"),
        ("So\n$y = x$", "last_formula", "", "y = x"),
        ("She sold 72 clips to 3 friends", "last_number", "", "3"),
        (r"\boxed{", "boxed", "unclosed_marker", r"\boxed{"),
        (r"\boxed{}", "boxed", "no_number", r"\boxed{"),
        (r"\boxed{5 + }", "boxed", "unreadable", "5 +"),
        ("Nothing.", "none", "nothing", ""),
    ],
)
def test_reading(completion: str, rule: str, reason: str, source: str) -> None:
    reading = read_formula(completion)
    assert (reading.rule, reading.reason, reading.source(completion)) == (rule, reason, source)


@pytest.mark.parametrize(
    "text", ["", "####", "1/0", r"\frac{x}{y-y}", "9^{9^{9^9}}", r"\int x", "a ? b", r"x \le", "2 3"]
)
def test_a_truth_that_cannot_be_read_raises(text: str) -> None:
    with pytest.raises(DataError, match="ground truth"):
        truth_formula(text)
    with pytest.raises(DataError):
        correct_formula("#### x", text)


def test_a_truth_that_is_not_text_raises() -> None:
    with pytest.raises(DataError, match="None"):
        truth_formula(None)  # type: ignore[arg-type]


PIECES = r"""
x y 0 5 72 - + * / ^ = < > ( ) [ ] { } \{ \} , . $ $$ \frac \sqrt \pm \cup \infty \pi \text{ \boxed{ #### <answer>
</answer> | ! % \begin{pmatrix} \end{pmatrix} & \\ sin log or and cm the answer is Final Answer: <think> </think> _ °
"""
TEXTS = st.lists(st.sampled_from([*PIECES.split(), " ", "\n"]), max_size=40).map("".join) | st.text()


@given(TEXTS)
def test_any_text_is_read_without_an_error(text: str) -> None:
    reading = read_formula(text)
    assert reading.rule in RULES
    assert (reading.value is None) is (reading.reason in REASONS)
    if reading.value is not None:
        assert 0 < len(reading.source(text)) <= len(text)


@given(TEXTS, TEXTS)
def test_any_two_texts_are_compared_without_an_error(completion: str, answer: str) -> None:
    with contextlib.suppress(DataError):
        assert correct_formula(completion, answer) in (True, False)
