"""The rollout benchmark: all contenders do the same work."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trajgym.policies.hf import HFSampler

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ("rollout", "rollout_contenders", "vllm_run")


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
    here = parts.ours(model, tokenizer, episodes=16, turns=2)()
    there = parts.theirs(model, tokenizer, episodes=16, turns=2)()
    assert here.turns == there.turns == 32
    assert here.work == there.work
    assert here.tokens > 32 * 20
    assert len(set(here.prompts)) == 2


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_both_play_the_same_tasks(benchmark: SimpleNamespace) -> None:
    from trajgym.trainers.trl import environment_factory

    rows = environment_factory(benchmark.rollout_contenders.ENV).dataset(4)
    assert [task.question for task in benchmark.rollout_contenders._tasks(4)] == rows["question"][:]
    assert len(set(rows["question"][:])) == 4


def test_prompts_of_our_episodes_are_those_of_the_tasks(benchmark: SimpleNamespace) -> None:
    from trajgym.trainers.models import load_model

    parts = benchmark.rollout_contenders
    model, tokenizer = load_model("tiny")
    done = parts.ours(model.eval(), tokenizer, episodes=16, turns=1)()
    assert done.turns == len(done.prompts) == 16
    for first, task in enumerate(parts._tasks(2)):
        assert all(task.question in tokenizer.decode(ids) for ids in done.prompts[8 * first : 8 * first + 8])


def test_single_turns_are_as_long_as_asked(benchmark: SimpleNamespace) -> None:
    from trajgym.trainers.models import load_model

    parts = benchmark.rollout_contenders
    model, _ = load_model("tiny")
    model.eval()
    here, there = (made(model, rows=2, prompt=5, tokens=4)() for made in (parts.decode_ours, parts.decode_theirs))
    assert here.tokens == 8
    assert here.work == there.work
    assert parts.lengths(here) == "5"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": 9}, "other: 9 tokens in 2 turns"),
        ({"turns": 3}, "other: 8 tokens in 3 turns"),
        ({"prompts": ((1, 2), (3,))}, "2 prompts of 1 … 2 each"),
        ({"prompts": ((1, 2), (3, 5))}, "the same lengths, other tokens"),
    ],
)
def test_other_work_has_no_figures(benchmark: SimpleNamespace, change: dict[str, Any], said: str) -> None:
    parts = benchmark.rollout_contenders
    done = parts.Sampled(2.0, 8, 2, ((1, 2), (3, 4)))
    times, work = parts.measured({"one": lambda: done, "other": lambda: replace(done, seconds=4.0)}, 2)
    assert times == {"one": [0.25] * 2, "other": [0.5] * 2}
    assert work.work == done.work
    later = iter([done, done, replace(done, **change)])  # in the last round alone
    with pytest.raises(parts.UnequalWorkError, match=said):
        parts.measured({"one": lambda: done, "other": lambda: next(later)}, 2)


def test_slow_tools_cost_the_slowest_episode(benchmark: SimpleNamespace) -> None:
    row = benchmark.rollout.slow(0.01, episodes=4)
    assert row.startswith("| 0.01 s | 4 | ")
    assert row.endswith(" | 0.0 | 0.1 |")


def test_the_tables_of_the_rollout(
    benchmark: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(seconds: float) -> Callable[..., Any]:
        return lambda *args, **size: lambda: benchmark.rollout.Sampled(seconds, 8, 4, ((1, 2, 3),))

    module = benchmark.rollout
    monkeypatch.setattr(module, "teach", lambda *args, **options: None)
    monkeypatch.setattr(module, "slow", lambda seconds: f"| {seconds} |")
    for name, seconds in (("ours", 1.0), ("theirs", 4.0), ("decode_ours", 1.0), ("decode_theirs", 2.0)):
        monkeypatch.setattr(module, name, made(seconds))
    assert module.main(turns=(2,), rounds=1) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| 2 turns | 8 | 2 | 4.00 [4.00, 4.00] | 4 | 8 | 3 |" in lines
    assert "| 64 tokens after 16 | 8 | 4 | 2.00 [2.00, 2.00] | 4 | 8 | 3 |" in lines
    widths = {line.count("|") for line in lines if "tokens/s" in line or "turns |" in line or "after" in line}
    assert widths == {8}


@pytest.mark.parametrize("name", ["rollout", "vllm_run"])
def test_the_machine_is_looked_at_before_we_are_at_work_ourselves(
    benchmark: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    called = []
    monkeypatch.setattr(getattr(benchmark, name), "machine", lambda: called.append("machine"))

    def load(*args: Any, **options: Any) -> Any:
        called.append("load_model")
        raise InterruptedError

    monkeypatch.setattr(getattr(benchmark, name), "load_model", load)
    with pytest.raises(InterruptedError):
        getattr(benchmark, name).main()
    assert called == ["machine", "load_model"]


def test_the_table_of_vllm_with_another_engine(
    benchmark: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trajgym.trainers.models import load_model

    closed = []

    class Engine(HFSampler):
        def __init__(self, path: str, *, dtype: str, options: Any, **rest: Any) -> None:
            assert (dtype, options.enforce_eager, options.kv_cache_gib) == ("float32", True, 0.5)
            super().__init__(load_model("tiny")[0].eval(), **rest)

        def close_engine(self) -> None:
            closed.append(True)

    monkeypatch.setattr(benchmark.vllm_run, "VLLMSampler", Engine)
    assert benchmark.vllm_run.main(rows=(1, 2), prompt=4, tokens=3, rounds=1, eager=True, cache=0.5) == 0
    head, *rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [row.count("|") for row in rows] == [head.count("|")] * 3
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[1:]]
    assert [(row[0], row[-2], row[-1]) for row in cells] == [("1", "3", "4"), ("2", "6", "4")]
    assert closed == [True]
