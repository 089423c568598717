"""Waiting for calls to end: in a poll loop for one or many, or in an event loop.

A loop watches descriptors, and looks at the calls' clocks when the first limit may be broken.
"""

from __future__ import annotations

import asyncio
import select
import time

from trajgym.envs.sandbox.call import Call

__all__ = ["SHORT", "watch", "watch_in_loop"]

SHORT = 0.001
"""Seconds within which most calls end; until then their output waits, and one descriptor is watched, not two."""


def watch(calls: list[Call]) -> None:
    """Pump the calls as their descriptors become ready, until all have ended."""
    poller = select.poll()
    owner: dict[int, Call] = {}
    watched: dict[Call, dict[int, int]] = {}

    def update(call: Call, output: bool) -> None:
        before = watched.get(call, {})
        now = {} if call.result is not None else call.interest(output or len(before) > 1)
        for descriptor in before.keys() - now.keys():
            poller.unregister(descriptor)
            del owner[descriptor]
        for descriptor, events in now.items():
            if before.get(descriptor) != events:
                poller.register(descriptor, events)
                owner[descriptor] = call
        if now:
            watched[call] = now
        else:
            watched.pop(call, None)

    for call in calls:
        update(call, output=False)
    look_at_clocks = time.monotonic() + SHORT
    while watched:
        for descriptor, _ in poller.poll(max(look_at_clocks - time.monotonic(), 0) * 1000):
            if descriptor in owner:  # its call may have ended in this very round
                call = owner[descriptor]
                call.pump()
                update(call, output=False)
        if time.monotonic() >= look_at_clocks:
            for call in list(watched):
                call.pump()
                update(call, output=True)
            look_at_clocks = time.monotonic() + min((call.seconds_left() for call in watched), default=0.0)


async def watch_in_loop(call: Call) -> None:
    """Pump a call from the running event loop until it has ended."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    watched: dict[int, int] = {}
    timer = loop.call_later(SHORT, lambda: look(late=True))

    def update(now: dict[int, int]) -> None:
        for descriptor in watched.keys() - now.keys():
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)
        for descriptor, events in now.items():
            if watched.get(descriptor) != events:
                loop.add_reader(descriptor, look)
                if events & select.POLLOUT:
                    loop.add_writer(descriptor, look)
                else:
                    loop.remove_writer(descriptor)
        watched.clear()
        watched.update(now)

    def look(late: bool = False) -> None:
        nonlocal timer
        try:
            call.pump()
        except BaseException as error:  # the loop would swallow it, and this call wait for ever
            if not ended.done():
                ended.set_exception(error)
            return
        if call.result is not None:
            update({})
            if not ended.done():
                ended.set_result(None)
            return
        update(call.interest(late or len(watched) > 1))
        if late:
            timer = loop.call_later(call.seconds_left(), lambda: look(late=True))

    try:
        update(call.interest(output=False))
        await ended
    finally:
        timer.cancel()
        update({})
