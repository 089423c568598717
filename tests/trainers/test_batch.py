"""Rows to tensors: nothing but policy tokens reaches the loss, however the rows are cut up."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trajgym.errors import ConfigError
from trajgym.trainers.batch import Batch, make_batch, normalizer_value
from trajgym.trainers.loss import policy_loss
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


def gradient(model: torch.nn.Module, batch: Batch) -> Tensor:
    model.zero_grad()
    for micro in batch.micro:
        logp, _ = token_logprobs(model, micro, 0.7)
        policy_loss(logp, logp.detach(), micro.advantages.double(), normalizer=batch.normalizer).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def laid_out(
    trajectories: list[Trajectory],
    advantages: list[list[float]],
    *,
    max_tokens: int,
    kind: str = "constant",
    pad: int = 0,
) -> Batch:
    z, weights = normalizer_value(kind, trajectories, constant=10)
    return make_batch(trajectories, advantages, normalizer=z, row_weights=weights, pad_id=pad, max_tokens=max_tokens)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 40, 100, 10**6]),
    st.sampled_from(["constant", "token", "turn", "sequence"]),
)
def test_any_order_and_any_cut_give_the_same_gradient(model: torch.nn.Module, seed: int, size: int, kind: str) -> None:
    rng = random.Random(seed)
    trajectories = [trajectory(rng, rng.randrange(1, 5)) for _ in range(6)]
    advantages = [[rng.uniform(-1, 1) for _ in t.steps] for t in trajectories]
    expected = gradient(model, laid_out(trajectories, advantages, max_tokens=10**6, kind=kind))
    order = rng.sample(range(6), 6)
    batch = laid_out(
        [trajectories[i] for i in order], [advantages[i] for i in order], max_tokens=size, kind=kind, pad=7
    )
    assert all(len(m.ids) == 1 or m.ids.numel() <= size for m in batch.micro)
    assert (gradient(model, batch) - expected).norm() <= 1e-6 * expected.norm()


def test_one_row_or_one_row_per_turn_give_the_same_gradient(model: torch.nn.Module) -> None:
    rng = random.Random(5)
    whole = [trajectory(rng, n) for n in (1, 3, 4)]
    advantages = [[rng.uniform(-1, 1) for _ in t.steps] for t in whole]
    split = [in_several_rows(t) for t in whole]
    assert [len(t.rows) for t in split] == [1, 3, 4]
    for kind in ("constant", "token", "turn", "sequence"):
        a = gradient(model, laid_out(whole, advantages, max_tokens=200, kind=kind))
        b = gradient(model, laid_out(split, advantages, max_tokens=200, kind=kind))
        assert (a - b).norm() <= 1e-6 * a.norm()


def test_other_tokens_get_exactly_no_gradient_but_are_attended_to(model: torch.nn.Module) -> None:
    rng = random.Random(2)
    one = trajectory(rng, 3)
    (row,) = one.rows
    batch = laid_out([one], [[0.5, -1.0, 2.0]], max_tokens=1000)
    (micro,) = batch.micro
    embedded = model.get_input_embeddings()(micro.ids).detach()  # type: ignore[operator]
    logits = model(inputs_embeds=embedded).logits.detach().requires_grad_()
    logp = torch.log_softmax(logits[:, :-1][micro.policy], -1).gather(-1, micro.ids[:, 1:][micro.policy][:, None])[:, 0]
    policy_loss(logp, logp.detach(), micro.advantages.double(), normalizer=1.0).loss.backward()
    assert logits.grad is not None
    for position in range(len(row.ids)):
        predicts_policy = position + 1 < len(row.ids) and row.mask[position + 1] == 1
        assert bool(logits.grad[0, position].abs().max() > 0) == predicts_policy
    # Another observation changes the log-probabilities that come after it, and only those.
    place = next(i for i in range(1, len(row.ids)) if row.mask[i] == 0 and row.mask[i - 1] == 1)
    ids = list(row.ids)
    ids[place] = ids[place] % (VOCAB - 1) + 1
    changed = Trajectory(one.task, (), one.steps, (TokenStream(tuple(ids), row.mask, row.turns, row.logprobs),))
    (other,) = laid_out([changed], [[0.5, -1.0, 2.0]], max_tokens=1000).micro
    before, after = (token_logprobs(model, m, 1.0)[0] for m in (micro, other))
    earlier = sum(row.mask[:place])
    assert torch.equal(before[:earlier], after[:earlier])
    assert (before[earlier:] - after[earlier:]).abs().max() > 0


def test_each_token_gets_its_turns_advantage_and_its_samplers_logprob() -> None:
    row = TokenStream((5, 6, 7, 8, 9), (0, 1, 0, 1, 1), (-1, 0, -1, 1, 1), (0.0, -0.1, 0.0, -0.2, -0.3))
    step = Step(Action(""), Observation())
    one = Trajectory(Task("t", "", ""), (), (step, step), (row,))
    batch = make_batch([one], [[2.0, -1.0]], normalizer=3.0, pad_id=0, max_tokens=99, row_weights=[0.5])
    (micro,) = batch.micro
    assert micro.ids.tolist() == [[5, 6, 7, 8, 9]]
    assert micro.policy.tolist() == [[True, False, True, True]]
    assert micro.advantages.tolist() == [1.0, -0.5, -0.5]
    assert micro.sampler_logp.tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert (batch.normalizer, batch.policy_tokens, batch.padded_tokens) == (3.0, 3, 5)


def test_normalizers() -> None:
    rng = random.Random(0)
    two = [trajectory(rng, 1), trajectory(rng, 3)]
    tokens = [sum(t.rows[0].mask) for t in two]
    assert normalizer_value("constant", two, constant=10) == (20.0, [1.0, 1.0])
    assert normalizer_value("token", two, constant=10) == (float(sum(tokens)), [1.0, 1.0])
    assert normalizer_value("turn", two, constant=10) == (4.0, [1.0, 1.0])
    assert normalizer_value("sequence", two, constant=10) == (2.0, [1 / tokens[0], 1 / tokens[1]])
    with pytest.raises(ConfigError, match="normalizer"):
        normalizer_value("mean", two, constant=10)


def test_a_policy_without_tokens_cannot_be_trained() -> None:
    bare = Trajectory(Task("t", "", ""), (), (Step(Action("x"), Observation()),))
    with pytest.raises(ConfigError, match="LLM policy"):
        make_batch([bare], [[1.0]], normalizer=1.0, pad_id=0, max_tokens=10)
