"""The classes of error on published completions, as docs/evaluation.md tells them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from trajgym.evaluation.faults import Fault, distribution

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
EVERY = 8


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("error_classes")
    sys.modules.pop("error_classes", None)


@pytest.fixture(scope="module")
def found(gsm8k_data: Path, benchmark: ModuleType) -> list[tuple[bool, bool, Fault | None]]:
    """For each completion whether it was graded as right, whether we call it right, and its class of error."""
    if not (gsm8k_data / "gsm8k" / "example_model_solutions.jsonl").is_file():
        pytest.skip("there are no published completions")
    return list(benchmark.classified(gsm8k_data / "gsm8k", EVERY))


def test_every_wrong_answer_has_a_class_and_no_right_one(found: list[tuple[bool, bool, Fault | None]]) -> None:
    assert len(found) == 4 * 165
    for graded, right, fault in found:
        assert right == graded
        assert (fault is None) == right, "all of them end in a marked answer"


def test_the_shares_are_those_of_the_page(found: list[tuple[bool, bool, Fault | None]]) -> None:
    shares = {kind: share for kind, (_, share) in distribution(f.kind for _, _, f in found if f).items()}
    told = {"reasoning": 0.600, "comprehension": 0.329, "calculation": 0.045, "format": 0.001, "unclassified": 0.025}
    assert shares == pytest.approx(told, abs=0.05)


def test_hardly_any_published_demonstration_calculates_wrongly(gsm8k_data: Path, benchmark: ModuleType) -> None:
    """An equation that is called wrong in one would be a mistake of ours, or one of the few in the prose."""
    wrong, tasks = benchmark.wrong_solutions(gsm8k_data / "gsm8k", "test", every=4)
    assert wrong / tasks < 0.01
