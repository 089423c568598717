"""A model small enough to run whole commands in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of the embedded kind, one narrow layer of it."""
    from trajgym.policies.tiny import build_model, build_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["system\nuser\nassistant\ntool\n calculator <tool_call> 48 + 24"] * 9, 320)
    build_model(tokenizer, width=32, layers=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def short_run(model_folder: Path, tmp_path: Path) -> list[str]:
    """Options of a run of two updates."""
    options = {
        "model": model_folder, "updates": 2, "groups-per-update": 2, "num-generations": 2, "slots": 4,
        "max-turn-tokens": 4, "output-dir": tmp_path / "runs",
    }  # fmt: skip
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]
