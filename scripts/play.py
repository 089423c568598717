"""Play an environment in the terminal: you are the policy."""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium

from trajgym.envs.base import ToolEnv
from trajgym.envs.make import make
from trajgym.envs.transcript import transcript
from trajgym.errors import ConfigError
from trajgym.policies.scripted import HumanPolicy
from trajgym.scripts.arguments import env_kwargs
from trajgym.types import Message, Step, ToolCall

__all__ = ["main"]

_CALCULATOR = "  =48+24      calls the calculator\n"
_HELP = """\
Type a turn and press Enter; a backslash at the end goes on with the next line.
{calculator}  #### 72     answers
  :expert     shows what the demonstration does here   :quit  leaves
Anything else is sent as it is; a turn without a call is your answer.
"""


def main(args: Sequence[str]) -> int:
    """Let a person play episodes until they stop."""
    parser = argparse.ArgumentParser(prog="trajgym play", description=__doc__)
    parser.add_argument("env", help="environment id, see `trajgym envs`")
    parser.add_argument("--seed", type=_seed, default=None, help="seed of the first episode")
    parser.add_argument("--env-kwargs", type=env_kwargs, default={}, metavar="JSON", help="arguments of gym.make")
    options = parser.parse_args(args)
    env = make(options.env, **options.env_kwargs)
    inner: Any = env.unwrapped
    if not isinstance(inner, ToolEnv):
        raise ConfigError(f"{options.env} is no dialogue: its class {type(inner).__name__} is not a trajgym ToolEnv.")
    print(_HELP.format(calculator=_CALCULATOR if "calculator" in inner.tools else ""))
    try:
        seed = options.seed
        while _episode(env, inner, seed):
            seed = None
            if input("\nAnother one? [Y/n] ").strip().lower() not in ("", "y", "yes"):
                break
            print()
    except EOFError:
        print()
    finally:
        env.close()
    return 0


def _episode(env: gymnasium.Env[str, str], inner: ToolEnv, seed: int | None) -> bool:
    """Play one episode; return False when the person wants to leave."""
    human = HumanPolicy()
    _, info = env.reset(seed=seed)
    _show(info["messages"])
    total, over = 0.0, False
    while not over:
        text = human.act(info["messages"], info["task"])
        word = text.strip()
        if word == ":quit":
            return False
        if word == ":expert":
            print(_expert(inner, info))
        elif re.fullmatch(r":\w+", word):
            print(f"There is no {word} here, only :expert and :quit.")
        elif word:  # pressing Enter alone is no turn
            before = len(info["messages"])
            _, reward, terminated, truncated, info = env.step(_calculation(inner, text))
            _show(info["messages"][before:], [info["step"]])
            total, over = total + float(reward), terminated or truncated
    print(f"\nTotal reward {total:g}. The answer is {info['task'].answer}.")
    return True


def _show(messages: Iterable[Message], steps: Sequence[Step] = ()) -> None:
    print(transcript(messages, steps, width=shutil.get_terminal_size().columns), flush=True)


def _expert(env: ToolEnv, info: dict[str, Any]) -> str:
    moves = env.expert(info["task"])
    if not moves:
        return "This task has no demonstration."
    turn = sum(m.role == "assistant" for m in info["messages"])
    # Where nothing can be called, the demonstration's calls would be taken for answers; its last turn is one.
    return moves[min(turn, len(moves) - 1) if env.tools else -1]


def _calculation(env: ToolEnv, text: str) -> str:
    """Write ``=48+24`` out as a call, so that nobody has to type JSON."""
    expression = text.strip()
    if expression.startswith("=") and "calculator" in env.tools:
        with contextlib.suppress(ConfigError):  # the protocol has no words for this one
            return env.protocol.render(ToolCall("calculator", {"expression": expression[1:].strip()}))
    return text


def _seed(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of 0 or more, got {text!r}")
    return int(text)
