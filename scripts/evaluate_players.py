"""The models that `trajgym evaluate` can play with: weights, endpoints, and policies without a model."""

from __future__ import annotations

import argparse
import hashlib
import inspect
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajgym.envs.make import make
from trajgym.errors import ConfigError
from trajgym.evaluation.store import folder_fingerprint
from trajgym.policies import Policy, tiny_path
from trajgym.policies.catalogue import POLICIES

__all__ = ["API", "Player", "load"]

API = "api:"
"""In front of a model that an OpenAI-compatible endpoint serves: ``api:NAME`` or ``api:NAME@URL``."""

_LONGEST_EPISODE = 2048  # tokens, where neither the user nor the model says less


@dataclass(frozen=True)
class Player:
    """A model that is ready to play.

    Args:
        policy: Who acts.
        settings: What decides its turns; part of the key of remembered episodes.
    """

    policy: Policy
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """What tells it from others, as a part of a file's name."""
        key = str(self.settings.get("fingerprint", self.settings["model"]))[:40]
        return "".join(c if c.isalnum() or c in "-_" else "-" for c in key)


def load(model: str, options: argparse.Namespace, arguments: Mapping[str, Any]) -> Player:
    """Make a policy of what ``--model`` names.

    Args:
        model: ``"tiny"``, a folder (of a model, an adapter or a run), a hub id, one of
            :data:`trajgym.policies.catalogue.POLICIES`, or :data:`API` and a name.
        options: Of the command line.
        arguments: Of the environment.

    Raises:
        ConfigError: When there is no such model, or it cannot play under these options.
        CheckpointError: When a run's checkpoint or an adapter cannot be used.
    """
    if model in POLICIES:
        policy: object = POLICIES[model](make(options.env, **arguments).unwrapped)
        if not isinstance(policy, Policy):
            raise ConfigError(
                f"The policy {model!r} must make a trajgym.policies.Policy of an environment, got {policy!r:.200}."
            )
        return Player(policy, {"model": model, "code": _code_of(type(policy), POLICIES[model])})
    return _served(model, options) if model.startswith(API) else _weights(model, options)


def _served(model: str, options: argparse.Namespace) -> Player:
    # Names may hold an @ themselves, and so may addresses.
    found = re.fullmatch(r"(.+?)(?:@(https?://.*))?", model.removeprefix(API), re.DOTALL)
    name, url = (found[1], found[2] or "") if found else ("", "")
    if not name:
        raise ConfigError(f"--model {model!r} names no model. Write api:NAME@http://127.0.0.1:8000/v1, for example.")
    if not url and not os.environ.get("OPENAI_BASE_URL"):
        raise ConfigError(
            f"--model {model!r} has no address. Write api:NAME@http://127.0.0.1:8000/v1, or set OPENAI_BASE_URL."
        )
    from trajgym.policies.api import APIPolicy

    sampling = {
        "temperature": options.temperature,
        "max_turn_tokens": options.max_turn_tokens,
        "calls": options.api_calls,
        "tool_role": options.api_tool_role,
    }
    policy = APIPolicy(name, base_url=url or None, concurrency=options.slots, **sampling)
    return Player(policy, {"model": name, "url": url, **sampling})


def _weights(model: str, options: argparse.Namespace) -> Player:
    from trajgym.trainers.config import GRPOConfig
    from trajgym.trainers.models import make_policy, pick_device
    from trajgym.trainers.placement import read_device_map, require_one_place
    from trajgym.trainers.trained import find_source, open_source

    device_map = read_device_map(options.device_map)
    require_one_place(options.device, device_map)
    source = find_source(model)
    weights, tokenizer = open_source(
        source, dtype=options.dtype, device=pick_device(options.device), device_map=device_map
    )
    most = min(_LONGEST_EPISODE, getattr(weights.config, "max_position_embeddings", None) or _LONGEST_EPISODE)
    budget = {
        "max_turn_tokens": options.max_turn_tokens,
        "max_episode_tokens": options.max_episode_tokens or most,
        "thinking": options.thinking,
        "dtype": options.dtype,
    }
    config = GRPOConfig(updates=1, model=model, env=options.env, slots=options.slots, **budget)
    # A run trains the policy that samples and so needs a temperature; an evaluation may as well be greedy.
    config = config.model_copy(update={"temperature": options.temperature})
    fingerprint = _fingerprint(source.base, weights)
    if source.adapter is not None:
        fingerprint = f"{folder_fingerprint(source.adapter)}-{fingerprint}"
    settings = {"model": model, "fingerprint": fingerprint, "temperature": options.temperature}
    return Player(make_policy(weights, tokenizer, config), {**settings, **budget})


def _code_of(*parts: Any) -> str:
    """Return a hash of the files that a policy's class and its maker stand in: they decide its turns.

    Where the code of one cannot be found, or what was bound to it, no two hashes are the same.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        try:
            digest.update(Path(inspect.getfile(part)).read_bytes())
        except (OSError, TypeError):  # typed into an interpreter, a partial, an object that can be called
            digest.update(os.urandom(16))
    return digest.hexdigest()


def _fingerprint(model: str, weights: Any) -> str:
    """Return what tells a model from another of the same name: its files, or its commit on the hub."""
    folder = tiny_path() if model == "tiny" else Path(model).expanduser()
    if folder.is_dir():
        return folder_fingerprint(folder)
    return f"{model}@{getattr(weights.config, '_commit_hash', None) or 'unknown'}"
