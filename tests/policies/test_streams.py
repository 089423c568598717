from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trajgym.policies.streams import Stream, batches

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
