"""Peaks: measured once, kept, and measured again whenever what is kept is of no use."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from trajgym.trainers import peaks
from trajgym.trainers.peaks import Peaks, cache_folder, fingerprint, kept_peaks, measure_peaks, peaks_of


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Peaks]:
    """What was measured so far, by a stand-in that takes no time."""
    done: list[Peaks] = []

    def stand_in(device: str = "cpu", dtype: str = "float32") -> Peaks:
        done.append(Peaks(1e9 + len(done), 2e9, peaks._part(device), dtype))
        return done[-1]

    monkeypatch.setattr(peaks, "measure_peaks", stand_in)
    return done


def test_a_measurement_is_kept(tmp_path: Path, measured: list[Peaks]) -> None:
    folder = tmp_path / "not" / "there yet"
    first = peaks_of(folder=folder)
    assert peaks_of(folder=folder) == first == measured[0]
    assert len(measured) == 1
    assert kept_peaks(folder) == [first]
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_number_formats_and_machines_are_told_apart(
    tmp_path: Path, measured: list[Peaks], monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks_of(folder=tmp_path)
    peaks_of(dtype="bfloat16", folder=tmp_path)
    monkeypatch.setattr(peaks, "cpu_name", lambda: "another processor")
    peaks_of(folder=tmp_path)
    assert len(measured) == 3
    assert sorted(p.flops for p in kept_peaks(tmp_path)) == [1e9, 1e9 + 1, 1e9 + 2]


def test_it_is_measured_again_when_asked(tmp_path: Path, measured: list[Peaks]) -> None:
    peaks_of(folder=tmp_path)
    assert peaks_of(folder=tmp_path, again=True).flops == 1e9 + 1
    assert peaks_of(folder=tmp_path).flops == 1e9 + 1


def test_what_was_measured_beside_other_work_gives_way_to_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = False
    found = iter([(3e9, 2e9), (2e9, 4e9), (9e9, 9e9)])

    def stand_in(device: str = "cpu", dtype: str = "float32") -> Peaks:
        return Peaks(*next(found), peaks._part(device), dtype, quiet)

    monkeypatch.setattr(peaks, "measure_peaks", stand_in)
    monkeypatch.setattr(peaks, "_quiet", lambda: quiet)
    seen = [peaks_of(folder=tmp_path) for _ in range(2)]  # the second finds the machine as busy, and leaves it at that
    quiet = True
    seen += [peaks_of(folder=tmp_path) for _ in range(2)]
    assert [(p.flops, p.bandwidth) for p in seen] == [(3e9, 2e9), (3e9, 2e9), (3e9, 4e9), (3e9, 4e9)]
    assert [p.quiet for p in seen] == [False, False, True, True]
    assert next(found) == (9e9, 9e9)


def test_asked_again_beside_other_work_the_better_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([(3e9, 2e9, True), (1e9, 4e9, False), (2e9, 1e9, True)])

    def stand_in(device: str = "cpu", dtype: str = "float32") -> Peaks:
        flops, bandwidth, quiet = next(found)
        return Peaks(flops, bandwidth, peaks._part(device), dtype, quiet)

    monkeypatch.setattr(peaks, "measure_peaks", stand_in)
    seen = [peaks_of(folder=tmp_path, again=True) for _ in range(3)]
    assert [(p.flops, p.bandwidth, p.quiet) for p in seen] == [(3e9, 2e9, True), (3e9, 4e9, True), (2e9, 1e9, True)]


def test_a_busy_machine_is_known_by_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for load, quiet in ((1.9, True), (2.1, False)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert peaks._quiet() is quiet


def altered(text: str, **values: object) -> str:
    return json.dumps(json.loads(text) | values)


@pytest.mark.parametrize(
    "damage", ["", "{", "[1]", "null", "\x00", "flops", "nan", "huge", "negative", "copied", "half", "deep"]
)
def test_a_damaged_file_is_measured_anew(damage: str, tmp_path: Path, measured: list[Peaks]) -> None:
    peaks_of(folder=tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_text()
    path.write_text(
        {
            "flops": altered(good, flops="many"),
            "nan": altered(good, flops=math.nan),
            "huge": altered(good, flops=10**400),
            "half": altered(good, device="\ud800"),
            "negative": altered(good, bandwidth=-1.0),
            "copied": altered(good, device="a machine that this file was copied from"),
            "deep": "[" * 100_000,
        }.get(damage, damage)
    )
    assert peaks_of(folder=tmp_path) == measured[1]
    assert peaks_of(folder=tmp_path) == measured[1]


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path: Path, measured: list[Peaks]) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    assert peaks_of(folder=blocked / "cache") == measured[0]
    assert peaks_of(folder=blocked / "cache") == measured[1]
    assert kept_peaks(blocked / "cache") == []


def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, measured: list[Peaks], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert peaks_of(folder=tmp_path) == measured[0]
    assert list(tmp_path.iterdir()) == []


def test_where_measurements_are_kept() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "linux") == Path("/x/trajgym")
    assert cache_folder({"HOME": "/h"}, "linux") == Path("/h/.cache/trajgym")
    assert cache_folder({"HOME": "/h"}, "darwin") == Path("/h/Library/Caches/trajgym")
    assert cache_folder({"LOCALAPPDATA": "/l", "HOME": "/h"}, "win32") == Path("/l/trajgym/Cache")
    assert cache_folder({}, "linux").parts[-2:] == (".cache", "trajgym")


def test_the_fingerprint_names_what_matters() -> None:
    mark = fingerprint("GPU X", "bfloat16")
    assert mark.startswith("GPU X; bfloat16; torch 2")


@pytest.mark.slow
def test_this_machine() -> None:
    found = measure_peaks()
    assert 1e8 < found.flops < 1e15
    assert 1e8 < found.bandwidth < 1e13
    assert found.device.endswith("threads")
