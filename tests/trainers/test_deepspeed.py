"""DeepSpeed trains with the configurations that are generated for it what one process would have trained."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trajgym.policies import tiny_path
from trajgym.trainers.launch_files import deepspeed_config
from trajgym.trainers.scale import Plan

STEPS = 2

# accelerate leaves DeepSpeed out on a CPU, so it is called as accelerate would call it on a GPU.
RANK = """
import json, os, sys, deepspeed, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
rank = int(os.environ["RANK"])
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled, for minutes; gloo does as well
deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=json.loads(sys.argv[2]))
for step in range({steps}):
    ids = torch.arange(40).reshape(2, 20) + rank + step
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
parameters = dict(engine.module.named_parameters())
with deepspeed.zero.GatheredParameters(list(parameters.values())):
    if rank == 0:
        save_file({{name: value.detach().clone() for name, value in parameters.items()}}, sys.argv[3])
print("stage", int(engine.zero_optimization_stage()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_two_ranks_train_what_one_would(name: str, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    options = deepspeed_config(Plan(name, 2), mixed_precision="no")
    options |= {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
    # Its own AdamW must be compiled; SGD, unlike AdamW, tells a sum from a mean.
    options |= {"zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", RANK.format(steps=STEPS), str(tiny_path()), json.dumps(options)]
    processes = [
        subprocess.Popen(
            [*command, str(tmp_path / "two.safetensors")],
            env={**os.environ, **shared, "DS_ACCELERATOR": "cpu", "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "".join(texts)
    assert f"stage {name[-1]}" in texts[0]

    found = load_file(tmp_path / "two.safetensors")
    for key, value in _alone(options["gradient_clipping"]).items():
        torch.testing.assert_close(found[key], value, atol=1e-6, rtol=1e-5, msg=key)


def _alone(clip: float) -> dict[str, torch.Tensor]:
    """Return the weights after the same steps on both ranks' rows in one process."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(tiny_path()), dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        for rank in range(2):
            ids = torch.arange(40).reshape(2, 20) + rank + step
            (model(input_ids=ids, labels=ids).loss / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.named_parameters())
