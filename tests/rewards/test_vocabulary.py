from __future__ import annotations

from trajgym.rewards import vocabulary


def test_every_word_is_in_lower_case() -> None:
    for name in vocabulary.__all__:
        assert all(word == word.lower() for word in getattr(vocabulary, name)), name


def test_no_filler_decides_anything() -> None:
    deciding = vocabulary.JOINERS | vocabulary.NEGATIONS | vocabulary.PHRASE_WORDS | vocabulary.SCALES.keys()
    assert not vocabulary.FILLERS & deciding


def test_number_words_count_up() -> None:
    assert sorted((vocabulary.ONES | vocabulary.TENS).values()) == [*range(20), *range(20, 100, 10)]
