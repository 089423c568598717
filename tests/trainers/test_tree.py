"""Shared beginnings once, and the gradient of separate rows all the same."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from trajgym.trainers.batch import NORMALIZERS, Batch, make_batch, normalizer_value
from trajgym.trainers.critic import ValueModel
from trajgym.trainers.kl import KL_FORMS
from trajgym.trainers.loss import LEVELS, OBJECTIVES, policy_loss, sampler_weights
from trajgym.trainers.models import Reference, add_lora, checkpoint_activations, token_logprobs
from trajgym.trainers.tree import Tree, make_tree, shared_lengths
from trajgym.trainers.tree_attention import attend
from trajgym.types import Action, Observation, Step, Task, TokenStream, Trajectory

VOCAB = 30
ROUNDING = 1e-6  # the models are in float64, but their norms and positions in float32
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")


def make_model(**sizes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**{
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, **sizes,
    })  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model()


def branching(rng: random.Random) -> list[Trajectory]:
    """Trajectories of a few tasks: prompts with a common beginning, and members that part at some turn or never.

    Some are written as one row, others as a row per turn, each with everything before it.
    """
    instructions = [rng.randrange(1, VOCAB) for _ in range(rng.randrange(0, 6))]
    out: list[Trajectory] = []
    for _ in range(rng.randrange(1, 4)):
        prompt = instructions + [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 8))]
        played: list[list[tuple[list[int], list[int]]]] = []  # of each member, turn by turn: what it saw, what it said
        for _ in range(rng.randrange(1, 5)):
            turns = list(rng.choice(played)) if played and rng.random() < 0.6 else []
            turns = turns[: rng.randrange(len(turns) + 1)]
            while not turns or rng.random() < 0.5:
                seen = [rng.randrange(1, VOCAB) for _ in range(rng.randrange(0, 4))] if turns else prompt
                turns.append((seen, [rng.randrange(1, VOCAB) for _ in range(rng.choice([1, 2, 3, 9]))]))
            played.append(turns)
        out += [written(turns, rng.random() < 0.3, rng) for turns in played]
    return out


def written(turns: list[tuple[list[int], list[int]]], apart: bool, rng: random.Random) -> Trajectory:
    ids: list[int] = []
    marks: list[int] = []
    rows = []
    for number, (seen, said) in enumerate(turns):
        ids += seen + said
        marks += [-1] * len(seen) + [number] * len(said)
        if apart or number == len(turns) - 1:
            mine = [t if not apart or t == number else -1 for t in marks]
            logps = tuple(-rng.random() if t >= 0 else 0.0 for t in mine)
            trailing = [5] * rng.randrange(3)  # what was answered to the last turn, and nobody read
            mask = tuple(int(t >= 0) for t in mine) + (0,) * len(trailing)
            full = (*mine, *(-1 for _ in trailing))
            rows.append(TokenStream((*ids, *trailing), mask, full, logps + (0.0,) * len(trailing)))
    steps = tuple(Step(Action(""), Observation()) for _ in turns)
    return Trajectory(Task("t", "", ""), (), steps, tuple(rows))


def laid_out(played: list[Trajectory], *, share: bool, size: int, kind: str = "token", level: str = "token") -> Batch:
    rng = random.Random(1)
    z, weights = normalizer_value(kind, played, constant=10)
    credit = [[rng.uniform(-1, 1) for _ in t.steps] for t in played]
    return make_batch(
        played, credit, normalizer=z, row_weights=weights, pad_id=0, max_tokens=size,
        keep_together=level == "trajectory", share=share,
    )  # fmt: skip


def gradient(model: Any, batch: Batch, *, level: str = "token", objective: str = "clip", form: str = "k3") -> Tensor:
    model.zero_grad()
    for micro in batch.micro:
        logp, _ = token_logprobs(model, micro, 0.7)
        word = micro.ids[:, 1:][micro.policy].to(logp.dtype)
        old = logp.detach() + 0.6 * torch.sin(1.7 * word)
        policy_loss(
            logp, old, micro.advantages.to(logp.dtype), normalizer=batch.normalizer, level=level,
            spans=micro.turns if level == "turn" else micro.trajectories, objective=objective, cispo_cap=1.1,
            dual_clip=1.5, weights=sampler_weights(old, micro.sampler_logp.to(logp.dtype)),
            ref_logp=logp.detach() + 0.5 * torch.cos(word), kl_coef=0.2, kl_form=form,
            kl_weights=micro.row_weights.to(logp.dtype),
        ).loss.backward()  # type: ignore[no-untyped-call]  # fmt: skip
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def off(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


def by_token(batch: Batch, numbers: list[Tensor]) -> dict[tuple[int, int, int], Tensor]:
    """Numbers by trajectory, turn and place in the turn, whatever the order of rows."""
    out: dict[tuple[int, int, int], Tensor] = {}
    for micro, values in zip(batch.micro, numbers, strict=True):
        for (i, t), value in zip(micro.places, values, strict=True):
            out[i, t, sum(key[:2] == (i, t) for key in out)] = value
    return out


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 60, 10**6]),
    st.sampled_from(LEVELS),
    st.sampled_from(OBJECTIVES),
    st.sampled_from(KL_FORMS),
    st.sampled_from(NORMALIZERS),
)
def test_a_tree_has_the_gradient_of_separate_rows(
    model: Any, seed: int, size: int, level: str, objective: str, form: str, kind: str
) -> None:
    played = branching(random.Random(seed))
    rows = laid_out(played, share=False, size=10**6, kind=kind, level=level)
    tree = laid_out(played, share=True, size=size, kind=kind, level=level)
    assert all(m.tree is not None for m in tree.micro)
    loss = {"level": level, "objective": objective, "form": form}
    differ = off(gradient(model, tree, **loss), gradient(model, rows, **loss))
    assert differ < ROUNDING


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([30, 10**6]))
def test_a_tree_has_the_log_probabilities_and_entropies_of_separate_rows(model: Any, seed: int, size: int) -> None:
    played = branching(random.Random(seed))
    both = [laid_out(played, share=share, size=size) for share in (False, True)]
    for place in (0, 1):
        with torch.no_grad():
            rows, tree = (by_token(b, [token_logprobs(model, m, 0.7)[place] for m in b.micro]) for b in both)
        assert rows.keys() == tree.keys()
        assert max(abs(float(rows[key] - tree[key])) for key in rows) < ROUNDING


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("lora", [False, True])
def test_with_adapters_and_recomputed_activations(lora: bool, recomputed: bool) -> None:
    model = make_model(tie_word_embeddings=True)
    if lora:
        model = add_lora(model, rank=4, alpha=8, targets=TARGETS, seed=0).double()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "lora_B" in name:
                    p.normal_(std=0.1)
    played = branching(random.Random(5))
    rows, tree = (laid_out(played, share=share, size=10**6) for share in (False, True))
    wanted = gradient(model, rows)
    if recomputed:
        checkpoint_activations(model)
    differ = off(gradient(model, tree), wanted)
    assert differ < ROUNDING
    reference = Reference(model, lora=lora)
    found, alone = (by_token(b, [reference.logprobs(m, 1.0) for m in b.micro]) for b in (tree, rows))
    assert max(abs(float(found[key] - alone[key])) for key in alone) < ROUNDING


def test_values_on_a_tree() -> None:
    value = ValueModel(make_model())  # its head stays in float32
    torch.nn.init.normal_(value.head.weight)
    played = branching(random.Random(6))
    grads, numbers = [], []
    for share in (False, True):
        batch = laid_out(played, share=share, size=60)
        value.zero_grad()
        found = [value(micro) for micro in batch.micro]
        keyed = by_token(batch, found)
        ordered = torch.stack([keyed[key] for key in sorted(keyed)])
        (ordered.square() * torch.arange(1, len(keyed) + 1)).sum().backward()  # type: ignore[no-untyped-call]
        grads.append(torch.cat([p.grad.flatten() for p in value.parameters() if p.grad is not None]))
        numbers.append(ordered.detach())
    assert float((numbers[0] - numbers[1]).abs().max()) < 1e-5
    differ = off(grads[1], grads[0])
    assert differ < ROUNDING


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_in_fewer_bits_the_two_differ_by_rounding(model: Any, dtype: torch.dtype, most: float) -> None:
    small = copy.deepcopy(model).to(dtype)
    played = branching(random.Random(7))
    rows, tree = (gradient(small, laid_out(played, share=share, size=10**6)).double() for share in (False, True))
    differ = off(tree, rows)
    assert differ < most


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=8), st.randoms())
def test_each_beginning_stands_once(rows: list[list[int]], rng: random.Random) -> None:
    sampled = [sorted(rng.sample(range(1, len(row)), rng.randrange(1, len(row)))) for row in rows]
    tree = make_tree(rows, sampled)
    beginnings = {tuple(row[: n + 1]) for row, at in zip(rows, sampled, strict=True) for n in range(at[-1])}
    assert tree.ids.numel() == len(beginnings)
    names = named(tree)
    assert sorted(names) == sorted(beginnings)
    wanted = [tuple(row[:p]) for row, at in zip(rows, sampled, strict=True) for p in at]
    assert [names[i] for i in tree.where.tolist()] == wanted
    assert tree.longest == max(at[-1] for at in sampled)
    check_attention(tree, names)


def named(tree: Tree) -> list[tuple[int, ...]]:
    """What each token of a tree stands for: the row up to itself, read from the keys it sees."""
    names: list[tuple[int, ...]] = [()] * tree.ids.numel()
    results = [
        tuple(call.keys[s, : k + 1].tolist()) if call.seen is None else tuple(call.keys[s][call.seen[s, 0, k]].tolist())
        for call in tree.calls
        for s in range(len(call.queries))
        for k in range(call.queries.shape[1])
    ]
    for token, place in enumerate(tree.places.tolist()):
        assert results[place][-1] == token
        names[token] = tuple(tree.ids[0, list(results[place])].tolist())
    return names


def check_attention(tree: Tree, names: list[tuple[int, ...]]) -> None:
    """Compare with attention written out token by token, with two query heads for each of keys and values."""
    place = {name: i for i, name in enumerate(names)}
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, len(names), size, generator=generator, dtype=torch.float64)
        for heads, size in ((4, 3), (2, 3), (2, 5))
    )
    found = attend(tree, q, k, v, scale=0.7, dropout=0.0)
    assert found.shape == (1, len(names), 4, 5)
    for i, name in enumerate(names):
        seen = [place[name[: n + 1]] for n in range(len(name))]
        for head in range(4):
            weights = functional.softmax(0.7 * k[0, head // 2, seen] @ q[0, head, i], dim=0)
            torch.testing.assert_close(found[0, i, head], weights @ v[0, head // 2, seen])


def test_a_long_prompt_is_not_attended_to_anew_by_its_own_tokens() -> None:
    """Each of the others asks for what it adds, and nothing is asked twice."""
    prompt = list(range(100, 164))
    rows = [[*prompt, *range(200 + 10 * k, 205 + 10 * k)] for k in range(8)]
    tree = make_tree(rows, [list(range(64, 69))] * 8)
    assert tree.ids.numel() == 64 + 8 * 4
    assert sorted((tuple(c.queries.shape), tuple(c.keys.shape), c.seen is None) for c in tree.calls) == [
        ((1, 68), (1, 68), True),
        ((7, 4), (7, 68), False),
    ]


def test_rows_of_very_different_length_are_not_padded_to_one() -> None:
    rows = [[k, *range(10, 10 + n)] for k, n in enumerate((400, 400, 390, 40, 38, 3))]
    tree = make_tree(rows, [[len(row) - 1] for row in rows])
    assert [c.queries.shape[0] for c in tree.calls] == [3, 2, 1]


def test_equal_rows_are_computed_once() -> None:
    tree = make_tree([[1, 2, 3, 4]] * 3, [[2, 3], [1], [3]])
    assert tree.ids.tolist() == [[1, 2, 3]]
    assert tree.where.tolist() == [1, 2, 0, 2]
    assert len(tree.calls) == 1


def test_the_longest_common_beginning_is_with_the_row_before() -> None:
    rows = [[3, 1], [1, 1, 2], [3, 1, 1], [1, 1], [1, 2]]
    found = dict(shared_lengths(rows))
    for r, shared in found.items():
        order = list(found)
        earlier = order[: order.index(r)]
        assert shared == max((common(rows[r], rows[e]) for e in earlier), default=0)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 40, 100, 10**6]), st.booleans())
def test_micro_batches_are_of_similar_size_and_lose_nothing(seed: int, size: int, together: bool) -> None:
    played = branching(random.Random(seed))
    credit = [[1.0] * len(t.steps) for t in played]
    kinds = {"normalizer": 1.0, "pad_id": 0, "max_tokens": size, "keep_together": together}
    batch = make_batch(played, credit, share=True, **kinds)  # type: ignore[arg-type]
    places = sorted(place for micro in batch.micro for place in micro.places)
    whole = make_batch(played, credit, share=False, **kinds)  # type: ignore[arg-type]
    assert places == sorted(place for micro in whole.micro for place in micro.places)
    assert batch.padded_tokens == sum(m.computed for m in batch.micro)
    tokens = [sum(len(t.rows[0].ids) for t in played if len(t.rows) == 1)]
    assert batch.padded_tokens <= sum(len(row.ids) for t in played for row in t.rows) >= tokens[0]
    if together:
        for i in range(len(played)):
            assert sum(any(place[0] == i for place in m.places) for m in batch.micro) == 1


def test_nothing_to_learn_from_makes_no_micro_batch() -> None:
    """As where no trajectory of an update has a signal: then there is no bound on their tokens either."""
    batch = make_batch([], [], normalizer=1.0, pad_id=0, max_tokens=0, share=True)
    assert (batch.micro, batch.policy_tokens, batch.padded_tokens) == ((), 0, 0)


def test_a_cut_leaves_two_halves() -> None:
    """Not one full micro-batch and a small one: ranks would wait for each other."""
    rows = [TokenStream((7, k, 3, 4, 5), (0, 0, 1, 1, 1), (-1, -1, 0, 0, 0), (0.0,) * 5) for k in range(8)]
    played = [Trajectory(Task("t", "", ""), (), (Step(Action(""), Observation()),), (row,)) for row in rows]
    batch = make_batch(played, [[1.0]] * 8, normalizer=1.0, pad_id=0, max_tokens=35, share=True)
    assert [len(m.ids) for m in batch.micro] == [4, 4]
    assert [m.computed for m in batch.micro] == [1 + 4 * 3] * 2


def test_a_tree_moves_with_its_micro_batch() -> None:
    (micro,) = laid_out(branching(random.Random(3)), share=True, size=10**6).micro
    moved = micro.to(torch.device("meta")).tree
    assert moved is not None
    assert micro.tree is not None
    assert all(x.is_meta for x in (moved.ids, moved.positions, moved.where, moved.places))
    assert all(c.queries.is_meta and c.keys.is_meta and (c.seen is None or c.seen.is_meta) for c in moved.calls)
    assert moved.longest == micro.tree.longest
