"""Work and its arithmetic, against numbers counted by hand."""

from __future__ import annotations

import pytest

from trajgym.trainers.flops import Chain, Work, chain_of, forward_flops, learning_work, training_flops, work_of
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


def test_a_prompt_is_processed_once_for_its_group() -> None:
    first, second = row("pqrab", "00011"), row("pqrcd", "00011")
    # the second adds its token c at position 3, which predicts d; c itself is drawn from the shared logits
    assert work_of([trajectory(first), trajectory(second)]) == Work(4, 10, 2) + Work(1, 4, 1)
    other = trajectory(second, task="u")
    assert work_of([trajectory(first), other]) == Work(8, 20, 4)


def test_only_the_prompt_is_shared_even_where_the_answers_are_alike() -> None:
    same = row("pqrab", "00011")
    assert work_of([trajectory(same), trajectory(same)]) == Work(4, 10, 2) + Work(1, 4, 1)


def test_rows_of_one_episode_share_what_they_have_in_common() -> None:
    # the second row repeats p q and goes on otherwise: three more tokens, at positions 2 … 4
    rows = row("pqrab", "00011"), row("pqxyzc", "000002")
    assert work_of([trajectory(*rows, tools=((), ()))]) == Work(4, 10, 2) + Work(3, 3 + 4 + 5, 1)


def test_a_row_without_anything_sampled_is_no_work() -> None:
    assert work_of([trajectory(row("pqr", "000"))]) == Work()
    assert work_of([trajectory()]) == Work()


def test_learning_shares_whatever_rows_begin_with() -> None:
    first, second = row("pqrab", "00011"), row("pqrac", "00011")
    # all that goes through the model, p q r a, is known already; b and c are drawn from the same logits
    assert learning_work([trajectory(first), trajectory(second, task="u")]) == Work(4, 10, 2)
    other = row("pqxyab", "000011")  # x y a at positions 2 … 4; the predictions of a and b
    assert learning_work([trajectory(first), trajectory(other, task="u")]) == Work(4, 10, 2) + Work(3, 3 + 4 + 5, 2)
    assert learning_work([trajectory(row("pqr", "000")), trajectory()]) == Work()


def test_a_chain_is_what_one_episode_has_to_wait_for() -> None:
    # turn 1 samples three tokens, turn 2 two: two and one passes of a single token, with 3 + 4 and 8 keys
    played = trajectory(row("pqabcxyzde", "0011100022"), tools=((0.5, 0.2), (0.25,)))
    assert chain_of(played) == Chain(steps=3, keys=3 + 4 + 9, seconds=0.75)


def test_forward_and_training_by_hand() -> None:
    work = Work(tokens=10, keys=30, logits=4)
    attention = 4 * 2 * 4 * 5 * 30
    forward = 2 * 100 * 10 + attention + 2 * 21 * 4
    assert forward_flops(SHAPE, work) == forward
    assert forward_flops(SHAPE, work, head=False) == forward - 2 * 21 * 4
    assert training_flops(SHAPE, work) == 3 * forward
    frozen = 4 * 100 * 10 + 4 * 21 * 4  # forward, and the gradient of the inputs
    assert training_flops(SHAPE, work, adapters=8) == frozen + 3 * attention + 6 * 8 * 10


@pytest.mark.parametrize("most", range(6))
def test_what_two_rows_have_in_common_is_found_at_any_length(most: int) -> None:
    first = row("p" * most + "a" + "x" * 6 + "b", "0" * (most + 7) + "1")
    second = row("p" * most + "c" + "x" * 6 + "b", "0" * (most + 7) + "1")
    assert work_of([trajectory(first), trajectory(second)]).tokens == 2 * (most + 7) - most
