"""The benchmark of the estimators, and the page that shows its numbers."""

from __future__ import annotations

import doctest
import hashlib
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from trajgym.trainers.advantages import ESTIMATORS, scale
from trajgym.trainers.batch import normalizer_value
from trajgym.types import Task, TokenStream, Trajectory

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "credit.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def credit() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("credit")
    for name in ("credit", "enumeration"):
        sys.modules.pop(name, None)


def generated(what: str) -> str:
    """What stands between the markers of the page."""
    (found,) = re.findall(rf"<!-- {what}: python benchmarks/credit\.py -->\n(.*?)<!-- end -->", PAGE, flags=re.DOTALL)
    return found.strip()


def test_the_page_shows_what_the_command_prints(credit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert credit.main([]) == 0
    first, second = capsys.readouterr().out.strip().split("\n\n")
    with Image.open(ROOT / "docs" / "credit.png") as picture:
        assert picture.info["Description"] == hashlib.sha256(second.encode()).hexdigest()
    assert generated("stop or go") == first
    assert generated("table") == second


def test_the_tables_and_the_figure(credit: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "credit.png"
    assert credit.main(["--processes", "1", "--gammas", "1", "--sizes", "2", "--figure", str(picture)]) == 0
    rows = {line.split("|")[1].strip(): line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")}
    assert {f"`{name}`" for name in ESTIMATORS} <= set(rows)
    assert rows["`return_to_go`"].split("|")[2:4] == [" 0 ", " 0 "]
    assert rows["`trajectory`, baseline `mean`"].split("|")[2] == " 50 % "
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_nothing_to_compare_is_refused(credit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--processes", "0"], ["--sizes", "1"]):
        with pytest.raises(SystemExit):
            credit.main(wrong)
    assert "two trajectories in a group" in capsys.readouterr().err


def test_the_examples_of_the_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ESTIMATORS, "_items", dict(ESTIMATORS._items))
    text = re.sub(r"^```.*$", "", PAGE, flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, "credit.md", "credit.md", 0)
    result = doctest.DocTestRunner().run(examples)
    assert result.attempted > 10
    assert result.failed == 0


def test_the_table_of_the_page_knows_every_estimator() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE))
    assert {name for name in ESTIMATORS if not name.startswith("test_")} <= named
    for name, entry in ESTIMATORS.items():
        (row,) = re.findall(rf"^\| `{name}` \|.*\| (.*?) \|$", PAGE.split("### Measured")[0], flags=re.MULTILINE)[-1:]
        assert row.startswith("yes" if entry.unbiased else "at λ = 1" if entry.exact_at else "no")


def test_the_page_says_how_far_a_spread_of_the_group_bends_the_gradient(credit: ModuleType) -> None:
    trajectories = credit.paths(credit.STOP_OR_GO, 1.0)

    def scaled(rewards: Any, **_: Any) -> Any:
        return scale([ESTIMATORS["return_to_go"](rewards, gamma=1.0)], "group_std", groups_rewards=[rewards])[0]

    ratio = credit.moments(trajectories, 4, scaled).mean / credit.true_gradient(trajectories, 1.0)
    (said,) = re.findall(r"`group_std` with groups of four makes the ratios\s+([\d.]+), ([\d.]+), ([\d.]+)\.", PAGE)
    assert [f"{r:.2f}" for r in ratio] == list(said)


def test_the_page_says_how_far_a_normalizer_that_counts_bends_the_gradient(credit: ModuleType) -> None:
    trajectories = credit.paths(credit.STOP_OR_GO, 1.0)

    def ratios(kind: str) -> list[float]:
        def divided(rewards: Any, **_: Any) -> Any:
            n = len(rewards)
            rows = [TokenStream((1,) * k, (1,) * k, tuple(range(k)), (0.0,) * k) for k in map(len, rewards)]
            played = [Trajectory(Task("1", "", ""), (), (), rows=(row,)) for row in rows]  # one token a turn
            z, weights = normalizer_value(kind, played, constant=1)
            advantages = ESTIMATORS["return_to_go"](rewards, gamma=1.0)
            return [[a * weight * n / z for a in row] for row, weight in zip(advantages, weights, strict=True)]

        found = credit.moments(trajectories, 4, divided).mean / credit.true_gradient(trajectories, 1.0)
        return [float(r) for r in found]

    assert ratios("constant") == pytest.approx([1.0] * 3)
    said = re.search(r"the same ratios are\s+([\d., ]+); by each .* GRPO's\) ([\d., ]+)\.\n", PAGE)
    assert said is not None
    assert [", ".join(f"{r:.2f}" for r in ratios(kind)) for kind in ("token", "sequence")] == list(said.groups())
