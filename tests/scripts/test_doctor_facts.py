"""What the doctor finds out, without a network and on made-up machines."""

from __future__ import annotations

import importlib.metadata
import threading
import time
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from trajgym.scripts import doctor_facts
from trajgym.trainers.peaks import Peaks


def test_this_machine() -> None:
    facts = doctor_facts.machine_facts()
    assert all(facts.values())
    assert facts["processor"].endswith(" cores")


def test_versions_with_something_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "torch":
            raise importlib.metadata.PackageNotFoundError(package)
        return "1.2"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = doctor_facts.versions()
    assert (found["torch"], found["numpy"]) == ("–", "1.2")
    assert found["Python"].startswith("3.")


def test_extras_come_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package in ("peft", "wandb"):
            raise importlib.metadata.PackageNotFoundError(package)
        return "1.2"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(
        importlib.metadata,
        "requires",
        lambda name: ["numpy>=1", 'peft>=0.18; extra == "train"', "torch; extra == 'train'"],
    )
    found = doctor_facts.extras()
    assert found["train"] == "without peft: pip install 'trajgym[train]'"
    assert found["wandb"] == "not installed (monitor): pip install wandb"
    assert found["trl"] == "1.2"


def test_data_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "train.jsonl").write_text("{}\n" * 7473)
    (tmp_path / "gsm8k" / "test.jsonl").write_text("{}\n\n{}\n")
    assert doctor_facts.data({"TRAJGYM_DATA": str(tmp_path)}) == {
        "TRAJGYM_DATA": str(tmp_path),
        "GSM8K train": "7,473 rows",
        "GSM8K test": "2 rows; the whole set has 1,319",
    }


def test_data_that_are_not(tmp_path: Path) -> None:
    assert "not set" in doctor_facts.data({})["TRAJGYM_DATA"]
    found = doctor_facts.data({"TRAJGYM_DATA": str(tmp_path / "gone")})
    assert found["TRAJGYM_DATA"].endswith("is not a folder")
    assert found["GSM8K test"].startswith("no: test.jsonl: ")


def said(environ: dict[str, str], head: Any = None) -> str:
    return doctor_facts.hub(environ, head)["Hugging Face hub"]


def test_the_hub_answers() -> None:
    asked: list[str] = []

    def head(address: str, seconds: float) -> int:
        asked.append(address)
        return 200

    assert "https://huggingface.co answers in " in said({}, head)
    assert "http://mirror answers in" in said({"HF_ENDPOINT": "http://mirror"}, head)
    assert asked == ["https://huggingface.co", "http://mirror"]


def test_the_hub_is_not_asked_where_it_must_not_be() -> None:
    def head(address: str, seconds: float) -> int:
        raise AssertionError("nobody may ask")

    for value in ("1", "true", "Yes", "ON"):
        assert said({"HF_HUB_OFFLINE": value}, head).startswith("not asked")
    assert "is no address" in said({"HF_ENDPOINT": "file:///etc/passwd"}, head)


def test_the_hub_cannot_be_reached() -> None:
    def head(address: str, seconds: float) -> int:
        raise urllib.error.URLError("no route to host")

    assert said({}, head) == "https://huggingface.co cannot be reached: no route to host"


def test_a_hub_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_facts, "_HUB_SECONDS", -0.95)  # a second more is given
    free = threading.Event()

    def head(address: str, seconds: float) -> int:
        free.wait()
        return 200

    began = time.monotonic()
    assert "does not answer within" in said({}, head)
    assert time.monotonic() - began < 30
    free.set()


def test_peaks_of_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [Peaks(5e10, 6e9, "Chip, 2 threads", "float32"), Peaks(6e10, 7e9, "Chip, 4 threads", "float32"),
            Peaks(1e12, 1e12, "Another, 8 threads", "float32")]  # fmt: skip
    monkeypatch.setattr(doctor_facts, "cpu_name", lambda: "Chip")
    monkeypatch.setattr(doctor_facts, "gpus", list)
    monkeypatch.setattr(doctor_facts, "kept_peaks", lambda: kept)
    found = doctor_facts.peaks()
    assert found["float32"] == "50 GFLOP/s, 6.0 GB/s (Chip, 2 threads)\n60 GFLOP/s, 7.0 GB/s (Chip, 4 threads)"
    monkeypatch.setattr(doctor_facts, "kept_peaks", list)
    assert "trajgym doctor --measure" in doctor_facts.peaks()["all devices"]


def test_peaks_are_measured_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_facts, "_measured", lambda: [Peaks(5e10, 6e9, "Chip", "float32")])
    assert doctor_facts.peaks(measure=True)["float32"] == "50 GFLOP/s, 6.0 GB/s (Chip)"
    monkeypatch.setattr(doctor_facts, "_version", lambda package: None)
    assert "pip install 'trajgym[train]'" in doctor_facts.peaks(measure=True)["all devices"]
