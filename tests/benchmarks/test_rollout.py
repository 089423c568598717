"""The rollout benchmark: both contenders do the same work."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ("rollout", "rollout_contenders")


@pytest.fixture(scope="module")
def benchmark() -> Iterator[SimpleNamespace]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
    for name in (*NAMES, "rounds", "machine"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # TRL's and transformers' own
def test_both_play_the_same_number_of_turns_and_tokens(benchmark: SimpleNamespace) -> None:
    from trajgym.trainers.models import load_model

    parts = benchmark.rollout_contenders
    model, tokenizer = load_model("tiny")
    said: list[str] = []
    parts.teach(model, tokenizer, steps=200, rate=1e-3, turns=3, say=said.append)
    assert said
    here = parts.ours(model, tokenizer, episodes=8, turns=2)()
    there = parts.theirs(model, tokenizer, episodes=8, turns=2)()
    assert here.turns == there.turns == 16
    assert here.tokens == there.tokens
    assert here.tokens > 16 * 20


def test_single_turns_are_as_long_as_asked(benchmark: SimpleNamespace) -> None:
    from trajgym.trainers.models import load_model

    parts = benchmark.rollout_contenders
    model, _ = load_model("tiny")
    model.eval()
    for contender in (parts.decode_ours, parts.decode_theirs):
        assert contender(model, rows=2, prompt=5, tokens=4)().tokens == 8


def test_slow_tools_cost_the_slowest_episode(benchmark: SimpleNamespace) -> None:
    row = benchmark.rollout.slow(0.01, episodes=4)
    assert row.startswith("| 0.01 s | 4 | ")
    assert row.endswith(" | 0.0 | 0.1 |")
