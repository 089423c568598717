"""Dealing pieces to workers, and putting others in the place of the dead: with stand-ins for processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from trajgym.errors import ConfigError, TrainingError
from trajgym.rollout import Episode
from trajgym.trainers.interrupt import StopRequested
from trajgym.trainers.rollout_share import Share
from trajgym.trainers.worker import Piece, PlayedPiece
from trajgym.trainers.worker_answer import Answer
from trajgym.trainers.workers import WorkerGone, Workers, WorkersLost, cut

PIECES = [Piece(0, 0, [[Episode(seed, seed)]]) for seed in range(6)]


class Crew:
    """Workers that say which piece they got. Every ticket is answered once somebody waits for it."""

    def __init__(self, fate: Callable[[int, str, int], str] = lambda worker, method, number: "") -> None:
        self.fate = fate  # of the n-th call of a method of a worker: "", "dies", "hangs", or an error's text
        self.log: list[tuple[int, str, Any]] = []
        self.hired = itertools.count()
        self.tickets: dict[int, tuple[int, str, Any]] = {}
        self.gone: set[int] = set()
        self.counts: dict[tuple[int, str], int] = {}
        self.closed = False
        self.latest_first = False

    def hire(self) -> int:
        return next(self.hired)

    def publish(self, packed: Any) -> Any:
        return f"where {packed} is"

    def send(self, worker: int, method: str, *args: Any) -> int:
        assert worker not in self.gone
        self.log.append((worker, method, args))
        ticket = len(self.tickets)
        self.tickets[ticket] = (worker, method, args)
        return ticket

    def _fate(self, ticket: int) -> str:
        worker, method, _ = self.tickets[ticket]
        before = [n for n, (w, m, _) in self.tickets.items() if (w, m) == (worker, method) and n < ticket]
        return self.fate(worker, method, len(before))

    def first(self, tickets: Sequence[int], seconds: float) -> int | None:
        answered = [ticket for ticket in tickets if self._fate(ticket) != "hangs"]
        return (answered[-1] if self.latest_first else answered[0]) if answered else None

    def answer(self, ticket: int) -> Answer[Any]:
        worker, method, args = self.tickets[ticket]
        fate = self._fate(ticket)
        if fate == "dies":
            raise WorkerGone("no memory")
        if fate:

            def fail() -> None:
                raise ConfigError(fate)

            return Answer.of(fail)
        if method != "play":
            return Answer()
        seed = args[0].groups[0][0].seed
        return Answer(PlayedPiece(Share([], {seed: [float(worker)]})))

    def dismiss(self, worker: int) -> None:
        self.gone.add(worker)

    def close(self) -> None:
        self.closed = True


def workers(crew: Crew, count: int = 2, **options: Any) -> Workers:
    made = Workers(crew, count, **{"limit": 3, "deadline": 60.0, **options})
    made.open()
    made.begin("W", 0.5)  # type: ignore[arg-type]
    return made


def seeds(played: list[PlayedPiece]) -> list[int]:
    return [next(iter(piece.share.values)) for piece in played]


def players(played: list[PlayedPiece]) -> list[float]:
    return [next(iter(piece.share.values.values()))[0] for piece in played]


@pytest.mark.parametrize("latest_first", [False, True])
def test_pieces_come_back_in_their_order_whoever_is_faster(latest_first: bool) -> None:
    crew = Crew()
    crew.latest_first = latest_first
    played = workers(crew).play(PIECES)
    assert seeds(played) == [0, 1, 2, 3, 4, 5]
    assert set(players(played)) == {0.0, 1.0}


def test_more_workers_than_pieces() -> None:
    played = workers(Crew(), 9).play(PIECES[:2])
    assert players(played) == [0.0, 1.0]


def test_each_worker_gets_ready_then_the_weights_then_pieces() -> None:
    crew = Crew()
    workers(crew).play(PIECES)
    for worker in (0, 1):
        told = [(method, args) for w, method, args in crew.log if w == worker]
        assert told[:2] == [("prepare", ()), ("load", ("where W is", 0.5))]
        assert {method for method, _ in told[2:]} == {"play"}


def test_a_death_costs_its_piece_alone(capsys: pytest.CaptureFixture[str]) -> None:
    crew = Crew(lambda worker, method, n: "dies" if (worker, method, n) == (0, "play", 1) else "")
    made = workers(crew)
    played = made.play(PIECES)
    assert seeds(played) == [0, 1, 2, 3, 4, 5]
    assert made.replaced == 1
    assert crew.gone == {0}
    asked = [args[0].groups[0][0].seed for _, method, args in crew.log if method == "play"]
    assert len(asked) == 7
    assert [method for w, method, _ in crew.log if w == 2][:3] == ["prepare", "load", "play"]
    assert "Rollout worker 1 of 2 is gone: no memory." in capsys.readouterr().out


def test_a_worker_may_die_again_after_it_has_done_something() -> None:
    crew = Crew(lambda worker, method, n: "dies" if method == "play" and n == 1 else "")
    made = workers(crew, 1, limit=2)  # each one plays one piece and dies with the next
    assert seeds(made.play(PIECES)) == [0, 1, 2, 3, 4, 5]
    assert made.replaced == 5


def test_a_piece_that_kills_everybody_ends_the_run() -> None:
    def fate(worker: int, method: str, n: int) -> str:
        piece = [args for w, m, args in crew.log if (w, m) == (worker, method)][n]
        return "dies" if method == "play" and piece[0].groups[0][0].seed == 3 else ""

    crew = Crew(fate)
    made = workers(crew, 2)
    with pytest.raises(WorkersLost, match=r"no memory\. 3 in a row died with the same episodes") as caught:
        made.play(PIECES)
    assert isinstance(caught.value, TrainingError)
    assert next(crew.hired) == 4  # two of those who died were replaced


def test_nothing_waits_for_a_new_worker_that_does_not_get_ready() -> None:
    def fate(worker: int, method: str, n: int) -> str:
        return "dies" if (worker, method, n) == (0, "play", 0) else "hangs" if worker == 2 else ""

    crew = Crew(fate)
    made = workers(crew)
    assert seeds(made.play(PIECES)) == [0, 1, 2, 3, 4, 5]
    assert [method for w, method, _ in crew.log if w == 2] == ["prepare"]
    made.begin("W", 0.6)  # type: ignore[arg-type]
    assert seeds(made.play(PIECES)) == [0, 1, 2, 3, 4, 5]


def test_a_place_where_nobody_lives_long_ends_the_run() -> None:
    crew = Crew(lambda worker, method, n: "dies" if method == "play" else "")
    with pytest.raises(WorkersLost, match="3 in a row died"):
        workers(crew, 1).play(PIECES)


def test_who_dies_before_it_is_ready_is_replaced() -> None:
    crew = Crew(lambda worker, method, n: "dies" if method == "prepare" and worker < 2 else "")
    assert seeds(workers(crew, 2).play(PIECES)) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(WorkersLost, match="3 in a row died here"):
        workers(Crew(lambda worker, method, n: "dies" if method == "prepare" else ""), 1)


def test_an_error_is_raised_and_nobody_tries_again() -> None:
    crew = Crew(lambda worker, method, n: "no such tool" if (method, n) == ("play", 1) else "")
    with pytest.raises(ConfigError, match="no such tool"):
        workers(crew).play(PIECES)
    assert not crew.gone
    with pytest.raises(ConfigError, match="no model"):
        workers(Crew(lambda worker, method, n: "no model" if method == "prepare" else ""))


def test_who_does_not_answer_within_the_deadline_counts_as_dead() -> None:
    now = itertools.count(0.0, 10.0)
    crew = Crew(lambda worker, method, n: "hangs" if (worker, method, n) == (1, "play", 0) else "")
    made = workers(crew, 2, clock=lambda: next(now))
    assert seeds(made.play(PIECES)) == [0, 1, 2, 3, 4, 5]
    assert crew.gone == {1}


def test_who_does_not_get_ready_within_the_deadline_ends_the_run() -> None:
    now = itertools.count(0.0, 10.0)
    crew = Crew(lambda worker, method, n: "hangs" if method == "prepare" and worker else "")
    with pytest.raises(WorkersLost, match=r"2 of 3 rollout workers were not ready within 60 s\. Are there as many"):
        workers(crew, 3, clock=lambda: next(now))


def test_a_request_to_stop_is_heard_while_waiting() -> None:
    def stop() -> None:
        raise StopRequested

    made = workers(Crew())
    with pytest.raises(StopRequested):
        made.play(PIECES, stop)
    made.close()
    assert made.crew.closed  # type: ignore[attr-defined]
    with pytest.raises(StopRequested):
        Workers(Crew(), 2, 3, 60.0).open(stop)


def test_groups_are_cut_in_a_fixed_way() -> None:
    assert cut(PIECES, 4) == [PIECES[:4], PIECES[4:]]
    assert cut([], 3) == []
