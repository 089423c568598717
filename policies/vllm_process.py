"""vLLM as a guest: what it changes in the process that it runs in, put back as it was."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["same_draws", "undisturbed"]

_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}  # where the user has not set them
_ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # while the engine is made


@contextmanager
def same_draws() -> Iterator[None]:
    """Leave torch's global generator as it was: the engine's own draws come from each turn's seed."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave this process as it was: vLLM seeds the global generators and forbids to change the number of threads."""
    before = {name: os.environ.get(name) for name in _ONE_PROCESS}
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ.update(_ONE_PROCESS)
    plain, numbers = random.getstate(), np.random.get_state()
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    try:
        with same_draws(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(numbers)
        torch.set_num_threads = set_threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old
