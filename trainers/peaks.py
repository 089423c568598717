"""What this machine can do at most: floating-point operations and bytes per second, measured once and remembered."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trajgym.trainers.hardware import cpu_name

__all__ = ["Peaks", "cache_folder", "fingerprint", "kept_peaks", "measure_peaks", "peaks_of"]

_SECONDS = 0.3  # for each of the two measurements, once the sizes are found
_LONG_ENOUGH = 0.02  # seconds of one multiplication or copy
_SMALLEST, _LARGEST = 256, 8192  # rows of a matrix
_COPY = {"cpu": 1 << 28, "cuda": 1 << 30}  # bytes, far beyond any cache
_BUSY = 0.5  # load average per core from which on others take a share of what is measured


@dataclass(frozen=True)
class Peaks:
    """The most that was reached on a device.

    Args:
        flops: Floating-point operations per second, in a product of square matrices.
        bandwidth: Bytes per second, read and written, in a copy.
        device: What was measured, for people.
        dtype: Number format of the product.
        quiet: Whether nothing else kept the machine busy, as far as its load tells.
    """

    flops: float
    bandwidth: float
    device: str
    dtype: str
    quiet: bool = True


def cache_folder(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """Return where this user's measurements are kept.

    ``$XDG_CACHE_HOME/trajgym`` where that is set; else the system's own place.

    Args:
        environ: The environment's variables; those of this process by default.
        platform: ``sys.platform`` of the system.
    """
    environ = os.environ if environ is None else environ
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base) / "trajgym"
    if platform == "win32" and (base := environ.get("LOCALAPPDATA")):
        return Path(base) / "trajgym" / "Cache"
    home = Path(environ.get("HOME") or Path.home())
    return home / ("Library/Caches" if platform == "darwin" else ".cache") / "trajgym"


def fingerprint(part: str, dtype: str) -> str:
    """Return what a measurement depends on, as a text.

    Args:
        part: What is measured: a GPU's name, or a processor's with its number of threads.
        dtype: Number format.
    """
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "none"
    return f"{part}; {dtype}; torch {torch}"


def kept_peaks(folder: Path | None = None) -> list[Peaks]:
    """Return all measurements that are kept and can be read, in no particular order.

    Args:
        folder: Where measurements are kept; :func:`cache_folder` by default.
    """
    where = cache_folder() if folder is None else folder
    return [peaks for path in sorted(where.glob("peaks-*.json")) if (peaks := _read(path)) is not None]


def peaks_of(device: str = "cpu", dtype: str = "float32", *, folder: Path | None = None, again: bool = False) -> Peaks:
    """Return the peaks of a device, measured in about a second where no earlier measurement is kept.

    What was measured beside other work is too low, and flatters every share of it: it is measured again once the
    machine is quiet, and the better of both is kept. A damaged file counts as none, and a cache that cannot be written
    costs the measurement each time, nothing else.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, …
        dtype: Number format of the weights.
        folder: Where measurements are kept; :func:`cache_folder` by default.
        again: Measure in any case, and on a quiet machine forget what was measured before.
    """
    path = _file(fingerprint(_part(device), dtype), folder)
    kept = _read(path)
    if kept is not None and not again and (kept.quiet or not _quiet()):
        return kept
    peaks = measure_peaks(device, dtype)
    if kept is not None and not (again and peaks.quiet):
        flops, bandwidth = max(peaks.flops, kept.flops), max(peaks.bandwidth, kept.bandwidth)
        peaks = replace(peaks, flops=flops, bandwidth=bandwidth, quiet=peaks.quiet or kept.quiet)
    _store(path, peaks)
    return peaks


def measure_peaks(device: str = "cpu", dtype: str = "float32") -> Peaks:
    """Measure a device: the best of several matrix products, and of several copies.

    Args:
        device: ``"cpu"``, ``"cuda"``, …
        dtype: Number format of the product.
    """
    import torch

    place, kind = torch.device(device), getattr(torch, dtype)

    def timed(action: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            began = time.perf_counter()
            action()
            if place.type == "cuda":
                torch.cuda.synchronize(place)
            return time.perf_counter() - began

        run()  # the first one prepares threads, kernels and pages
        return run

    def product(size: int) -> Callable[[], float]:
        a = torch.full((size, size), 0.5, device=place, dtype=kind)
        out = torch.empty_like(a)
        return timed(lambda: torch.mm(a, a, out=out))

    quiet = _quiet()
    with torch.no_grad():
        size = _SMALLEST
        while size < _LARGEST and product(size)() < _LONG_ENOUGH:
            size *= 2
        flops = 2.0 * size**3 / _best(product(size))
        source = torch.zeros(_COPY.get(place.type, _COPY["cpu"]), device=place, dtype=torch.uint8)
        target = torch.empty_like(source)
        bandwidth = 2.0 * source.nbytes / _best(timed(lambda: target.copy_(source)))
    return Peaks(flops, bandwidth, _part(device), dtype, quiet)


def _quiet() -> bool:
    try:
        return os.getloadavg()[0] < _BUSY * (os.cpu_count() or 1)
    except (AttributeError, OSError):  # a system that does not count
        return True


def _part(device: str) -> str:
    import torch

    place = torch.device(device)
    if place.type == "cuda":
        return torch.cuda.get_device_name(place)
    return f"{cpu_name()}, {torch.get_num_threads()} threads"


def _best(run: Callable[[], float]) -> float:
    best, began = run(), time.perf_counter()
    while time.perf_counter() - began < _SECONDS:
        best = min(best, run())
    return best


def _file(mark: str, folder: Path | None) -> Path:
    name = hashlib.blake2b(mark.encode(), digest_size=8).hexdigest()
    return (cache_folder() if folder is None else folder) / f"peaks-{name}.json"


def _read(path: Path) -> Peaks | None:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        flops, bandwidth = float(stored["flops"]), float(stored["bandwidth"])
        peaks = Peaks(flops, bandwidth, str(stored["device"]), str(stored["dtype"]), stored["quiet"] is True)
        sound = all(math.isfinite(number) and number > 0 for number in (flops, bandwidth))
        own = path.name == _file(fingerprint(peaks.device, peaks.dtype), path.parent).name
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return peaks if sound and own else None


def _store(path: Path, peaks: Peaks) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written elsewhere and renamed: a reader beside us never sees half of it.
        handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(peaks), file, indent=1)
            os.replace(partial, path)
        except OSError:
            os.unlink(partial)
            raise
