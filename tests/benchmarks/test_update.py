"""The benchmark of the update: what it compares, and that the gradients it times are the same ones."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def update() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("update")
    for name in ("update", "machine", "rounds"):
        sys.modules.pop(name, None)


def test_a_group_shares_its_prompt_and_nothing_else(update: ModuleType) -> None:
    group = update.make_group(900, members=4, prompt=10, completion=6)
    rows = [t.rows[0] for t in group.trajectories]
    assert {row.ids[:10] for row in rows} == {rows[0].ids[:10]}
    assert len({row.ids[10:] for row in rows}) == 4
    assert all(row.mask == (0,) * 10 + (1,) * 6 for row in rows)
    assert update.make_group(900, 4, 10, 6) == group


@pytest.mark.parametrize(
    "arguments",
    [["--lengths", "64"], ["--lengths", "0/8"], ["--lengths", "8/1"], ["--rounds", "1"], ["--members", "1"]],
)
def test_arguments_that_mean_nothing(
    update: ModuleType, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        update.main(arguments)
    assert "must be" in (said := capsys.readouterr().err) or "needs a prompt" in said


@pytest.mark.filterwarnings("ignore")
def test_all_contenders_have_the_gradient_of_trl(update: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "update.json"
    arguments = ["--lengths", "12/6", "--members", "3", "--rounds", "2", "--warmup", "0", "--threads", "1"]
    assert update.main([*arguments, "--json", str(report)]) == 0
    (cell,) = json.loads(report.read_text())["cells"]
    assert all(off < 1e-5 for off in cell["off"].values())
    assert set(cell["seconds"]) == set(cell["peak"]) == {update.SHARED, update.PADDED, update.TRL}
    assert {len(seconds) for seconds in cell["rounds"].values()} == {2}
    assert 0 < cell["peak"][update.SHARED] < cell["peak"][update.PADDED]
