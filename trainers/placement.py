"""Where the layers of a model lie: all on one device, or dealt to a GPU, memory and disk by a device map.

A map is ``"auto"``, which fills the GPU, then memory, then the disk; another strategy of accelerate; or says itself
where each part goes: ``{"model.embed_tokens": 0, "model.layers.0": "cpu", "model.layers.1": "disk", …}``. What lies in
memory or on disk is fetched in each pass and computed on the GPU, which is slow, and lets a model run that would not
fit.

Source: accelerate's big-model inference, ``accelerate.big_modeling.dispatch_model``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from trajgym.errors import ConfigError, UnknownNameError

__all__ = ["STRATEGIES", "DeviceMap", "check_placed", "placing_arguments", "read_device_map", "require_one_place"]

DeviceMap: TypeAlias = str | Mapping[str, int | str]

STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")
_FILLED = 0.9  # of a GPU's free memory: the rest is for what passes compute and keep


def read_device_map(text: str | None) -> DeviceMap | None:
    """Read a map as the command line writes it: a strategy, or a JSON object.

    Raises:
        ConfigError: When it is neither.
    """
    if text is None or not text.lstrip().startswith("{"):
        return text
    try:
        found: DeviceMap = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--device-map is no JSON: {error}. Write a strategy, or an object.") from error
    return found


def require_one_place(device: str, device_map: DeviceMap | None) -> None:
    """Check that not both of two options say where a model goes.

    Raises:
        ConfigError: When both do.
    """
    if device_map is not None and device != "auto":
        raise ConfigError(f"device {device!r} and a device map both say where the model goes. Give one of them.")


def placing_arguments(device_map: DeviceMap, *, sampled: bool) -> dict[str, Any]:
    """Return the further arguments of ``from_pretrained`` for a model that is dealt to several devices.

    Args:
        device_map: A strategy, or where each part goes.
        sampled: Whether the model is to write with our own engine, whose cache knows one GPU alone: strategies then
            leave out the others.

    Raises:
        ConfigError: When there is no such strategy or device, or the engine could not follow the map.
    """
    if isinstance(device_map, str):
        if device_map not in STRATEGIES:
            raise UnknownNameError("device map", device_map, STRATEGIES, "Or give an object of parts and devices.")
        return {"device_map": device_map, **({"max_memory": _memory()} if sampled else {})}
    right = isinstance(device_map, Mapping) and all(isinstance(part, str) for part in device_map)
    if not right or not device_map:
        raise ConfigError(
            f'A device map must be one of {", ".join(STRATEGIES)}, or an object such as {{"": "cpu"}}, got '
            f"{device_map!r:.80}."
        )
    places = {_place(part, device) for part, device in device_map.items()}
    accelerators = sorted(places - {"cpu", "disk"})
    if sampled and len(accelerators) > 1:
        raise ConfigError(
            f"The device map deals layers to {', '.join(accelerators)}; the engine here keeps its cache on one device. "
            "Name one, beside cpu and disk; or serve the model with vLLM and play it as api:NAME@URL."
        )
    return {"device_map": dict(device_map)}


def check_placed(model: Any) -> None:
    """Check that a model which is to sample has its first weights at hand, since its inputs go where they lie.

    Raises:
        ConfigError: When they were left in memory or on disk, to be fetched in each pass.
    """
    name, first = next(iter(model.named_parameters()))
    if first.device.type == "meta":
        raise ConfigError(
            f"The device map leaves the first weights ({name}) in memory or on disk. Put that part where the model is "
            "computed: on the GPU, or on cpu where there is none."
        )


def _memory() -> dict[int | str, int]:
    """Return the memory in bytes that may be filled: of the first accelerator, and of the machine."""
    from accelerate.utils import get_max_memory

    found: dict[int | str, int] = get_max_memory()
    accelerator = next((device for device in found if device != "cpu"), None)
    first = {} if accelerator is None else {accelerator: int(_FILLED * found[accelerator])}
    return {**first, **({"cpu": found["cpu"]} if "cpu" in found else {})}


def _place(part: str, device: object) -> str:
    """Return the one name of a device, whatever it is called in the map."""
    if device == "disk":
        return "disk"
    try:
        if not isinstance(device, (int, str)) or isinstance(device, bool) or device == "meta":
            raise RuntimeError("It is no device that holds weights.")
        return str(torch.empty(1, device=device).device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"The device map puts {part or 'everything'!r} on {device!r}, which cannot be used here: "
            f"{str(error).splitlines()[0]} Allowed are 'cpu', 'disk', and the number or name of a GPU that there is."
        ) from error
