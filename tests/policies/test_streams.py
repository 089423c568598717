from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trajgym.policies.streams import Stream, agreement, batches, leading, most_alike

LENGTHS = st.lists(st.tuples(st.integers(1, 200), st.integers(0, 3)), max_size=30)


@given(LENGTHS, st.integers(1, 500))
def test_every_stream_is_in_one_batch_and_batches_are_even(lengths: list[tuple[int, int]], most: int) -> None:
    # The stream's number is its first token, so no two start alike.
    streams = [Stream(k, k, 0, (), [k] + [0] * (n - 1), cached=cached) for k, (n, cached) in enumerate(lengths)]
    found = []
    for batch in batches(streams, most):
        sizes = [len(chunk.tokens) for chunk in batch]
        assert len(batch) == 1 or len(batch) * max(sizes) <= most
        assert max(sizes) <= 16 + 1.5 * min(sizes)
        assert len({stream.cached > 0 for chunk in batch for stream in chunk.streams}) == 1
        for chunk in batch:
            found += [stream.id for stream in chunk.streams]
            assert all(stream.pending == chunk.tokens for stream in chunk.streams)
    assert sorted(found) == list(range(len(streams)))


def test_equal_beginnings_are_one_chunk_and_equal_continuations_are_not() -> None:
    streams = [Stream(k, k, 0, (), [1, 2, 3], cached=cached) for k, cached in enumerate([0, 0, 7, 7, 0])]
    chunks = [[stream.id for stream in chunk.streams] for batch in batches(streams, 100) for chunk in batch]
    assert sorted(chunks) == [[0, 1, 4], [2], [3]]


def test_a_group_that_has_taken_over_a_beginning_is_one_chunk() -> None:
    prompt = (1, 2, 3, 4)
    streams = [Stream(k, k, 0, prompt, list(prompt[2:]), cached=2) for k in range(3)]
    streams.append(Stream(3, 3, 0, (9, 9, 3, 4), [3, 4], cached=2))
    streams.append(Stream(4, 4, 0, prompt, [3, 4], cached=4))  # an observation, which happens to be the same
    chunks = [[stream.id for stream in chunk.streams] for batch in batches(streams, 100) for chunk in batch]
    assert sorted(chunks) == [[0, 1, 2], [3], [4]]


SYSTEM = tuple(range(20))
PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=40).map(tuple), min_size=1, max_size=12)


@given(PROMPTS, st.lists(st.integers(0, 2), max_size=40).map(tuple))
def test_the_most_alike_is_found_without_looking_at_all(known: list[tuple[int, ...]], prompt: tuple[int, ...]) -> None:
    known = sorted(set(known))
    longest = max(agreement(prompt[:-1], other) for other in known)
    which, length = most_alike(prompt, known)
    assert length == (longest if longest >= 16 else 0)  # an eighth of these prompts is less
    if length:
        assert known[which][:length] == prompt[:length]
        assert length < len(prompt)


def test_nothing_is_known_at_first() -> None:
    assert most_alike(SYSTEM, []) == (0, 0)
    assert most_alike(SYSTEM, [SYSTEM]) == (0, 19)


def test_one_prompt_of_those_that_begin_alike_leads() -> None:
    one, two, other = (*SYSTEM, 7), (*SYSTEM, 8), tuple(range(50, 80))
    assert leading([two, one, other, one]) == {one}
    assert leading([one, one, other]) == set()  # a group is computed once anyway
    assert leading([(*SYSTEM[:15], 7), (*SYSTEM[:15], 8)]) == set()  # too little to be worth a pass
    assert leading([]) == set()


def test_a_small_part_of_a_long_prompt_is_not_worth_a_pass() -> None:
    long = (*SYSTEM, *range(100, 261))
    assert most_alike(long, [SYSTEM]) == (0, 0)  # 20 of 181
    assert most_alike(long[:160], [SYSTEM]) == (0, 20)
    assert leading([long, (*SYSTEM, *range(300, 461))]) == set()
    assert leading([long[:160], (*SYSTEM, *range(300, 420))]) == {long[:160]}
