"""Work and its arithmetic, against numbers counted by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trajgym.trainers.flops import Chain, Work, chain_of, forward_flops, keys_read, training_flops, work_of
from trajgym.trainers.shape import ModelShape
from trajgym.types import Action, Observation, Step, Task, TokenStream, ToolCall, ToolResult, Trajectory

# body: 100 + 21 − 21 weights, a head of 7 × 3
SHAPE = ModelShape(121, 21, True, 7, 3, 2, 4, 2, 5, 6, False, ())


def row(ids: str, mask: str) -> TokenStream:
    """A row from letters; digits of the mask are turns from 1, and 0 is not the policy's."""
    turns = tuple(int(m) - 1 for m in mask)
    ours = tuple(int(m != "0") for m in mask)
    return TokenStream(tuple(map(ord, ids)), ours, turns, (0.0,) * len(ids))


def trajectory(*rows: TokenStream, task: str = "t", tools: tuple[tuple[float, ...], ...] = ()) -> Trajectory:
    steps = tuple(
        Step(Action(""), Observation(), results=tuple(ToolResult(ToolCall("f"), "", seconds=s) for s in turn))
        for turn in tools or ((),)
    )
    return Trajectory(Task(task, "", ""), (), steps, rows)


def test_a_row_without_its_last_token() -> None:
    # four tokens go through the model and see 1 + 2 + 3 + 4 keys; two of them predict a sampled one
    assert work_of([trajectory(row("pqrab", "00011"))]) == Work(4, 10, 2)


def test_what_follows_the_last_sampled_token_is_not_needed() -> None:
    assert work_of([trajectory(row("pqrabxyz", "00011000"))]) == Work(4, 10, 2)


def test_what_rows_begin_with_is_processed_once_whomever_they_belong_to() -> None:
    first, second = row("pqrab", "00011"), row("pqrcd", "00011")
    # the second adds its token c at position 3, which predicts d; c itself is drawn from the shared logits
    assert work_of([trajectory(first), trajectory(second)]) == Work(4 + 1, 10 + 4, 2 + 1)
    assert work_of([trajectory(first), trajectory(second, task="u")]) == Work(5, 14, 3)
    other = row("pqxyab", "000011")  # x y a at positions 2 … 4; the predictions of a and b
    assert work_of([trajectory(first), trajectory(other, task="u")]) == Work(4 + 3, 10 + 3 + 4 + 5, 2 + 2)


def test_what_is_sampled_twice_is_processed_once() -> None:
    first, second = row("pqrab", "00011"), row("pqrac", "00011")
    assert work_of([trajectory(first), trajectory(first)]) == Work(4, 10, 2)
    # b and c are drawn from the same logits
    assert work_of([trajectory(first), trajectory(second, task="u")]) == Work(4, 10, 2)


def test_rows_of_one_episode_share_what_they_have_in_common() -> None:
    # the second row repeats p q and goes on otherwise: three more tokens, at positions 2 … 4
    rows = row("pqrab", "00011"), row("pqxyzc", "000002")
    assert work_of([trajectory(*rows, tools=((), ()))]) == Work(4 + 3, 10 + 3 + 4 + 5, 2 + 1)


def test_logits_that_one_row_wants_and_another_passes_over() -> None:
    # p q predicts b in one row; the other was shown the a behind them, and wants what follows a
    assert work_of([trajectory(row("pqb", "001"), row("pqac", "0002"))]) == Work(3, 6, 2)


def test_a_row_without_anything_sampled_is_no_work() -> None:
    for nothing in (trajectory(row("pqr", "000")), trajectory(), trajectory(row("", ""))):
        assert work_of([nothing]) == Work()
        assert keys_read([nothing], 1) == 0
        assert chain_of(nothing) == Chain(0, 0.0)
    assert work_of([]) == Work()
    assert keys_read([], 1) == 0


def test_a_chain_is_what_one_episode_has_to_wait_for() -> None:
    # turn 1 samples three tokens, turn 2 two: two and one passes of a single token, with 3 + 4 and 9 keys
    played = trajectory(row("pqabcxyzde", "0011100022"), tools=((0.5, 0.2), (0.25,)))
    assert chain_of(played) == Chain(steps=3, seconds=0.75)
    assert keys_read([played], 8) == 3 + 4 + 9


def test_the_keys_of_a_common_beginning_are_read_once_per_step() -> None:
    # the passes of a and b, with 3 and 4 keys; that of d, with 3
    longer, shorter = row("pqabc", "00111"), row("pqde", "0011")
    both = [trajectory(longer), trajectory(shorter, task="u")]
    assert keys_read(both, 2) == (3 + 4) + 1  # p and q are there already when d reads them
    assert keys_read(both, 1) == (3 + 4) + 3  # nothing runs beside anything
    assert keys_read([*both, trajectory(shorter)], 3) == (3 + 4) + 1  # the same pass twice
    # one pass twelve times over, four at a time
    assert keys_read([trajectory(shorter)] * 12, 4) == 3 * 3


def test_the_rows_of_one_episode_come_one_after_the_other() -> None:
    rows = row("pqab", "0011"), row("pqcd", "0022")
    assert keys_read([trajectory(*rows)], 8) == 3 + 3
    assert keys_read([trajectory(rows[0]), trajectory(rows[1])], 8) == 3 + 1


def test_forward_and_training_by_hand() -> None:
    work = Work(tokens=10, keys=30, logits=4)
    attention = 4 * 2 * 4 * 5 * 30
    forward = 2 * 100 * 10 + attention + 2 * 21 * 4
    assert forward_flops(SHAPE, work) == forward
    assert forward_flops(SHAPE, work, head=False) == forward - 2 * 21 * 4
    assert training_flops(SHAPE, work) == 3 * forward
    frozen = 4 * 100 * 10 + 4 * 21 * 4  # forward, and the gradient of the inputs
    assert training_flops(SHAPE, work, adapters=8) == frozen + 3 * attention + 6 * 8 * 10


@st.composite
def played(draw: st.DrawFn) -> Trajectory:
    """An episode of few different tokens, so that much begins alike, of one row or more."""
    task = draw(st.sampled_from("tu"))
    system = draw(st.sampled_from(["", "ppqp", "ppq"]))
    rows = []
    for _ in range(draw(st.integers(0, 2))):
        turns = draw(st.lists(st.tuples(st.text("pq", max_size=3), st.text("ab", max_size=3)), max_size=3))
        ids, mask = system, "0" * len(system)
        for number, (told, said) in enumerate(turns, 1):
            ids += told + said
            mask += "0" * len(told) + str(number) * len(said)
        rows.append(row(ids, mask))
    return trajectory(*rows, task=task)


@given(st.lists(played(), max_size=5))
def test_the_work_is_that_of_the_different_beginnings(episodes: list[Trajectory]) -> None:
    beginnings, wanted = set(), set()
    for r in (r for episode in episodes for r in episode.rows):
        for at in (position for position in range(1, len(r.ids)) if r.mask[position]):
            beginnings |= {r.ids[:end] for end in range(1, at + 1)}
            wanted.add(r.ids[:at])
    assert work_of(episodes) == Work(len(beginnings), sum(map(len, beginnings)), len(wanted))


@given(st.lists(played(), max_size=5), st.integers(1, 6))
def test_sharing_with_other_tasks_never_costs(episodes: list[Trajectory], slots: int) -> None:
    both = work_of(episodes)
    apart = [work_of([e for e in episodes if e.task.id == task]) for task in "tu"]
    for name in ("tokens", "keys", "logits"):
        assert getattr(both, name) <= sum(getattr(work, name) for work in apart)

    each = [keys_read([episode], slots) for episode in episodes]
    assert sum(each) == sum(
        position
        for r in (r for episode in episodes for r in episode.rows)
        for position in range(1, len(r.ids))
        if r.mask[position] and r.mask[position - 1] and r.turns[position] == r.turns[position - 1]
    )
    assert max(each, default=0) <= keys_read(episodes, slots) <= sum(each)
    assert keys_read(episodes, slots + 1) <= keys_read(episodes, slots)
    assert keys_read(episodes, 1) == sum(each)
