"""The space of texts, and how Gymnasium's vector environments carry them unharmed.

Gymnasium's own ``Text`` has a fixed alphabet and a fixed width in shared memory; what a language model
reads and writes has neither.
"""

from __future__ import annotations

import os
import struct
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, overload

import numpy as np
from gymnasium import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    create_empty_array,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

from trajgym.errors import ConfigError

__all__ = ["Unicode"]

_SAMPLED = 64  # most characters of a sample
# What a sample is made of: mostly plain text, some of everything else. No half surrogate pairs: they are
# legal in the space, but are no text that could be encoded.
_RANGES = {
    "ascii": (0x20, 0x7E, 0.7),
    "control": (0x00, 0x1F, 0.1),
    "letters of other scripts": (0xA0, 0x24FF, 0.1),
    "ideographs": (0x4E00, 0x9FFF, 0.05),
    "emoji": (0x1F300, 0x1FAFF, 0.05),
}
_HEADER = struct.Struct("!Q")


class Unicode(Space[str]):
    r"""All texts: empty, blank, of any character, up to a length.

    >>> space = Unicode()
    >>> "" in space, "naïve 🙂\0" in space, 7 in space
    (True, True, False)

    Args:
        max_length: Most characters of a text.
        seed: Seed, or generator, for :meth:`sample`.

    Raises:
        ConfigError: ``max_length`` is no integer above 0.
    """

    def __init__(self, max_length: int = 2**24, seed: int | np.random.Generator | None = None) -> None:
        if not isinstance(max_length, (int, np.integer)) or isinstance(max_length, bool) or max_length < 1:
            raise ConfigError(f"max_length must be an integer above 0, got {max_length!r}")
        self.max_length = int(max_length)
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """``False``: a text has no fixed size."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """Draw a short text of varied characters.

        Raises:
            ConfigError: A mask is given; there is no list of characters it could refer to.
        """
        if mask is not None or probability is not None:
            raise ConfigError("A Unicode space has no masks: it has no list of characters. Call sample().")
        length = int(self.np_random.integers(0, min(_SAMPLED, self.max_length) + 1))
        lows, highs, weights = (np.array(column) for column in zip(*_RANGES.values(), strict=True))
        chosen = self.np_random.choice(len(_RANGES), size=length, p=weights)
        return "".join(map(chr, self.np_random.integers(lows[chosen], highs[chosen] + 1).tolist()))

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string of allowed length; its characters are not looked at."""
        return isinstance(x, str) and len(x) <= self.max_length

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Return the texts as a list; JSON carries every string, half surrogate pairs too."""
        return [str(text) for text in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """Return the texts of :meth:`to_jsonable`."""
        return [str(text) for text in sample_n]

    def __repr__(self) -> str:
        return f"Unicode({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((Unicode, self.max_length))


class _SharedTexts:
    """One slot per environment, in an unlinked file in memory that all processes hold open.

    A file and not a mapped array: it grows with what is written, so room for the longest text costs nothing
    until it is used. Written before and read after a message on Gymnasium's pipe, which orders the two.
    """

    def __init__(self, slots: int, max_length: int, descriptor: int | None = None) -> None:
        self._slots, self._max_length = slots, max_length
        self._stride = _HEADER.size + 4 * max_length  # UTF-8 has at most four bytes per character
        if descriptor is None:
            memory = Path("/dev/shm")  # noqa: S108
            descriptor, name = tempfile.mkstemp(prefix="trajgym-", dir=memory if os.access(memory, os.W_OK) else None)
            os.unlink(name)
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        # Reached only while a worker is spawned: a forked one inherits the descriptor.
        return _reopen, (self._slots, self._max_length, DupFd(self._descriptor))

    def __len__(self) -> int:
        return self._slots

    def write(self, slot: int, text: str) -> None:
        """Put a text into a slot."""
        if len(text) > self._max_length:
            raise ValueError(
                f"An observation of {len(text)} characters is not in its space, Unicode({self._max_length})"
            )
        body = text.encode("utf-8", "surrogatepass")
        rest = memoryview(_HEADER.pack(len(body)) + body)
        offset = slot * self._stride
        while rest:
            written = os.pwrite(self._descriptor, rest, offset)
            rest, offset = rest[written:], offset + written

    def read(self, slot: int) -> str:
        """Return the text last put into a slot, at first the empty one."""
        start = slot * self._stride
        header = self._pread(_HEADER.size, start)
        (length,) = _HEADER.unpack(header) if len(header) == _HEADER.size else (0,)
        return self._pread(length, start + _HEADER.size).decode("utf-8", "surrogatepass")

    def _pread(self, count: int, offset: int) -> bytes:
        parts = []
        while count:
            part = os.pread(self._descriptor, count, offset)
            if not part:
                break
            parts.append(part)
            count, offset = count - len(part), offset + len(part)
        return b"".join(parts)


def _reopen(slots: int, max_length: int, duplicate: Any) -> _SharedTexts:
    return _SharedTexts(slots, max_length, duplicate.detach())


class _TextView(Sequence[str]):
    """What all slots hold now.

    ``AsyncVectorEnv`` reads shared memory once, when it is made, and answers every step with a deep copy of
    what it got; so this stays up to date, and its deep copy is the tuple of that moment.
    """

    def __init__(self, texts: _SharedTexts) -> None:
        self._texts = texts

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        slots = range(len(self._texts))[index]
        return self._texts.read(slots) if isinstance(slots, int) else tuple(map(self._texts.read, slots))

    def __iter__(self) -> Iterator[str]:
        return map(self._texts.read, range(len(self._texts)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, _TextView)) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))


@create_shared_memory.register(Unicode)
def _create_shared_texts(space: Unicode, n: int = 1, ctx: Any = None) -> _SharedTexts:
    return _SharedTexts(n, space.max_length)


@read_from_shared_memory.register(Unicode)
def _read_shared_texts(space: Unicode, shared_memory: _SharedTexts, n: int = 1) -> _TextView:
    return _TextView(shared_memory)


@write_to_shared_memory.register(Unicode)
def _write_shared_text(space: Unicode, index: int, value: str, shared_memory: _SharedTexts) -> None:
    shared_memory.write(index, value)


# Batching, concatenating and iterating work as for every custom space: tuples. `iterate` must stay
# unregistered, or Gymnasium takes a batch of texts for a tuple of batches.


@create_empty_array.register(Unicode)
def _create_empty_texts(space: Unicode, n: int = 1, fn: Any = np.zeros) -> tuple[str, ...]:
    return ("",) * n


@batch_differing_spaces.register(Unicode)
def _batch_differing_texts(spaces: Any) -> Space[Any]:  # type: ignore[misc]  # dispatched by the members' type
    longest = max(spaces, key=lambda space: space.max_length)
    return batch_space(longest, len(spaces))


@is_space_dtype_shape_equiv.register(Unicode)
def _are_equivalent(space_1: Unicode, space_2: Space[Any]) -> bool:
    return isinstance(space_2, Unicode)
