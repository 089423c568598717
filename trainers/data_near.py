"""Near duplicates among many texts, in time that grows with their number and not with its square.

Texts are compared by the share of three-word runs that they have in common (Jaccard). Candidates are found by MinHash
in bands, so that a pair at the threshold is missed about once in six thousand times, and every pair that is reported
was compared exactly. Nothing is random.

Source: Broder 1997, On the resemblance and containment of documents.

>>> near_duplicates(["a b c d e f", "something else altogether", "a b c d e g"], threshold=0.5)
[Near(row=2, other=0, similarity=0.6)]
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajgym.errors import ConfigError

__all__ = ["NEAR", "Near", "near_duplicates"]

NEAR = 0.8
"""From this similarity on, two texts are near duplicates."""

_RUN = 3  # words
_BANDS, _ROWS = 16, 4
_PRIME = np.uint64(2**31 - 1)
_MOST_REPRESENTATIVES = 8  # of texts in one bucket that the next one is compared with
_WORD = re.compile(r"\w+|[^\w\s]")


class Near(NamedTuple):
    """A text and the most similar one among those before it.

    Args:
        row: The text.
        other: The one before it.
        similarity: Share of three-word runs in common, 0 to 1.
    """

    row: int
    other: int
    similarity: float


def near_duplicates(texts: Sequence[str], *, threshold: float = NEAR, against: Sequence[str] = ()) -> list[Near]:
    """Return the texts that are almost the same as an earlier one.

    Args:
        texts: The texts.
        threshold: The similarity from which on a pair is reported, above 0 and at most 1.
        against: Compare with these in place of the earlier ones of ``texts``; ``other`` counts in them then.

    Raises:
        ConfigError: When ``threshold`` is out of range.
    """
    if not 0.0 < threshold <= 1.0:
        raise ConfigError(f"threshold must lie in (0, 1], got {threshold}.")
    earlier = [_runs(text) for text in against]
    buckets: dict[tuple[int, bytes], list[int]] = {}
    for i, runs in enumerate(earlier):
        _candidates(buckets, runs, i, keep=True)
    found = []
    for i, runs in enumerate(map(_runs, texts)):
        candidates = _candidates(buckets, runs, len(earlier), keep=not against)
        if not against:
            earlier.append(runs)
        similar = [(_similarity(runs, earlier[j]), -j) for j in candidates]
        best, negative = max(similar, default=(0.0, 0))
        if best >= threshold:
            found.append(Near(i, -negative, round(best, 4)))
    return found


def _candidates(
    buckets: dict[tuple[int, bytes], list[int]], runs: frozenset[int], index: int, *, keep: bool
) -> set[int]:
    """Return what shares a band with a text, and perhaps put the text into its buckets."""
    candidates: set[int] = set()
    signature = _signature(runs)
    for band in range(_BANDS):
        key = (band, signature[band * _ROWS : (band + 1) * _ROWS].tobytes())
        members = buckets.setdefault(key, []) if keep else buckets.get(key, [])
        candidates.update(members)
        if keep and len(members) < _MOST_REPRESENTATIVES:
            members.append(index)
    return candidates


def _runs(text: str) -> frozenset[int]:
    words = _WORD.findall(text.casefold())
    count = max(1, len(words) - _RUN + 1)
    return frozenset(zlib.crc32(" ".join(words[i : i + _RUN]).encode()) for i in range(count))


def _signature(runs: frozenset[int]) -> NDArray[np.uint64]:
    values = np.fromiter(runs, dtype=np.uint64, count=len(runs)) % _PRIME
    # Factors below 2^31 times values below 2^31 stay below 2^63.
    hashed: NDArray[np.uint64] = (_FACTORS[:, None] * values[None, :] + _SHIFTS[:, None]) % _PRIME
    return np.asarray(hashed.min(axis=1), dtype=np.uint64)


def _similarity(a: frozenset[int], b: frozenset[int]) -> float:
    common = len(a & b)
    return common / (len(a) + len(b) - common)


_FACTORS, _SHIFTS = np.random.default_rng(0).integers(1, 2**31 - 1, size=(2, _BANDS * _ROWS), dtype=np.uint64)
