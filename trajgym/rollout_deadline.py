"""When to wait no longer: for an environment that hangs, and for the last members of a group.

With a deadline of D seconds, an episode is a straggler, and closed as invalid,

- once its environment has not answered a call for D seconds. The clock starts when the call gets a thread: it is not
  to blame for those before it;
- once its group has waited for it for D seconds since at least half of the group, with two valid members among them,
  ended. The clock starts there and not at the beginning of the rollout: a time for the whole of it would have to be
  guessed, and would cut everybody on a machine that is slow; this one cuts those alone who are slow beside their own
  group, and never the two without whom a group has nothing to compare. While an episode waits for a thread, or for
  other episodes in lockstep, its clock stands still.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["GroupClock"]


@dataclass
class _Standing:
    """How far a group is."""

    unborn: int  # members that have not begun, e.g. for want of a slot
    enough: int  # ended members after which the clock may start
    ended: int = 0
    valid: int = 0
    since: float = math.inf  # when the clock started
    held: dict[int, float] = field(default_factory=dict)  # seconds since then in which a member could do nothing


class GroupClock:
    """Keeps the time of groups.

    Args:
        episodes: How many there are, the members of a group side by side.
        size: Members of a group; the last one may have fewer.

    >>> clock = GroupClock(episodes=4, size=4)
    >>> for member in range(4):
    ...     clock.begins(member, now=0.0)
    >>> for member in range(2):
    ...     clock.ends(member, valid=True, now=7.0)
    >>> clock.waits(3, now=9.0)
    2.0
    """

    def __init__(self, episodes: int, size: int) -> None:
        self._size = size
        lengths = [min(size, episodes - first) for first in range(0, episodes, size)]
        self._groups = [_Standing(unborn=n, enough=max(2, math.ceil(n / 2))) for n in lengths]

    def begins(self, episode: int, now: float) -> None:
        """Note that an episode has got its environment, or failed to."""
        group = self._groups[episode // self._size]
        group.unborn -= 1
        self._look(group, now)

    def ends(self, episode: int, valid: bool, now: float) -> None:
        """Note that an episode is over."""
        group = self._groups[episode // self._size]
        group.ended += 1
        group.valid += valid
        self._look(group, now)

    def held_up(self, episode: int, begin: float, end: float) -> None:
        """Note that an episode waited for others from ``begin`` to ``end``: that is not its own delay."""
        group = self._groups[episode // self._size]
        group.held[episode] = group.held.get(episode, 0.0) + max(0.0, end - max(begin, group.since))

    def waits(self, episode: int, now: float) -> float:
        """Return for how many seconds an episode's group has been waiting for it since the clock started."""
        group = self._groups[episode // self._size]
        return max(0.0, now - group.since) - group.held.get(episode, 0.0)

    def _look(self, group: _Standing, now: float) -> None:
        if not group.unborn and group.ended >= group.enough and group.valid >= 2:
            group.since = min(group.since, now)
