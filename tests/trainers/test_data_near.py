"""Near duplicates: every pair above the threshold found, none below it, the same ones each time."""

from __future__ import annotations

import random

import pytest

from trajgym.errors import ConfigError
from trajgym.trainers.data_near import Near, near_duplicates

WORDS = [f"w{i}" for i in range(2000)]


def text(rng: random.Random, length: int = 60) -> list[str]:
    return [rng.choice(WORDS) for _ in range(length)]


def exact(a: str, b: str) -> float:
    first, second = ({tuple(t.split()[i : i + 3]) for i in range(len(t.split()) - 2)} for t in (a, b))
    return len(first & second) / len(first | second)


def test_edited_copies_are_found_among_many() -> None:
    rng = random.Random(0)
    originals = [text(rng) for _ in range(300)]
    copies = []
    for words in originals[:100]:
        copy = list(words)
        copy[rng.randrange(len(copy))] = "other"  # three runs of 58 differ: 55 / 61 in common
        copies.append(copy)
    texts = [" ".join(t) for t in originals + copies]
    found = near_duplicates(texts, threshold=0.8)
    assert [(near.row, near.other) for near in found] == [(300 + i, i) for i in range(100)]
    for near in found:
        assert near.similarity == pytest.approx(exact(texts[near.row], texts[near.other]), abs=1e-4)
    assert found == near_duplicates(texts, threshold=0.8)


def test_the_threshold_is_exact() -> None:
    texts = ["a b c d e f", "a b c d e g"]  # 3 of 5 runs
    assert near_duplicates(texts, threshold=0.6) == [Near(1, 0, 0.6)]
    assert near_duplicates(texts, threshold=0.61) == []


def test_other_numbers_and_operators_are_other_words() -> None:
    assert near_duplicates(["What is 48 + 24?", "What is 48 - 24?"], threshold=0.8) == []
    assert near_duplicates(["what is  48 + 24 ?", "What is 48 + 24?"], threshold=1.0) == [Near(1, 0, 1.0)]


def test_against_other_texts() -> None:
    assert near_duplicates(["a b c", "x y z", "a b c"], against=["x y z"]) == [Near(1, 0, 1.0)]
    assert near_duplicates(["", "?"], threshold=0.5) == []


def test_many_copies_of_one_text_stay_cheap() -> None:
    texts = ["a b c d e f g"] * 5000
    assert len(near_duplicates(texts)) == 4999


@pytest.mark.parametrize("threshold", [0.0, 1.1, -1.0])
def test_thresholds_out_of_range(threshold: float) -> None:
    with pytest.raises(ConfigError, match=r"must lie in \(0, 1\]"):
        near_duplicates([], threshold=threshold)
