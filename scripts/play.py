"""Play an environment in the terminal: you are the policy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import gymnasium

from trajgym.envs.make import make
from trajgym.policies.scripted import HumanPolicy

__all__ = ["main"]

_HELP = """\
Type a turn and press Enter; a backslash at the end of a line goes on with the next line.
  =48+24      calls the calculator, where the environment has one
  #### 72     answers
  :expert     shows what the demonstration does here   :quit  leaves
Anything else is sent as it is; calls in the environment's own written form work too.
"""


def main(args: Sequence[str]) -> int:
    """Let a person play episodes until they stop."""
    parser = argparse.ArgumentParser(prog="trajgym play", description=__doc__)
    parser.add_argument("env", help="environment id, see `trajgym envs`")
    parser.add_argument("--seed", type=int, default=None, help="seed of the first episode")
    parser.add_argument("--env-kwargs", type=_json_object, default={}, metavar="JSON", help="arguments of gym.make")
    options = parser.parse_args(args)
    env = make(options.env, render_mode="human", **options.env_kwargs)
    print(_HELP)
    try:
        seed = options.seed
        while _episode(env, seed):
            seed = None
            if input("\nAnother one? [Y/n] ").strip().lower().startswith("n"):
                break
    except EOFError:
        print()
    finally:
        env.close()
    return 0


def _episode(env: gymnasium.Env[str, str], seed: int | None) -> bool:
    """Play one episode; return False when the person wants to leave."""
    human = HumanPolicy()
    _, info = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        text = human.act(info["messages"], info["task"])
        if text.strip() == ":quit":
            return False
        if text.strip() == ":expert":
            turn = sum(m.role == "assistant" for m in info["messages"])
            moves = env.unwrapped.expert(info["task"])  # type: ignore[attr-defined]
            print(moves[min(turn, len(moves) - 1)] if moves else "This task has no demonstration.")
            continue
        _, reward, terminated, truncated, info = env.step(_calculation(env, text))
        total, over = total + float(reward), terminated or truncated
    print(f"\nTotal reward {total:g}. The answer is {info['task'].answer}.")
    return True


def _calculation(env: gymnasium.Env[str, str], text: str) -> str:
    """Write ``=48+24`` out as a call, so that nobody has to type JSON."""
    from trajgym.types import ToolCall

    inner: Any = env.unwrapped
    if text.startswith("=") and "calculator" in getattr(inner, "tools", {}):
        return str(inner.protocol.render(ToolCall("calculator", {"expression": text[1:].strip()})))
    return text


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('must be an object such as {"difficulty": 3}')
    return value
