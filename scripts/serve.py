"""Serve a trained model to any client of OpenAI's interface: trajgym serve RUN_OR_MODEL."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from trajgym.errors import ConfigError
from trajgym.scripts.arguments import env_kwargs
from trajgym.serving.limits import Limits

__all__ = ["main"]

_PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


def main(args: Sequence[str]) -> int:
    """Load the model and serve until told to stop; 0: stopped in order."""
    options = _parser().parse_args(args)
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"Serving needs {', '.join(missing)}, not installed here: pip install 'trajgym[serve]'.")
    limits = Limits(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Limits)})
    key = _key(options.api_key_file)
    from trajgym.serving.server import serve
    from trajgym.serving.service import AgentPlan, open_service
    from trajgym.trainers.export import merge
    from trajgym.trainers.models import pick_device
    from trajgym.trainers.placement import read_device_map, require_one_place
    from trajgym.trainers.trained import find_source, open_source

    device_map = read_device_map(options.device_map)
    require_one_place(options.device, device_map)
    source = find_source(options.model, options.checkpoint)
    model, tokenizer = open_source(
        source,
        dtype=options.dtype,
        device=pick_device(options.device),
        quantization=options.quantization,
        device_map=device_map,
    )
    if source.adapter is not None and options.quantization == "none" and options.dtype == "float32":
        model, _ = merge(model)
    service = open_service(
        model,
        tokenizer,
        name=options.name or source.name,
        limits=limits,
        thinking=options.thinking,
        instructions=options.instructions or ("signature" if options.model == "tiny" else "schema"),
        api_key=key,
        agent=AgentPlan(options.env, options.env_kwargs) if options.env else None,
    )
    if key is None and options.host not in ("127.0.0.1", "localhost", "::1"):
        print(
            f"Anybody who reaches {options.host}:{options.port} may use this model. Set TRAJGYM_API_KEY to a key, or "
            "listen on --host 127.0.0.1 alone.",
            file=sys.stderr,
        )
    serve(service, host=options.host, port=options.port)
    return 0


def _key(file: Path | None) -> str | None:
    """Return the key from a file or from the environment; it is no argument, since those are seen by every user."""
    if file is None:
        return os.environ.get("TRAJGYM_API_KEY") or None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {file} cannot be read: {error}") from error
    if not key:
        raise ConfigError(f"--api-key-file {file} is empty.")
    return key


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trajgym serve", description=__doc__, epilog="docs/serving.md tells more.")
    add = parser.add_argument
    add("model", metavar="RUN_OR_MODEL", help="a run's folder, a model's, an adapter's, 'tiny', or a hub id")
    add("--checkpoint", metavar="NAME", help="which of the run's checkpoints (the newest)")
    add("--name", help="what clients call the model (the folder's name)")
    add("--host", default="0.0.0.0", help="address to listen on (0.0.0.0: every one)")  # noqa: S104 - a service is there to be reached
    add("--port", type=int, default=8000, help="port to listen on (8000)")
    add("--api-key-file", type=Path, metavar="FILE", help="holds the key that clients must send ($TRAJGYM_API_KEY)")
    add("--device", default="auto", help="where the model runs (auto)")
    add("--device-map", metavar="MAP", help="deals layers to GPU, memory and disk: auto, or a JSON object")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="precision of the weights (float32)")
    add("--quantization", choices=("none", "8bit", "4bit"), default="none", help="of the weights, by bitsandbytes")
    add("--thinking", action="store_true", help="let the chat template open a reasoning block, where it has one")
    add("--instructions", choices=("schema", "signature"), help="how tools are described to the model, as in training")
    add("--env", metavar="ENV", help="environment whose tool loop /agent runs, see `trajgym envs`")
    add("--env-kwargs", type=env_kwargs, default={}, metavar="JSON", help="arguments of gym.make")
    limits = parser.add_argument_group("limits")
    told = dict(re.findall(r"^ {8}(\w+): (.+?)[.;:](?:\s|$)", Limits.__doc__ or "", re.MULTILINE))
    for field in dataclasses.fields(Limits):
        kind = float if field.name.endswith("seconds") else int
        default = "the model's" if field.default is None else field.default
        flag = f"--{field.name.replace('_', '-')}"
        limits.add_argument(
            flag, type=kind, default=field.default, metavar="N", help=f"{told.get(field.name, '')} ({default})"
        )
    return parser
