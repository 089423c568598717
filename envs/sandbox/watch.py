"""Waiting for calls to end: in a poll loop for one or many, or in an event loop.

Either waits for the calls' descriptors, and for the time at which a call wants to be looked at without one.
"""

from __future__ import annotations

import asyncio
import select
import time

from trajgym.envs.sandbox.call import Call

__all__ = ["watch", "watch_in_loop"]


def watch(calls: list[Call]) -> None:
    """Pump the calls as their descriptors become ready, until all have ended."""
    poller = select.poll()
    owner: dict[int, Call] = {}
    watched: dict[Call, dict[int, int]] = {}
    due: dict[Call, float] = {}

    def update(call: Call) -> None:
        before = watched.get(call, {})
        now = {} if call.result is not None else call.interest()
        for descriptor in before.keys() - now.keys():
            poller.unregister(descriptor)
            del owner[descriptor]
        for descriptor, events in now.items():
            if before.get(descriptor) != events:
                poller.register(descriptor, events)
                owner[descriptor] = call
        if now:
            watched[call], due[call] = now, call.look_at()
        else:
            watched.pop(call, None)
            due.pop(call, None)

    for call in calls:
        update(call)
    while watched:
        wait = min(due.values()) - time.monotonic()
        ready = {owner[descriptor] for descriptor, _ in poller.poll(max(wait, 0) * 1000)}
        now = time.monotonic()
        for call in ready | {call for call, time_due in due.items() if time_due <= now}:
            call.pump()
            update(call)


async def watch_in_loop(call: Call) -> None:
    """Pump a call from the running event loop until it has ended."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    watched: dict[int, int] = {}
    timer: asyncio.TimerHandle | None = None

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

    def look() -> None:
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
        wait()

    def wait() -> None:
        nonlocal timer
        update(call.interest())
        if timer is not None:
            timer.cancel()
        timer = loop.call_later(max(call.look_at() - time.monotonic(), 0.0), look)

    try:
        wait()
        await ended
    finally:
        if timer is not None:
            timer.cancel()
        update({})
