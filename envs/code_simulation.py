"""Problems in which something has to be played through: circles of people, accounts, lamps, queues, cells."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

from trajgym.envs.code_problem import Draw, Problem, kinds_of, listed

__all__ = ["KINDS"]


def survivor(draw: Draw) -> Problem:
    """Find who is left of a circle; the answer comes from Josephus' recurrence."""
    n, k = draw.whole(40, 900), draw.whole(3, 40)
    left = 0
    for size in range(2, n + 1):
        left = (left + k) % size
    question = draw.pick(
        (
            f"{n} people stand in a circle, numbered 1 to {n} in order. Counting starts with person 1 as one and goes "
            f"around; whoever is counted as {k} leaves the circle, and the count begins again at one with the next "
            "person still standing. Which number has the person who is left at the end?",
            f"{n} cards lie in a stack, number 1 on top, number {n} at the bottom. Again and again {k - 1} cards are "
            "moved one by one from the top to the bottom, and then the top card is thrown away, until a single card "
            "is left. What is its number?",
        )
    )
    program = f"""
        from collections import deque

        circle = deque(range(1, {n} + 1))
        while len(circle) > 1:
            circle.rotate(-({k} - 1))
            circle.popleft()
        circle[0]
    """
    return Problem(question, left + 1, (program,))


def savings(draw: Draw) -> Problem:
    """Follow an account whose interest is rounded down each month; the answer counts in dollars, not in cents."""
    start, deposit = draw.whole(200, 5_000), draw.whole(10, 250)
    rate = draw.whole(11, 95)  # hundredths of a percent
    months = draw.whole(24, 180)
    dollars = Fraction(start)
    for _ in range(months):
        interest = dollars * rate / 10_000
        dollars += interest - interest % Fraction(1, 100) + deposit
    cents = int(dollars * 100)
    percent = f"0.{rate}%"
    question = draw.pick(
        (
            f"{draw.name()} has {start} dollars in an account. At the end of each month the bank adds {percent} of the "
            f"current balance as interest, rounded down to whole cents, and right after that {deposit} dollars are "
            f"paid in. What is the balance after {months} months, in dollars with two decimals?",
            f"A fund starts with {start} dollars. In every month it first earns {percent} of what is in it, rounded "
            f"down to whole cents, and then {deposit} dollars are added. How many dollars are in it after {months} "
            "months? Give the exact amount with two decimals.",
        )
    )
    program = f"""
        cents = {start} * 100
        for _ in range({months}):
            cents += cents * {rate} // 10_000
            cents += {deposit} * 100
        print(f"{{cents // 100}}.{{cents % 100:02d}}")
    """
    return Problem(question, f"{cents // 100}.{cents % 100:02d}", (program,))


def lamps(draw: Draw) -> Problem:
    """Switch every k-th lamp for several k; the answer counts by inclusion and exclusion."""
    n = draw.whole(200, 4_000)
    rounds = sorted(draw.some(range(2, 25), draw.whole(5, 7)))
    on = 0
    for size in range(1, len(rounds) + 1):
        common = sum(n // math.lcm(*some) for some in itertools.combinations(rounds, size))
        on += (-2) ** (size - 1) * common  # numbers with an odd count of divisors among the rounds
    question = draw.pick(
        (
            f"{n} lamps, numbered 1 to {n}, are all off. Then, for each of the numbers {listed(rounds)} in turn, every "
            "lamp whose number is a multiple of it is switched over: from off to on or from on to off. How many lamps "
            "are on in the end?",
            f"How many whole numbers from 1 to {n} are divisible by an odd number of the {len(rounds)} numbers "
            f"{listed(rounds)}?",
        )
    )
    program = f"""
        on = [False] * ({n} + 1)
        for k in {rounds}:
            for lamp in range(k, {n} + 1, k):
                on[lamp] = not on[lamp]
        sum(on)
    """
    return Problem(question, on, (program,))


def waiting_times(draw: Draw) -> Problem | None:
    """Add up what customers wait; the answer follows the work that is left at each counter."""
    counters = draw.whole(2, 4)
    gap, n = draw.whole(2, 6), draw.whole(50, 250)
    longest = max(5, gap * counters * 2 + draw.whole(-2, 2))
    p, q = draw.whole(2, 99), draw.whole(0, 99)
    left = [0] * counters  # minutes of work left at each counter when the customer arrives, least first
    waited = 0
    for i in range(1, n + 1):
        waited += left[0]
        left[0] += (p * i + q) % longest + 1
        left = sorted(max(0, minutes - gap) for minutes in left)
    if waited < 3 * n:
        return None
    question = draw.pick(
        (
            f"A post office has {counters} counters, all free at first. Customer number i (i = 1, 2, ..., {n}) arrives "
            f"at minute {gap}*i and needs ({p}*i + {q}) mod {longest} + 1 minutes of service. Customers are served in "
            "the order in which they arrive, each at the counter that is free first; a counter whose customer is done "
            "at a minute can take the next one at that same minute. How many minutes do all customers together wait "
            "before their service begins?",
            f"Jobs 1 to {n} go through a workshop with {counters} equal machines, idle at "
            f"first. Job i comes in at minute {gap}*i and takes ({p}*i + {q}) mod {longest} + 1 minutes on whatever "
            "machine. Jobs start in the order of their numbers, each as soon as it is there and some machine has "
            "finished its earlier jobs. What is the sum, over all jobs, of the minutes between coming in and starting?",
        )
    )
    program = f"""
        import heapq

        free_at = [0] * {counters}
        waited = 0
        for i in range(1, {n} + 1):
            arrival = {gap} * i
            start = max(arrival, heapq.heappop(free_at))
            waited += start - arrival
            heapq.heappush(free_at, start + ({p} * i + {q}) % {longest} + 1)
        waited
    """
    return Problem(question, waited, (program,))


def turning_robot(draw: Draw) -> Problem | None:
    """Run a robot that turns by what it finds (Langton's ant); the answer walks in the complex plane."""
    # Beginning with R leaves out the mirror images.
    rule = "R" + draw.letters("LR", draw.whole(1, 5))
    n = draw.whole(400, 2_500)
    if "L" not in rule:
        return None
    board: dict[complex, int] = {}
    place, heading = 0j, 1j
    for _ in range(n):
        state = board.get(place, 0)
        heading *= -1j if rule[state] == "R" else 1j
        board[place] = (state + 1) % len(rule)
        place += heading
    size = len(rule)
    question = draw.pick(
        (
            f"Every square of an endless board holds the number 0. A robot stands on a square and looks north. In each "
            f"step it reads the number s of its square and the letter at position s of {rule} (the first letter has "
            "position 0), turns 90 degrees to the right if the letter is R or to the left if it is L, replaces s by "
            f"(s + 1) mod {size}, and moves forward by one square. After {n} steps, how many squares do not hold 0?",
            f"On an infinite grid of cells, all in state 0, an ant makes {n} moves, facing up at first. One move: if "
            f"its cell is in state s, it turns right when character s of the text {rule} (counted from 0) is R, and "
            f"left when it is L; then the cell's state becomes (s + 1) mod {size}; then the ant goes one cell ahead. "
            "How many cells are in a state other than 0 in the end?",
        )
    )
    program = f"""
        rule = "{rule}"
        board = {{}}
        x = y = 0
        dx, dy = 0, 1
        for _ in range({n}):
            state = board.get((x, y), 0)
            dx, dy = (dy, -dx) if rule[state] == "R" else (-dy, dx)
            board[x, y] = (state + 1) % len(rule)
            x, y = x + dx, y + dy
        sum(1 for state in board.values() if state != 0)
    """
    return Problem(question, sum(state != 0 for state in board.values()), (program,))


def living_cells(draw: Draw) -> Problem | None:
    """Play Conway's game of life on a torus; the answer keeps a set of living cells instead of an array."""
    size, steps = draw.whole(6, 8), draw.whole(4, 12)
    rows = [draw.letters("..o", size) for _ in range(size)]
    alive = {(i, j) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell == "o"}
    total = 0
    for _ in range(steps):
        around = Counter(
            ((i + di) % size, (j + dj) % size)
            for i, j in alive
            for di, dj in itertools.product((-1, 0, 1), repeat=2)
            if (di, dj) != (0, 0)
        )
        alive = {cell for cell, count in around.items() if count == 3 or (count == 2 and cell in alive)}
        total += len(alive)
    if len(alive) < 3:
        return None
    board = "\n".join(rows)
    rules = (
        "A cell has eight neighbours, and the edges are joined: the first row is next to the last, the first column "
        "next to the last. In each step, all at once, a living cell with 2 or 3 living neighbours stays alive, a dead "
        "cell with exactly 3 living neighbours comes alive, and every other cell is dead."
    )
    question = draw.pick(
        (
            f"This board of {size} by {size} cells shows living cells as o and dead ones as dots:\n{board}\n{rules} "
            f"Count the living cells after step 1, after step 2, and so on up to step {steps}. What is the sum of "
            f"these {steps} counts?",
            f"{rules} The game begins with this square board (o is alive, . is dead):\n{board}\nAdd up the numbers of "
            f"living cells after each of the first {steps} steps; the board as shown does not count. What is the sum?",
        )
    )
    setup = f"""
        import numpy as np

        rows = {rows}
        board = np.array([[cell == "o" for cell in row] for row in rows], dtype=int)
        board.shape
    """
    play = f"""
        total = 0
        shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
        for _ in range({steps}):
            around = sum(np.roll(board, shift, axis=(0, 1)) for shift in shifts)
            board = ((around == 3) | ((board == 1) & (around == 2))).astype(int)
            total += int(board.sum())
        total
    """
    return Problem(question, total, (setup, play))


KINDS = kinds_of(
    "simulation",
    {
        1: (survivor, savings),
        2: (lamps, waiting_times, turning_robot),
        3: (living_cells,),
    },
)
