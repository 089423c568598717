"""What an import costs: the packages an environment needs must come without the training stack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING_STACK = ("torch", "transformers", "datasets", "accelerate", "peft")

PROBE = """
import json, sys, time
start = time.perf_counter()
__import__(sys.argv[1])
print(json.dumps({"seconds": time.perf_counter() - start, "loaded": sorted({n.split(".")[0] for n in sys.modules})}))
"""


def _import_alone(module: str, folder: Path) -> tuple[float, set[str]]:
    """Import one module in a fresh interpreter; return the seconds it took and the top-level names it loaded."""
    command = [sys.executable, "-W", "error", "-c", PROBE, module]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer["seconds"], set(answer["loaded"])


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("trajgym", (*TRAINING_STACK, "sympy")),
        ("trajgym.envs", (*TRAINING_STACK, "sympy")),
        ("trajgym.rewards", TRAINING_STACK),
        ("trajgym.policies", TRAINING_STACK),
        ("trajgym.cli", TRAINING_STACK),
    ],
)
def test_imports_without_the_training_stack(tmp_path: Path, module: str, unwanted: tuple[str, ...]) -> None:
    seconds, loaded = _import_alone(module, tmp_path)
    # Told (pytest -rP), not judged: how long an import takes says as much about the machine as about the code.
    print(f"import {module}: {seconds:.2f} s")
    assert "trajgym" in loaded
    assert loaded.isdisjoint(unwanted), sorted(loaded & set(unwanted))


def test_the_probe_sees_what_is_loaded(tmp_path: Path) -> None:
    assert "sympy" in _import_alone("sympy", tmp_path)[1]
