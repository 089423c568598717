"""Rows to tensors: nothing but policy tokens reaches the loss, however the rows are cut up."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trajgym.errors import ConfigError, RewardError, TrainingError, UnknownNameError
from trajgym.trainers.batch import (
    NORMALIZERS,
    Batch,
    Counts,
    MicroBatch,
    make_batch,
    normalizer_from,
    normalizer_value,
)
from trajgym.trainers.kl import KL_FORMS
from trajgym.trainers.loss import LEVELS, OBJECTIVES, policy_loss, sampler_weights
from trajgym.trainers.models import token_logprobs
from trajgym.types import Action, Observation, Step, Task, TokenStream, Trajectory

VOCAB = 30


def trajectory(rng: random.Random, turns: int) -> Trajectory:
    """A dialogue of ``turns`` turns in one row, random tokens."""
    ids, mask, marks, logps = [], [], [], []
    for turn in range(turns):
        given = rng.randrange(2, 6)
        said = rng.randrange(1, 5)
        ids += [rng.randrange(1, VOCAB) for _ in range(given + said)]
        mask += [0] * given + [1] * said
        marks += [-1] * given + [turn] * said
        logps += [0.0] * given + [-rng.random() for _ in range(said)]
    steps = tuple(Step(Action(""), Observation(), reward=rng.random()) for _ in range(turns))
    return Trajectory(Task("t", "", ""), (), steps, (TokenStream(tuple(ids), tuple(mask), tuple(marks), tuple(logps)),))


def in_several_rows(whole: Trajectory) -> Trajectory:
    """The same trajectory with a row per turn, each with the context it was sampled in."""
    (row,) = whole.rows
    rows = []
    for turn in range(len(whole.steps)):
        end = max(i for i, t in enumerate(row.turns) if t == turn) + 1
        mask = tuple(int(t == turn) for t in row.turns[:end])
        marks = tuple(t if t == turn else -1 for t in row.turns[:end])
        rows.append(TokenStream(row.ids[:end], mask, marks, row.logprobs[:end]))
    return Trajectory(whole.task, whole.prompt, whole.steps, tuple(rows))


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


@dataclass(frozen=True)
class Loss:
    """A loss whose other policies are functions of the token, so that every layout meets the same ones."""

    level: str = "token"
    objective: str = "clip"
    form: str = "k3_ratio"
    kind: str = "constant"


LOSSES = st.builds(
    Loss, st.sampled_from(LEVELS), st.sampled_from(OBJECTIVES), st.sampled_from(KL_FORMS), st.sampled_from(NORMALIZERS)
)


def gradient(model: torch.nn.Module, batch: Batch, loss: Loss = Loss()) -> Tensor:
    model.zero_grad()
    for micro in batch.micro:
        logp, _ = token_logprobs(model, micro, 0.7)
        chosen = micro.ids[:, 1:][micro.policy].double()
        old = logp.detach() + 0.6 * torch.sin(1.7 * chosen)
        policy_loss(
            logp,
            old,
            micro.advantages.double(),
            normalizer=batch.normalizer,
            level=loss.level,
            spans=micro.turns if loss.level == "turn" else micro.trajectories,
            objective=loss.objective,
            cispo_cap=1.1,
            dual_clip=1.5,
            weights=sampler_weights(old, micro.sampler_logp.double()),
            ref_logp=logp.detach() + 0.5 * torch.cos(chosen),
            kl_coef=0.2,
            kl_form=loss.form,
            kl_weights=micro.row_weights.double(),
        ).loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


Credit = list[list[float]] | list[list[list[float]]]


def laid_out(
    trajectories: list[Trajectory],
    advantages: Credit,
    *,
    max_tokens: int,
    kind: str = "constant",
    pad: int = 0,
    z: float | None = None,
    keep_together: bool = False,
) -> Batch:
    whole, weights = normalizer_value(kind, trajectories, constant=10)
    return make_batch(
        trajectories,
        advantages,
        normalizer=whole if z is None else z,
        row_weights=weights,
        pad_id=pad,
        max_tokens=max_tokens,
        keep_together=keep_together,
    )


def drawn(rng: random.Random, turns: list[int]) -> tuple[list[Trajectory], list[list[float]]]:
    trajectories = [trajectory(rng, n) for n in turns]
    return trajectories, [[rng.uniform(-1, 1) for _ in t.steps] for t in trajectories]


def same(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).norm() <= 1e-6 * one.norm())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 40, 100, 10**6]), st.booleans(), LOSSES)
def test_any_order_and_any_cut_give_the_same_gradient(
    model: torch.nn.Module, seed: int, size: int, together: bool, loss: Loss
) -> None:
    rng = random.Random(seed)
    trajectories, advantages = drawn(rng, [rng.randrange(1, 5) for _ in range(6)])
    expected = gradient(model, laid_out(trajectories, advantages, max_tokens=10**6, kind=loss.kind), loss)
    order = rng.sample(range(6), 6)
    batch = laid_out(
        [trajectories[i] for i in order],
        [advantages[i] for i in order],
        max_tokens=size,
        kind=loss.kind,
        pad=7,
        keep_together=together,
    )
    assert all(len(m.ids) == 1 or m.ids.numel() <= size for m in batch.micro)
    assert same(expected, gradient(model, batch, loss))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), LOSSES)
def test_two_ranks_with_a_common_normalizer_add_up_to_one(model: torch.nn.Module, seed: int, loss: Loss) -> None:
    """Ragged shares, one rank with a single short trajectory; Z comes from the sum of the counts."""
    rng = random.Random(seed)
    trajectories, advantages = drawn(rng, [4, 1, 2, 3, 1])
    expected = gradient(model, laid_out(trajectories, advantages, max_tokens=80, kind=loss.kind), loss)
    ranks = [slice(0, 4), slice(4, 5)]
    counts = [Counts.of(trajectories[rank]) for rank in ranks]
    z = normalizer_from(loss.kind, counts[0] + counts[1], constant=10)
    parts = [
        gradient(model, laid_out(trajectories[rank], advantages[rank], max_tokens=80, kind=loss.kind, z=z), loss)
        for rank in ranks
    ]
    assert same(expected, parts[0] + parts[1])


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 60, 10**6]), LOSSES)
def test_one_row_or_one_row_per_turn_give_the_same_gradient(
    model: torch.nn.Module, seed: int, size: int, loss: Loss
) -> None:
    rng = random.Random(seed)
    whole, advantages = drawn(rng, [1, 3, 4])
    split = [in_several_rows(t) for t in whole]
    assert [len(t.rows) for t in split] == [1, 3, 4]
    expected = gradient(model, laid_out(whole, advantages, max_tokens=200, kind=loss.kind), loss)
    together = loss.level == "trajectory"
    batch = laid_out(split, advantages, max_tokens=size, kind=loss.kind, keep_together=together)
    assert same(expected, gradient(model, batch, loss))


def test_a_trajectory_that_is_torn_apart_has_another_ratio(model: torch.nn.Module) -> None:
    """Why ``keep_together`` exists: without it, part of the tokens are missing from the mean."""
    whole, advantages = drawn(random.Random(1), [3, 4])
    split = [in_several_rows(t) for t in whole]
    loss = Loss(level="trajectory", objective="cispo")
    together, torn = (laid_out(split, advantages, max_tokens=1, keep_together=keep) for keep in (True, False))
    assert [len(m.ids) for m in together.micro] == [3, 4]
    assert [len(m.ids) for m in torn.micro] == [1] * 7
    assert not same(gradient(model, together, loss), gradient(model, torn, loss))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("level", LEVELS)
def test_other_tokens_get_exactly_no_gradient(model: torch.nn.Module, level: str, objective: str) -> None:
    """Prompts, observations and padding; at their logits the gradient is 0 to the last bit."""
    two, _ = drawn(random.Random(2), [3, 1])
    (micro,) = laid_out(two, [[0.5, -1.0, 2.0], [1.0]], max_tokens=1000).micro
    short, long = (len(t.rows[0].ids) for t in reversed(two))
    assert short < long == micro.ids.shape[1]
    logits = model(input_ids=micro.ids).logits.detach().requires_grad_()
    logp = torch.log_softmax(logits[:, :-1][micro.policy], -1).gather(-1, micro.ids[:, 1:][micro.policy][:, None])[:, 0]
    spans = micro.turns if level == "turn" else micro.trajectories
    policy_loss(
        logp,
        logp.detach(),
        micro.advantages.double(),
        normalizer=1.0,
        level=level,
        spans=spans,
        objective=objective,
        ref_logp=logp.detach() + 0.3,
        kl_coef=0.1,
    ).loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    for line, trajectory in enumerate(reversed(two)):
        mask = trajectory.rows[0].mask
        for position in range(long):
            predicts_policy = position + 1 < len(mask) and mask[position + 1] == 1
            assert bool(logits.grad[line, position].abs().max() > 0) == predicts_policy


def test_other_tokens_are_attended_to(model: torch.nn.Module) -> None:
    """Another observation changes the log-probabilities that come after it, and only those."""
    (one,), _ = drawn(random.Random(2), [3])
    (row,) = one.rows
    place = next(i for i in range(1, len(row.ids)) if row.mask[i] == 0 and row.mask[i - 1] == 1)
    ids = list(row.ids)
    ids[place] = ids[place] % (VOCAB - 1) + 1
    changed = Trajectory(one.task, (), one.steps, (TokenStream(tuple(ids), row.mask, row.turns, row.logprobs),))
    micros = [laid_out([t], [[0.5, -1.0, 2.0]], max_tokens=1000).micro[0] for t in (one, changed)]
    before, after = (token_logprobs(model, micro, 1.0)[0] for micro in micros)
    earlier = sum(row.mask[:place])
    assert torch.equal(before[:earlier], after[:earlier])
    assert (before[earlier:] - after[earlier:]).abs().max() > 0


STEP = Step(Action(""), Observation())
TWO_TURNS = TokenStream((5, 6, 7, 8, 9), (0, 1, 0, 1, 1), (-1, 0, -1, 1, 1), (0.0, -0.1, 0.0, -0.2, -0.3))


def of_rows(*rows: TokenStream, turns: int = 2) -> Trajectory:
    return Trajectory(Task("t", "", ""), (), (STEP,) * turns, rows)


def test_each_token_gets_its_turns_advantage_and_its_samplers_logprob() -> None:
    batch = make_batch([of_rows(TWO_TURNS)], [[2.0, -1.0]], normalizer=3.0, pad_id=0, max_tokens=99, row_weights=[0.5])
    (micro,) = batch.micro
    assert micro.ids.tolist() == [[5, 6, 7, 8, 9]]
    assert micro.policy.tolist() == [[True, False, True, True]]
    assert micro.advantages.tolist() == [1.0, -0.5, -0.5]
    assert micro.row_weights.tolist() == [0.5, 0.5, 0.5]
    assert micro.sampler_logp.tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert (batch.normalizer, batch.policy_tokens, batch.padded_tokens) == (3.0, 3, 5)


def test_turns_and_trajectories_are_numbered_within_the_micro_batch() -> None:
    short = TokenStream((1, 2), (0, 1), (-1, 0), (0.0, -0.5))
    batch = make_batch(
        [of_rows(TWO_TURNS), of_rows(short, turns=1), of_rows(TWO_TURNS)],
        [[1.0, 2.0], [3.0], [4.0, 5.0]],
        normalizer=1.0,
        pad_id=0,
        max_tokens=99,
    )
    (micro,) = batch.micro  # the shortest row first
    assert micro.turns.tolist() == [0, 1, 2, 2, 3, 4, 4]
    assert micro.trajectories.tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert micro.places == ((1, 0), (0, 0), (0, 1), (0, 1), (2, 0), (2, 1), (2, 1))
    assert micro.turns.dtype == micro.trajectories.dtype == torch.long
    moved = micro.to(torch.device("meta"))
    tensors = {name: value for name, value in vars(moved).items() if isinstance(value, Tensor)}
    assert len(tensors) == 7
    assert all(tensor.is_meta for tensor in tensors.values())
    assert moved.places == micro.places


def test_rows_of_one_trajectory_share_its_number_but_not_their_turns() -> None:
    (whole, other), _ = drawn(random.Random(4), [3, 2])
    batch = laid_out([in_several_rows(whole), other], [[1.0, 2.0, 3.0], [4.0, 5.0]], max_tokens=10**6)
    (micro,) = batch.micro
    seen = {place: (int(turn), int(number)) for place, turn, number in zip(*spans(micro), strict=True)}
    assert sorted(seen) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert sorted(turn for turn, _ in seen.values()) == [0, 1, 2, 3, 4]
    assert len({number for (i, _), (_, number) in seen.items() if i == 0}) == 1
    assert {number for _, number in seen.values()} == {0, 1}


def spans(micro: MicroBatch) -> tuple[tuple[tuple[int, int], ...], list[int], list[int]]:
    return micro.places, micro.turns.tolist(), micro.trajectories.tolist()


def test_advantages_of_single_tokens() -> None:
    credit = [[2.0, [-1.0, 0.25]]]
    (micro,) = make_batch(
        [of_rows(TWO_TURNS)], credit, normalizer=1.0, pad_id=0, max_tokens=99, row_weights=[2.0]
    ).micro
    assert micro.advantages.tolist() == [4.0, -2.0, 0.5]


def test_equal_advantages_of_single_tokens_are_the_turns(model: torch.nn.Module) -> None:
    trajectories, per_turn = drawn(random.Random(9), [2, 4, 1])
    split = [in_several_rows(t) for t in trajectories]
    sampled = [Counter(t for row in e.rows for t in row.turns if t >= 0) for e in trajectories]
    per_token = [[[a] * n[t] for t, a in enumerate(turns)] for turns, n in zip(per_turn, sampled, strict=True)]
    one = gradient(model, laid_out(trajectories, per_turn, max_tokens=60))
    assert same(one, gradient(model, laid_out(trajectories, per_token, max_tokens=60)))
    assert same(one, gradient(model, laid_out(split, per_token, max_tokens=60)))


@pytest.mark.parametrize(
    ("advantages", "message"),
    [
        ([[1.0, math.nan]], "trajectory 0, turn 1 is nan"),
        ([[math.inf, 1.0]], "trajectory 0, turn 0 is inf"),
        ([[1e39, 1.0]], "trajectory 0, turn 0"),  # infinite as a float32
        ([[1.0, [0.0, -math.inf]]], "trajectory 0, turn 1 is -inf"),
        ([[1.0, [0.0]]], "1 advantages for the 2 sampled tokens of trajectory 0, turn 1"),
        ([[1.0, []]], "0 advantages for the 2 sampled tokens"),
        ([[1.0]], "2 turns, but 1 advantages"),
        ([[1.0, 2.0, 3.0]], "2 turns, but 3 advantages"),
        ([], "advantages for 0 trajectories, but there are 1"),
    ],
)
def test_advantages_that_do_not_fit_are_named(advantages: list[list[float]], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        make_batch([of_rows(TWO_TURNS)], advantages, normalizer=1.0, pad_id=0, max_tokens=99)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((TWO_TURNS, TokenStream((1, 2), (0, 1), (-1, 1), (0.0, 0.0))), "Turn 1 of trajectory 0 lies in two rows"),
        ((TokenStream((1, 2), (0, 1), (-1, 2), (0.0, 0.0)),), r"marked with the turns \[2\]"),
        ((TokenStream((1, 2), (0, 1), (-1, -1), (0.0, 0.0)),), r"marked with the turns \[-1\]"),
        ((TokenStream((1, 2), (1, 1), (0, 0), (0.0, 0.0)),), "without any context"),
    ],
)
def test_malformed_rows_are_refused(rows: tuple[TokenStream, ...], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        make_batch([of_rows(*rows)], [[1.0, 1.0]], normalizer=1.0, pad_id=0, max_tokens=99)


def test_rows_without_a_sampled_token_are_left_out() -> None:
    silent = TokenStream((1, 2), (0, 0), (-1, -1), (0.0, 0.0))
    (micro,) = make_batch(
        [of_rows(silent, TWO_TURNS), of_rows(silent)],
        [[1.0, 2.0], [math.pi, 1.0]],
        normalizer=1.0,
        pad_id=0,
        max_tokens=99,
        keep_together=True,
    ).micro
    assert micro.ids.tolist() == [[5, 6, 7, 8, 9]]
    assert make_batch([of_rows(silent)], [[1.0, 1.0]], normalizer=1.0, pad_id=0, max_tokens=9).micro == ()


def test_normalizers() -> None:
    two, _ = drawn(random.Random(0), [1, 3])
    tokens = [sum(t.rows[0].mask) for t in two]
    assert Counts.of(two) == Counts(2, 4, sum(tokens)) == Counts.of(two[:1]) + Counts.of(two[1:])
    assert normalizer_value("constant", two, constant=10) == (20.0, [1.0, 1.0])
    assert normalizer_value("token", two, constant=10) == (float(sum(tokens)), [1.0, 1.0])
    assert normalizer_value("turn", two, constant=10) == (4.0, [1.0, 1.0])
    assert normalizer_value("sequence", two, constant=10) == (2.0, [1 / tokens[0], 1 / tokens[1]])
    with pytest.raises(UnknownNameError, match="normalizer"):
        normalizer_value("mean", two, constant=10)
    with pytest.raises(ConfigError, match="at least 1 token"):
        normalizer_value("constant", two, constant=0)


@pytest.mark.parametrize("kind", NORMALIZERS)
def test_a_step_without_trajectories_divides_by_one(kind: str) -> None:
    assert normalizer_value(kind, [], constant=10) == (1.0, [])


def test_a_policy_without_tokens_cannot_be_trained() -> None:
    with pytest.raises(ConfigError, match="LLM policy"):
        make_batch([of_rows(turns=1)], [[1.0]], normalizer=1.0, pad_id=0, max_tokens=10)
