"""One thread for many clients."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trajgym.serving.engine import Busy, Engine, EngineFault, Finished, Order
from trajgym.serving.sampler import Sampling, ServedSampler
from trajgym.serving.sampler import Token as TokenNews

PROMPT = (5, 300, 301, 17, 42)
Make = Callable[..., Engine]


class Box:
    """Keeps what an engine delivers."""

    def __init__(self) -> None:
        self.news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.tokens: list[TokenNews] = []

    def end(self) -> Any:
        while isinstance(what := self.news.get(timeout=20), TokenNews):
            self.tokens.append(what)
        return what


@pytest.fixture
def make(tiny: tuple[Any, Any]) -> Iterator[Make]:
    engines = []

    def engine(slots: int = 2, waiting: int = 4, stop_ids: tuple[int, ...] = ()) -> Engine:
        sampler = ServedSampler(tiny[0], slots=slots, max_length=256, stop_ids=stop_ids)
        engines.append(Engine(sampler, queue=waiting))
        return engines[-1]

    yield engine
    for each in engines:
        each.close()
        assert not each.alive


def order(seed: int = 0, most: int = 8, ids: tuple[int, ...] = PROMPT, **how: Any) -> Order:
    return Order(ids, most, Sampling(seed=seed, **how))


def test_answers_do_not_depend_on_who_else_asks(make: Make) -> None:
    engine = make(slots=2, waiting=32)
    alone = []
    for seed in range(6):
        box = Box()
        engine.submit([order(seed)], [box.news.put])
        alone.append(box.end().ids)
    boxes = [Box() for _ in range(6)]
    for seed, box in enumerate(boxes):
        engine.submit([order(seed)], [box.news.put])
    assert [box.end().ids for box in boxes] == alone
    assert len(set(alone)) == 6


def test_the_queue_is_bounded_and_all_or_nothing(make: Make) -> None:
    engine = make(slots=1, waiting=2)
    boxes = [Box() for _ in range(3)]
    for box in boxes:
        engine.submit([order(most=60)], [box.news.put])
    with pytest.raises(Busy) as caught:
        engine.submit([order()], [Box().news.put])
    assert caught.value.retry_after >= 1
    assert [len(box.end().ids) for box in boxes] == [60, 60, 60]
    with pytest.raises(Busy):
        engine.submit([order()] * 4, [Box().news.put] * 4)
    box = Box()
    engine.submit([order()], [box.news.put])
    assert isinstance(box.end(), Finished)


def test_what_is_given_up_frees_its_slot(make: Make) -> None:
    engine = make(slots=1, waiting=4)
    first, waits, second = Box(), Box(), Box()
    tickets = engine.submit([order(most=250 - len(PROMPT), watched=True)], [first.news.put])
    waiting = engine.submit([order(most=200)], [waits.news.put])
    engine.submit([order(most=3)], [second.news.put])
    first.news.get(timeout=20)  # it is under way
    engine.cancel([*tickets, *waiting])
    assert len(second.end().ids) == 3
    assert waits.news.empty()
    assert not any(isinstance(first.news.get(), Finished) for _ in range(first.news.qsize()))
    engine.cancel(tickets)  # once more does no harm


def test_a_dialogue_that_goes_on_finds_its_tokens_in_the_cache(make: Make) -> None:
    fresh, kept = make(slots=1), make(slots=2)
    box = Box()
    kept.submit([order(seed=1, temperature=0.0)], [box.news.put])
    said = box.end()
    assert said.reused == 0
    longer = (*PROMPT, *said.ids, 7, 8, 9)
    ends = []
    for engine in (kept, fresh):
        box = Box()
        engine.submit([order(seed=2, ids=longer, temperature=0.0)], [box.news.put])
        ends.append(box.end())
    assert ends[0].ids == ends[1].ids
    assert ends[0].logprobs == pytest.approx(ends[1].logprobs, abs=1e-4)
    assert (ends[0].reused, ends[1].reused) == (len(PROMPT) + len(said.ids) - 1, 0)


def test_another_dialogue_does_not(make: Make) -> None:
    engine = make(slots=2)
    box = Box()
    engine.submit([order(seed=1)], [box.news.put])
    said = box.end()
    for ids in ((*PROMPT, *said.ids), (*PROMPT, *said.ids[:-1], 3, 4), PROMPT):
        box = Box()
        engine.submit([order(ids=ids)], [box.news.put])
        assert box.end().reused == 0


def test_a_failing_model_fails_those_it_wrote_for_and_nobody_later(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(slots=2, waiting=4)
    real, failed = engine._sampler.step, threading.Event()

    def step() -> Any:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("no memory on the device")
        return real()

    monkeypatch.setattr(engine._sampler, "step", step)
    first, later = Box(), Box()
    engine.submit([order()], [first.news.put])
    fault = first.end()
    assert isinstance(fault, EngineFault)
    assert "no memory on the device" in str(fault)
    engine.submit([order()], [later.news.put])
    assert isinstance(later.end(), Finished)
    assert engine.load.faults == 1


def test_an_answer_that_cannot_begin_costs_nobody_else_theirs(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(slots=2, waiting=4)
    real, failed = engine._sampler.answer, threading.Event()

    def answer(*args: Any, **options: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("no memory for one more")
        real(*args, **options)

    monkeypatch.setattr(engine._sampler, "answer", answer)
    first, later = Box(), Box()
    engine.submit([order(), order(seed=1)], [first.news.put, later.news.put])
    fault = first.end()
    assert isinstance(fault, EngineFault)
    assert "no memory for one more" in str(fault)
    assert isinstance(later.end(), Finished)
    assert engine.alive
    assert engine.load.faults == 1


def test_a_prompt_that_does_not_fit_is_told_to_its_sender_alone(make: Make) -> None:
    engine = make(slots=1)
    wrong, right = Box(), Box()
    engine.submit([order(ids=(10**6,))], [wrong.news.put])
    engine.submit([order()], [right.news.put])
    assert "vocabulary" in str(wrong.end())
    assert isinstance(right.end(), Finished)


def test_closing_tells_whoever_waits(make: Make) -> None:
    engine = make(slots=1, waiting=4)
    boxes = [Box(), Box()]
    for box in boxes:
        engine.submit([order(most=250 - len(PROMPT))], [box.news.put])
    engine.close()
    assert [type(box.end()) for box in boxes] == [EngineFault, EngineFault]
    with pytest.raises(Busy, match="stopping"):
        engine.submit([order()], [Box().news.put])


def test_a_receiver_that_is_gone_disturbs_nobody(make: Make) -> None:
    engine = make(slots=2)

    def gone(what: Any) -> None:
        raise RuntimeError("Event loop is closed")

    box = Box()
    engine.submit([order(), order(seed=1)], [gone, box.news.put])
    assert isinstance(box.end(), Finished)
    assert engine.alive
