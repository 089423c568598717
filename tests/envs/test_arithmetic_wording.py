from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from trajgym.envs.arithmetic_story import DOMAINS, Story, seeded
from trajgym.envs.arithmetic_wording import DISTRACTORS, PEOPLE, WORD_NUMBERS, Domain

MOST_WORDS = 450


def _wordings(domain: Domain) -> Iterator[str]:
    yield from domain.start
    for texts in domain.steps.values():
        yield from texts
    yield from domain.ask


def _fields(wording: str) -> set[str]:
    return set(re.findall(r"{(\w+)}", wording))


STEPS = sorted({text for domain in DOMAINS for texts in domain.steps.values() for text in texts})


@pytest.mark.parametrize("wording", STEPS)
def test_a_step_has_one_number_and_says_whose_quantity_it_changes(wording: str) -> None:
    words = [word for word in re.findall(r"\w+", wording.lower()) if word in WORD_NUMBERS]
    assert wording.count("{n}") + len(words) == 1
    assert not re.search(r"\d", wording)
    fields = _fields(wording)
    assert fields & {"A", "s", "o"}
    assert "his" not in fields or fields & {"A", "s"}
    assert "B" not in fields or "A" in fields  # with two people in a sentence, a pronoun could mean either
    assert fields <= {"A", "s", "o", "his", "B", "n", "things", "others"}


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.casts[0].things[0])
def test_a_domain_has_every_operation_and_one_sentence_per_wording(domain: Domain) -> None:
    assert set(domain.steps) == set("+-*/")
    # Two of these are always open to a story whose holders are used up and that must not repeat itself.
    for op in "+-":
        assert sum("{B}" not in text and "{n}" in text for text in domain.steps[op]) >= 2
    for text in _wordings(domain):
        assert re.fullmatch(r"[^.?]+[.?]", text)
    assert all("{n}" in text and "{A}" in text for text in domain.start)
    assert all("{n}" not in text and "{A}" in text for text in domain.ask)
    every = list(_wordings(domain))
    assert len(every) == len(set(every))


def test_no_sentence_can_be_read_as_two_operations() -> None:
    seen: dict[str, tuple[str, str]] = {}
    for domain in DOMAINS:
        for op, texts in domain.steps.items():
            for text in texts:
                # The holder by name everywhere: what a reader sees when no pronoun is used.
                shown = text.replace("{s}", "{A}").replace("{o}", "{A}")
                assert seen.setdefault(shown, (op, text)) == (op, text)


def test_the_vocabulary_is_small_enough_for_a_small_model() -> None:
    words = set()
    for domain in DOMAINS:
        for text in [*_wordings(domain), *DISTRACTORS]:
            words |= set(re.findall(r"[a-z]+", re.sub(r"{\w+}", " ", text).lower()))
        for cast in domain.casts:
            for text in [*cast.things, *(h for holder in cast.holders for h in vars(holder).values())]:
                words |= set(re.findall(r"[a-z]+", text.lower()))
    words |= {person.name.lower() for person in PEOPLE}
    assert 150 < len(words) <= MOST_WORDS


def test_every_wording_is_used() -> None:
    said: set[tuple[int, str]] = set()

    class Spy(Story):
        def _tell(self, wording: str, n: int | None) -> None:
            said.add((self.kind, wording))
            super()._tell(wording, n)

        @property
        def kind(self) -> int:
            return kinds[self._thing]

    # Which domain a thing belongs to; a thing of several domains counts for the last, so its wordings count there.
    kinds = {thing: i for i, domain in enumerate(DOMAINS) for cast in domain.casts for thing in cast.things}
    texts = [Spy(seeded("every wording", i), 4, distractor=True).text for i in range(3000)]

    assert {text for _, text in said} >= {text for domain in DOMAINS for text in _wordings(domain)}
    for distractor in DISTRACTORS:
        pattern = re.compile(re.escape(distractor).replace(r"\{C\}", r"\w+").replace(r"\{n\}", r"\d+"))
        assert any(pattern.search(text) for text in texts), distractor


def test_a_distractor_never_speaks_of_what_the_story_counts() -> None:
    for i in range(1500):
        story = Story(seeded("irrelevant", i), 2, distractor=True)
        (extra,) = [told for told in story._told if _is_distractor(told)]
        assert not set(re.findall(r"\w+", extra)) & set(re.findall(r"\w+", story._thing)), story.text


def _is_distractor(sentence: str) -> bool:
    patterns = (re.escape(text).replace(r"\{C\}", r"\w+").replace(r"\{n\}", r"\d+") for text in DISTRACTORS)
    return any(re.fullmatch(pattern, sentence) for pattern in patterns)
