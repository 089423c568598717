"""How many clients a server bears: 64 at once on loopback, beside a bare loop over ``model.generate``.

    python benchmarks/serving.py [--model tiny] [--clients 64] [--requests 4] [--tokens 48] [--slots 32]

Server and clients are processes of their own, and so is the loop. All get the same prompts and take the most probable
tokens, so they write the same answers. The second server has a queue of 8: what it cannot take it refuses at once with
429, and a client that comes back as it is told gets its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import numpy as np
from machine import machine

from trajgym.envs.make import make

SHORT_QUEUE = 8
_PATIENCE = 600.0  # seconds for one request: the machine may be slow, but nothing may be lost


@dataclass
class Outcome:
    """What came of a load.

    Args:
        seconds: Of each request that was answered, from its first attempt to its answer.
        tokens: Written in all.
        wall: Seconds from the first request to the last answer.
        statuses: How many replies there were of each status.
        lost: Requests without an answer.
        texts: The answer to each prompt.
    """

    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    wall: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    lost: int = 0
    texts: dict[str, str] = field(default_factory=dict)


def main(args: Sequence[str] | None = None) -> int:
    """Measure and print the table; 0: nothing was lost."""
    options = _parser().parse_args(args)
    if options.bare:
        print(json.dumps(bare_loop(options.model, prompts(options.bare), options.tokens)))
        return 0
    asked = prompts(options.clients * options.requests)
    with served(options, queue=max(options.clients, 64)) as address:
        asyncio.run(load(address, asked[:4], options, clients=4))  # the first passes allocate the cache
        full = asyncio.run(load(address, asked, options, clients=options.clients))
    with served(options, queue=SHORT_QUEUE) as address:
        short = asyncio.run(load(address, asked, options, clients=options.clients))
    command = [sys.executable, __file__, "--model", options.model, "--tokens", str(options.tokens)]
    done = subprocess.run([*command, "--bare", str(len(asked))], capture_output=True, text=True, check=True)
    bare = json.loads(done.stdout.splitlines()[-1])
    print(table(options, full, short, bare))
    return 0 if full.lost == short.lost == 0 else 1


def prompts(count: int) -> list[str]:
    """Return so many questions, all different."""
    env: Any = make("ArithmeticTool-v0", split="test").unwrapped
    questions: dict[str, None] = {}
    seed = 0
    while len(questions) < count:
        questions[env.reset(seed=seed)[1]["task"].question] = None
        seed += 1
    return list(questions)


def bare_loop(model_name: str, asked: Sequence[str], tokens: int) -> dict[str, float]:
    """Answer one prompt after the other with ``model.generate`` and nothing else."""
    from trajgym.trainers.models import load_model

    model, tokenizer = load_model(model_name)
    written = 0
    seconds = []
    for number, question in enumerate([asked[0], *asked]):
        dialogue = [{"role": "user", "content": question}]
        inputs = tokenizer.apply_chat_template(
            dialogue, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        began = time.perf_counter()
        out = model.generate(**inputs, do_sample=False, max_new_tokens=tokens, pad_token_id=tokenizer.pad_token_id)
        if number:  # the first one warms up
            seconds.append(time.perf_counter() - began)
            written += out.shape[1] - inputs["input_ids"].shape[1]
    return {"tokens": written, "wall": sum(seconds), "p50": float(np.median(seconds))}


@contextlib.contextmanager
def served(options: argparse.Namespace, *, queue: int) -> Iterator[str]:
    """Give the address of a server that is up for the length of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "trajgym.cli", "serve", options.model, "--host", "127.0.0.1", "--port", str(port)]
    limits = ["--slots", str(options.slots), "--queue", str(queue), "--request-seconds", str(_PATIENCE)]
    process = subprocess.Popen(
        [*command, *limits], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1200):
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(f"{address}/health").is_success:
                    break
            if process.poll() is not None:
                raise RuntimeError(f"The server ended with status {process.returncode}.")
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(60)


async def load(address: str, asked: Sequence[str], options: argparse.Namespace, *, clients: int) -> Outcome:
    """Let so many clients ask, each one question after the other."""
    outcome = Outcome()
    name = options.model.rstrip("/").rsplit("/", 1)[-1]
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=address, timeout=_PATIENCE, limits=limits) as http:

        async def ask(question: str) -> None:
            body = {"messages": [{"role": "user", "content": question}], "model": name, "temperature": 0}
            began = time.perf_counter()
            while True:
                try:
                    reply = await http.post("/v1/chat/completions", json={**body, "max_tokens": options.tokens})
                except httpx2.HTTPError:
                    outcome.lost += 1
                    return
                outcome.statuses[reply.status_code] += 1
                if reply.status_code != 429:
                    break
                await asyncio.sleep(float(reply.headers["retry-after"]))
            if reply.status_code != 200:
                outcome.lost += 1
                return
            outcome.seconds.append(time.perf_counter() - began)
            outcome.tokens += reply.json()["usage"]["completion_tokens"]
            outcome.texts[question] = reply.json()["choices"][0]["message"]["content"]

        async def client(number: int) -> None:
            for question in asked[number::clients]:
                await ask(question)

        began = time.perf_counter()
        await asyncio.gather(*(client(number) for number in range(clients)))
        outcome.wall = time.perf_counter() - began
    return outcome


def table(options: argparse.Namespace, full: Outcome, short: Outcome, bare: dict[str, float]) -> str:
    """Return the figures as Markdown."""
    facts = machine()
    busy = ", busy with other work" if facts.busy else ""
    base = bare["tokens"] / bare["wall"]
    rows = [("long", full), (f"{SHORT_QUEUE}", short)]
    lines = [
        f"{options.model}, {options.clients} clients × {options.requests} requests, at most {options.tokens} tokens "
        f"each, {options.slots} slots; {facts.cores} × {facts.processor}{busy}",
        "",
        "| | answered | lost | 429 | p50 s | p99 s | requests/s | tokens/s | × bare loop |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, outcome in rows:
        p50, p99 = np.quantile(outcome.seconds, [0.5, 0.99]) if outcome.seconds else (float("nan"), float("nan"))
        rate = outcome.tokens / outcome.wall
        lines.append(
            f"| server, queue {name} | {len(outcome.seconds)} | {outcome.lost} | {outcome.statuses[429]} | {p50:.2f} | "
            f"{p99:.2f} | {len(outcome.seconds) / outcome.wall:.1f} | {rate:.0f} | {rate / base:.2f} |"
        )
    count = options.clients * options.requests
    lines.append(
        f"| bare `model.generate` loop | {count} | 0 | – | {bare['p50']:.2f} | – | {count / bare['wall']:.1f} | "
        f"{base:.0f} | 1 |"
    )
    same = sum(full.texts.get(question) == text for question, text in short.texts.items())
    return "\n".join([*lines, "", f"Answers that are the same on both servers: {same} of {len(short.texts)}."])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="what to serve (tiny)")
    parser.add_argument("--clients", type=int, default=64, help="clients at the same time (64)")
    parser.add_argument("--requests", type=int, default=4, help="questions of each client (4)")
    parser.add_argument("--tokens", type=int, default=48, help="most tokens of an answer (48)")
    parser.add_argument("--slots", type=int, default=32, help="sequences written at the same time (32)")
    parser.add_argument("--bare", type=int, default=0, metavar="N", help="only run the loop over N prompts")
    return parser


if __name__ == "__main__":
    sys.exit(main())
