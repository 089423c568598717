"""Problems about the calendar. Dates are answered as one number, such as 20240229."""

from __future__ import annotations

import math
from datetime import date, timedelta

from trajgym.envs.code_problem import Draw, Problem, kinds_of

__all__ = ["KINDS"]

# Not from the standard library, whose names depend on the locale.
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_AS_NUMBER = "Give the date as one number of eight digits, year, month, day (29 February 2024 would be 20240229)."
_PERIODS = (5, 7, 8, 9, 11, 13)  # no two share a divisor


def working_day(draw: Draw) -> Problem:
    """Count working days from a date; the answer jumps whole weeks."""
    start, n = _date(draw), draw.whole(100, 2_000)
    monday = start - timedelta(start.weekday())
    done = min(start.weekday(), 4)  # how many working days the last one up to the start is behind that Monday
    weeks, rest = divmod(done + n, 5)
    question = draw.pick(
        (
            f"Working days are Monday to Friday; there are no holidays. Which date is the working day number {n} after "
            f"{_text(start)}, where the first working day after that date is number 1? {_AS_NUMBER}",
            f"A parcel is sent on {_text(start)}. It is under way for {n} working days (Mondays to Fridays, holidays "
            "ignored), beginning with the next working day after the day it is sent, and it arrives on the last of "
            f"them. On which date does it arrive? {_AS_NUMBER}",
        )
    )
    program = f"""
        from datetime import date, timedelta

        day = date({start.year}, {start.month}, {start.day})
        left = {n}
        while left:
            day += timedelta(days=1)
            if day.weekday() < 5:
                left -= 1
        int(day.strftime("%Y%m%d"))
    """
    return Problem(question, _number(monday + timedelta(7 * weeks + rest)), (program,))


def date_digits(draw: Draw) -> Problem | None:
    """Count the weekdays with a digit sum; the answer goes week by week."""
    first, days = _date(draw), draw.whole(900, 4_000)
    last = first + timedelta(days)
    weekday, divisor = draw.whole(0, 6), draw.whole(2, 6)
    begin = first.toordinal() + (weekday - first.weekday()) % 7
    dates = (_number(date.fromordinal(day)) for day in range(begin, last.toordinal() + 1, 7))
    count = sum(sum(map(int, str(number))) % divisor == 0 for number in dates)
    question = draw.pick(
        (
            f"Write each date as eight digits, year, month, day (29 February 2024 is 20240229). How many "
            f"{_WEEKDAYS[weekday]}s from {_text(first)} to {_text(last)}, both days included, have a digit sum that is "
            f"divisible by {divisor}?",
            f"A club meets on every {_WEEKDAYS[weekday]} on which the eight digits of the date (year, month, day, such "
            f"as 20240229) add up to a multiple of {divisor}. How often does it meet from {_text(first)} to "
            f"{_text(last)}, if these two days count as well?",
        )
    )
    program = f"""
        from datetime import date, timedelta

        day, last = date({first.year}, {first.month}, {first.day}), date({last.year}, {last.month}, {last.day})
        count = 0
        while day <= last:
            if day.weekday() == {weekday} and sum(map(int, day.strftime("%Y%m%d"))) % {divisor} == 0:
                count += 1
            day += timedelta(days=1)
        count
    """
    return Problem(question, count, (program,))


def coinciding_dates(draw: Draw) -> Problem:
    """Find when three rhythms meet; the answer comes from the Chinese remainder theorem."""
    periods = sorted(draw.some(_PERIODS, 3))
    begin = _date(draw)
    starts = [begin + timedelta(draw.whole(0, 60)) for _ in periods]
    together = math.prod(periods)
    common = sum(
        start.toordinal() * (together // k) * pow(together // k, -1, k)
        for start, k in zip(starts, periods, strict=True)
    )
    latest = max(starts).toordinal()
    met = date.fromordinal(latest + (common - latest) % together)
    a, b, c = periods
    p, q, r = map(_text, starts)
    question = draw.pick(
        (
            f"The windows are cleaned every {a} days, the plants are watered every {b} days, and the clock is wound "
            f"every {c} days, for the first time on {p}, {q} and {r} respectively. What is the first date on which all "
            f"three happen? {_AS_NUMBER}",
            f"Three comets are seen at regular intervals: the first one every {a} days from {p} on, the second one "
            f"every {b} days from {q} on, the third one every {c} days from {r} on (each of them on that day, too). On "
            f"which day are all three seen for the first time? {_AS_NUMBER}",
        )
    )
    shown = ", ".join(f"(date({s.year}, {s.month}, {s.day}), {k})" for s, k in zip(starts, periods, strict=True))
    program = f"""
        from datetime import date, timedelta

        rhythms = [{shown}]
        day = max(start for start, period in rhythms)
        while any((day - start).days % period for start, period in rhythms):
            day += timedelta(days=1)
        int(day.strftime("%Y%m%d"))
    """
    return Problem(question, _number(met), (program,))


def _date(draw: Draw) -> date:
    return date(1950, 1, 1) + timedelta(draw.whole(0, 32_000))


def _text(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def _number(day: date) -> int:
    return 10_000 * day.year + 100 * day.month + day.day


KINDS = kinds_of("dates", {1: (working_day,), 2: (date_digits, coinciding_dates)})
