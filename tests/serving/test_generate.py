"""``/generate``: one prompt, one answer, and how sure the model was."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trajgym.types import Message

QUESTION = "Mia has 12 apples. She buys 5 more. How many apples does Mia have now?"


def ask(server: Any, **body: Any) -> Any:
    with server.http() as client:
        return client.post("/generate", json={"prompt": QUESTION, **body})


def test_the_answer_excludes_the_prompt(server: Any) -> None:
    found = ask(server, seed=1).json()
    assert QUESTION not in found["text"]
    assert found["finish"] in ("stop", "length")
    assert found["prompt_tokens"] == len(server.service.renderer.prompt([Message("user", QUESTION)]))


def test_confidence_is_the_mean_probability_of_the_tokens(server: Any, tiny: tuple[Any, Any]) -> None:
    """Worked out again from the model alone, whatever the sampling temperature."""
    renderer = server.service.renderer
    prompt = renderer.prompt([Message("user", QUESTION)])
    for temperature in (0.2, 2.0):
        found = ask(server, seed=3, temperature=temperature, max_new_tokens=12).json()
        ids = renderer.turn(found["text"]) + ([renderer.end_id] if found["finish"] == "stop" else [])
        if len(ids) != found["new_tokens"]:
            continue  # the text can be written in other tokens than the sampled ones
        with torch.inference_mode():
            logits = tiny[0](input_ids=torch.tensor([[*prompt, *ids]])).logits[0].float()
        chances = torch.softmax(logits, -1)[len(prompt) - 1 : -1]
        mean = sum(float(row[i]) for row, i in zip(chances, ids, strict=True)) / len(ids)
        assert found["confidence"] == pytest.approx(mean, abs=1e-4)
        assert 0 < found["confidence"] <= 1
        return
    pytest.fail("no answer could be worked out again")


def test_without_sampling_the_most_probable_answer_comes_each_time(server: Any) -> None:
    texts = {ask(server, do_sample=False, seed=seed).json()["text"] for seed in range(3)}
    assert len(texts) == 1
    assert ask(server, temperature=0).json()["text"] in texts


def test_a_seed_repeats_an_answer(server: Any) -> None:
    assert ask(server, seed=4, temperature=2).json() == ask(server, seed=4, temperature=2).json()
    assert len({ask(server, temperature=2).json()["text"] for _ in range(4)}) > 1


def test_defaults_are_the_documented_ones() -> None:
    from trajgym.serving.generate import DEFAULT_NEW_TOKENS
    from trajgym.serving.schemas import GenerateRequest

    request = GenerateRequest(prompt="x")
    assert (DEFAULT_NEW_TOKENS, request.temperature, request.do_sample) == (512, 0.7, True)


def test_a_system_message_and_a_stop_string_act(server: Any) -> None:
    plain = ask(server, do_sample=False).json()
    told = ask(server, do_sample=False, system="End with #### and the number.").json()
    assert told["prompt_tokens"] > plain["prompt_tokens"]
    stop = plain["text"][3:6]
    assert ask(server, do_sample=False, stop=stop).json()["text"] == plain["text"].split(stop)[0]


@pytest.mark.parametrize(
    "body",
    [
        {"max_new_tokens": -5}, {"max_new_tokens": "many"}, {"max_new_tokens": 10**7}, {"temperature": -0.1},
        {"temperature": math.inf}, {"top_p": 2}, {"prompt": ""}, {"prompt": 7}, {"prompt": "x " * 5000}, {"sead": 1},
    ],
)  # fmt: skip
def test_bad_requests_are_refused(server: Any, body: dict[str, Any]) -> None:
    import json

    with server.http() as client:
        text = json.dumps({"prompt": QUESTION, **body})
        reply = client.post("/generate", content=text, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["message"]
    assert server.settled()
