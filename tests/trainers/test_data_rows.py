"""Subsets that are the same each time, one inside the other, with the shares of the whole; fingerprints."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError, DataError
from trajgym.trainers.data_rows import fingerprint, record, solution_of, steps_of, subset


def row(number: int, steps: int) -> dict[str, str]:
    return {"question": f"{number}?", "answer": "<<1+1=2>>" * steps + f"\n#### {number}"}


ROWS = [row(i, 1 + i % 4) for i in range(400)]


@pytest.mark.parametrize(
    ("example", "steps"),
    [
        (row(1, 3), 3),
        ({"prompt": "p", "completion": "<<1+1=2>>2\n<<2+2=4>>\n#### 4<|im_end|>"}, 2),
        ({"question": "?", "answer": "One line.\n\nAnother.\n#### 4"}, 2),
        ({"question": "?", "answer": "4"}, 0),
        ({"messages": [{"role": r} for r in ("user", "assistant", "tool", "assistant")]}, 1),
        ({"answer": 4}, 0),
        ({}, 0),
    ],
)
def test_steps(example: dict[str, Any], steps: int) -> None:
    assert steps_of(example) == steps


def test_the_solution_is_found_in_every_format() -> None:
    assert solution_of({"answer": "a"}) == solution_of({"ground_truth": "1", "full_answer": "a"}) == "a"
    assert solution_of({"prompt": "p", "completion": "c"}) == "c"
    assert solution_of({"question": "q"}) == ""


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 5))
def test_subsets_are_nested_ordered_and_have_the_shares_of_the_whole(a: int, b: int, seed: int) -> None:
    small, large = (subset(ROWS, n, seed=seed) for n in sorted((a, b)))
    assert (len(small), len(large)) == tuple(sorted((a, b)))
    places = [ROWS.index(r) for r in large]
    assert places == sorted(set(places))
    assert all(r in large for r in small)
    counts = Counter(map(steps_of, small))
    assert max(counts.values()) - min(counts[k] for k in range(1, 5)) <= 1  # four strata of the same size


def test_the_seed_decides() -> None:
    assert subset(ROWS, 40, seed=1) == subset(list(ROWS), 40, seed=1) != subset(ROWS, 40, seed=2)
    assert subset(ROWS, 40, stratified=False) != subset(ROWS, 40)
    assert subset(ROWS, None) == subset(ROWS, 1000) == ROWS


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "3"])
def test_sizes_that_are_none(bad: Any) -> None:
    with pytest.raises(ConfigError, match="max_samples must be a whole number from 1"):
        subset(ROWS, bad)


def test_the_fingerprint_depends_on_rows_columns_and_order_alone() -> None:
    print_of = fingerprint(ROWS)
    assert print_of.startswith("sha256:")
    assert len(print_of) == 7 + 64
    assert fingerprint([dict(reversed(r.items())) for r in ROWS]) == print_of
    for other in (ROWS[1:], ROWS[::-1], [{**ROWS[0], "id": 1}, *ROWS[1:]], [{**ROWS[0], "answer": "é"}, *ROWS[1:]]):
        assert fingerprint(other) != print_of
    assert fingerprint([{"ab": "c"}]) != fingerprint([{"a": "bc"}]) != fingerprint([{"a": "b"}, {"c": ""}])
    with pytest.raises(DataError, match="Row 1 cannot be fingerprinted"):
        fingerprint([{"a": float("nan")}])


def test_a_record_says_what_was_used() -> None:
    assert record("x", ROWS[:2], seed=3) == {
        "name": "x",
        "rows": 2,
        "columns": ["answer", "question"],
        "fingerprint": fingerprint(ROWS[:2]),
        "seed": 3,
    }
