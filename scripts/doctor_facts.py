"""What the doctor finds out about the machine, the installation, the data and the hub. Nothing here imports torch."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from trajgym.envs.sandbox import landlock, machine
from trajgym.trainers.hardware import core_count, cpu_name, gpus, host_memory
from trajgym.trainers.peaks import Peaks, cache_folder, kept_peaks

__all__ = ["data", "extras", "hub", "machine_facts", "peaks", "versions"]

_PACKAGES = ("gymnasium", "numpy", "pydantic", "torch", "transformers", "tokenizers", "peft", "accelerate", "datasets")

_OPTIONAL = {
    "trl": "SFT, DPO and reward models, and the comparison with its GRPO",
    "vllm": "served sampling on GPUs",
    "bitsandbytes": "weights in 4 or 8 bits",
    "deepspeed": "sharded training",
    "wandb": "monitor",
    "trackio": "monitor",
}
"""Package → what it is for."""

_GSM8K_ROWS = {"train": 7473, "test": 1319}
_HUB = "https://huggingface.co"
_HUB_SECONDS = 2.0


def machine_facts() -> dict[str, str]:
    """Return what this machine is made of, and what its kernel allows."""
    this, memory = machine.this_machine(), host_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = gpus()
    return {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": f"{cpu_name()}, {core_count()} cores",
        "memory": "unknown" if memory is None else f"{_gib(memory.available)} of {_gib(memory.total)} free",
        "GPUs": "\n".join(f"{g.name}, {_gib(g.memory.available)} of {_gib(g.memory.total)} free" for g in found)
        or "none",
        "user": "root" if os.geteuid() == 0 else f"uid {os.geteuid()}",
        "system calls known": this.name if this else "no",
        "user namespaces": _allowed("/proc/sys/user/max_user_namespaces") or "no",
        "Landlock": f"version {landlock.abi()}" if this and landlock.abi() else "no",
        "open files": f"{soft:,} (hard limit {hard:,}), three per session",
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of what it is built on; ``"–"`` for what is missing."""
    return {"Python": platform.python_version()} | {p: _version(p) or "–" for p in ("trajgym", *_PACKAGES)}


def extras() -> dict[str, str]:
    """Return for each optional part its version, or what it is for and the command that installs it."""
    missing = [name for name in _required_by("train") if _version(name) is None]
    train = f"without {', '.join(missing)}: pip install 'trajgym[train]'" if missing else "installed"
    return {"train": train} | {
        name: _version(name) or f"not installed ({purpose}): pip install {name}" for name, purpose in _OPTIONAL.items()
    }


def peaks(measure: bool = False) -> dict[str, str]:
    """Return what was measured of this machine.

    Args:
        measure: Measure now, which needs torch and about a second for each number format.
    """
    if measure:
        if _version("torch") is None:
            return {"all devices": "torch is needed to measure: pip install 'trajgym[train]'"}
        found = _measured()
    else:
        here = (cpu_name(), *(gpu.name for gpu in gpus()))
        found = [kept for kept in kept_peaks() if kept.device.startswith(here)]
    if not found:
        return {"all devices": "not measured yet: trajgym doctor --measure, or the first training run"}
    lines: dict[str, list[str]] = {}
    for p in found:
        speed = f"{p.flops / 1e9:,.0f} GFLOP/s, {p.bandwidth / 1e9:,.1f} GB/s"
        lines.setdefault(p.dtype, []).append(f"{speed} ({p.device})")
    return {dtype: "\n".join(group) for dtype, group in lines.items()} | {"kept in": str(cache_folder())}


def data(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return which data are at hand.

    Args:
        environ: The environment's variables; those of this process by default.
    """
    folder = (os.environ if environ is None else environ).get("TRAJGYM_DATA")
    if not folder:
        return {"TRAJGYM_DATA": "not set: GSM8K comes from the hub; ArithmeticTool-v0 needs no data"}
    found = {"TRAJGYM_DATA": folder if Path(folder).expanduser().is_dir() else f"{folder} is not a folder"}
    for split, rows in _GSM8K_ROWS.items():
        path = Path(folder).expanduser() / "gsm8k" / f"{split}.jsonl"
        try:
            with path.open("rb") as file:
                count = sum(bool(line.strip()) for line in file)
        except OSError as error:
            found[f"GSM8K {split}"] = f"no: {path.name}: {error.strerror}; taken from the hub"
        else:
            found[f"GSM8K {split}"] = f"{count:,} rows" + ("" if count == rows else f"; the whole set has {rows:,}")
    return found


def hub(environ: Mapping[str, str] | None = None, head: Callable[[str, float], int] | None = None) -> dict[str, str]:
    """Return whether the Hugging Face hub can be reached; never waits longer than three seconds.

    Args:
        environ: The environment's variables; those of this process by default.
        head: Asks an address for its headers within some seconds and returns the status.
    """
    environ = os.environ if environ is None else environ
    if environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return {"Hugging Face hub": "not asked: HF_HUB_OFFLINE is set; only what was downloaded before is used"}
    address = environ.get("HF_ENDPOINT") or _HUB
    if not address.startswith(("https://", "http://")):
        return {"Hugging Face hub": f"HF_ENDPOINT={address!r} is no address"}
    said: list[str] = []

    def ask() -> None:
        began = time.perf_counter()
        try:
            status = (head or _head)(address, _HUB_SECONDS)
            said.append(f"{address} answers in {1e3 * (time.perf_counter() - began):.0f} ms (status {status})")
        except Exception as error:  # of any kind: the network may be anything
            said.append(f"{address} cannot be reached: {getattr(error, 'reason', None) or error}")

    # The look-up of a name has no time limit of its own; what hangs in it is left behind.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_HUB_SECONDS + 1.0)
    return {"Hugging Face hub": said[0] if said else f"{address} does not answer within {_HUB_SECONDS:.0f} s"}


def _head(address: str, seconds: float) -> int:
    request = urllib.request.Request(address, method="HEAD")  # noqa: S310 (checked by the caller)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:  # an answer all the same
        return error.code


def _measured() -> list[Peaks]:
    import torch

    from trajgym.trainers.peaks import peaks_of

    wanted = [("cpu", "float32")]
    for i in range(torch.cuda.device_count()):
        wanted += [(f"cuda:{i}", "float32"), (f"cuda:{i}", "bfloat16")]
    return [peaks_of(device, dtype, again=True) for device, dtype in wanted]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _required_by(extra: str) -> list[str]:
    try:
        lines = importlib.metadata.requires("trajgym") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return []
    names = (re.match(r"[\w.-]+", line) for line in lines if re.search(rf"extra == ['\"]{extra}['\"]", line))
    return [name.group() for name in names if name]


def _allowed(path: str) -> str:
    try:
        return f"{int(Path(path).read_text(encoding='ascii')):,} allowed"
    except (OSError, ValueError):
        return ""


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
