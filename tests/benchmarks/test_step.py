"""The benchmark of whole training steps: what it plays, and that what it prints adds up."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ("step", "rollout_contenders", "rounds", "machine")


@pytest.fixture(scope="module")
def step() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("step")
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def small(tmp_path: Path, step: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A random model of the embedded kind, and a benchmark of two short settings."""
    from trajgym.policies.tiny import build_model, build_tokenizer

    tokenizer = build_tokenizer(["system\nuser\nassistant\ntool\n calculator <tool_call> 48 + 24"] * 9, 320)
    build_model(tokenizer, width=32, layers=1).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(step, "FACTORS", {**step.FACTORS, "context": (0, 1)})
    monkeypatch.setattr(step, "_TURN_TOKENS", 4)
    monkeypatch.setattr(step, "peaks_of", lambda *args, **options: None)  # the run measures them, too
    return tmp_path / "model"


def line(update: float, **changes: float) -> dict[str, float]:
    """What a run logs of an update: 2 s of sampling, half of them needed, 3 s of learning, 0.6 s of them needed."""
    return {
        "time/update": update,
        "time/generation": 2.0,
        "time/lockstep": 0.25,
        "time/train": 3.0,
        "efficiency/bound": 1.6,
        "efficiency/mfu": 0.2,
        "efficiency/useful_token_share": 0.5,
        "turns": 4.0,
        **changes,
    }


def test_each_task_has_a_context_of_its_own(step: Any) -> None:
    env = step._TurnsEnv(turns=4, context=2)
    prompts = []
    for seed in range(5):
        env.reset(seed=seed)
        assert [message.role for message in env.messages] == ["user", *["assistant", "tool"] * 2]
        prompts.append(env.messages[0].content.split())
    for one, other in combinations(prompts, 2):
        assert one[:10] != other[:10]  # too little in common for the sampler to take it over
    env.reset(seed=0)
    assert env.messages[0].content.split() == prompts[0]  # the same for every member of a group


def test_the_context_is_what_a_dialogue_looks_like(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step._draws, "randrange", lambda *bounds: 42)
    played, begun = step._TurnsEnv(turns=4, context=0), step._TurnsEnv(turns=4, context=2)
    played.reset(seed=3)
    for _ in range(2):
        played.step(step.CALL)
    begun.reset(seed=3)
    assert begun.messages == played.messages
    ended = [any(begun.step(step.CALL)[2:4]) for _ in range(4)]
    assert ended == [False, False, False, True]  # turns played before do not count


def test_the_tool_answers_at_random(step: Any) -> None:
    env = step._TurnsEnv(turns=12, context=0)
    env.reset(seed=0)
    answers = {env.step(step.CALL)[0] for _ in range(12)}
    assert len(answers) > 3


def test_the_parts_are_those_of_an_update(step: Any) -> None:
    found = step._mean([line(6.0), line(8.0, **{"time/train": 4.0})])
    assert list(found.parts) == list(step.COLOURS)
    assert found.parts == pytest.approx(
        {
            "sampling, bound": 0.9,
            "sampling, beyond": 1.1,
            "learning, bound": 0.7,
            "learning, beyond": 2.8,
            "waiting": 0.25,
            "rest": 1.25,
        }
    )
    assert found.update == pytest.approx(7.0)
    assert found.eta == pytest.approx(1.6 / 7)


def test_the_median_round_is_shown_and_the_range_of_all(step: Any) -> None:
    rounds = [step._mean([line(update)]) for update in (9.0, 6.0, 8.0)]
    row = step._row("base", rounds)
    assert row.startswith("| base | 8.00 s (6.00 to 9.00) | 1.60 s | 0.20 (0.18 to 0.27) | ")
    shares = [int(cell.rstrip("% ")) for cell in row.strip("| ").split(" | ")[4:-1]]
    assert shares == [12, 12, 8, 30, 3, 34]
    assert step._row("base", rounds[:1]).startswith("| base | 9.00 s | 1.60 s | 0.18 | ")


def test_a_whole_run(step: Any, small: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "growth.png"
    factors = ("context", "width")
    assert step.main(str(small), factors=factors, updates=3, rounds=2, groups=2, steps=0, figure=picture) == 0
    said = capsys.readouterr().out
    assert "means of 1 updates, median of 2 rounds" in said
    table = [text[2:-2].split(" | ") for text in said.splitlines() if text.startswith("| ")]
    header, *rows = table
    assert header[:4] == ["setting", "update", "T_LB", "η"]
    assert [row[0] for row in rows] == ["base", "1 turns of context"]
    assert {len(row) for row in rows} == {len(header)} == {11}
    for row in rows:
        shares = [int(cell.rstrip("%")) for cell in row[4:-1]]
        assert abs(sum(shares) - 100) <= 3  # six roundings
    # A model that was taught nothing does not call, and no other size is like a model from a folder.
    assert "base: 1.00 turns instead of 4" in said
    assert "width is left out" in said
    assert picture.stat().st_size > 0


def test_the_machine_is_looked_at_before_it_is_made_busy(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def stopped(*args: Any, **options: Any) -> None:
        order.append("peaks")
        raise InterruptedError

    def looked() -> Any:
        order.append("machine")
        return look()

    look = step.machine
    monkeypatch.setattr(step, "machine", looked)
    monkeypatch.setattr(step, "peaks_of", stopped)
    monkeypatch.setattr(step, "load_model", stopped)
    with pytest.raises(InterruptedError):
        step.main()
    assert order == ["machine", "peaks"]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"factors": ("turn",)}, "turns, group"), ({"updates": 2}, "at least 3"), ({"rounds": 0}, "--rounds 1")],
)
def test_options_that_measure_nothing(step: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        step.main(**options)
