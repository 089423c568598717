from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.protocols import PROTOCOLS, React, SingleCall, Stream, get_protocol
from trajgym.types import ToolCall, ToolSpec

CODE = ToolCall("python", {"code": "x = 1\nprint(x)"})
SUM = ToolCall("calculator", {"expression": "48/2"})
PIECES = ["<tool_call>", "</tool_call>", "<think>", "</think>", "[", "(", "`", "\n", "Action:", "<<1=", "```python\n"]
NOISE = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)


def written(name: str) -> str:
    protocol = get_protocol(name)
    only = protocol.only_tool if isinstance(protocol, SingleCall) else None
    return protocol.render(CODE if only == "python" else SUM)


def fed(name: str, tools: Mapping[str, ToolSpec], pieces: list[str]) -> Stream:
    stream = Stream(get_protocol(name), tools)
    for piece in pieces:
        stream.feed(piece)
    return stream


@pytest.mark.parametrize("name", list(PROTOCOLS))
@given(before=NOISE, after=NOISE, data=st.data())
def test_how_a_turn_is_cut_makes_no_difference(
    name: str, tools: Mapping[str, ToolSpec], before: str, after: str, data: st.DataObject
) -> None:
    text = f"{before}{written(name)}{after}"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    stream = fed(name, tools, pieces)
    assert stream.text == text
    assert stream.parsed == get_protocol(name).parse(text, tools) == fed(name, tools, list(text)).parsed


@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_a_turn_may_end_where_its_one_call_is_complete(name: str, tools: Mapping[str, ToolSpec]) -> None:
    protocol = get_protocol(name)
    text = f"Half of it.\n{written(name)}"
    stream = Stream(protocol, tools)
    for letter in f"{text}\nObservation: 24":
        stream.feed(letter)
        if stream.finished:
            break
    assert stream.finished is isinstance(protocol, SingleCall)
    if stream.finished:
        assert stream.text.rstrip() == text
        assert stream.parsed.calls == protocol.parse(text, tools).calls != ()


def test_once_finished_it_stays_so(tools: Mapping[str, ToolSpec]) -> None:
    stream = fed("gsm8k_annotation", tools, ["<<48/2", "=", "24>>"])
    assert stream.finished
    assert stream.parsed.calls == ()  # whoever goes on has to see what that makes of the call
    assert not fed("gsm8k_annotation", tools, ["<<48/2=24>>"]).finished


def test_nothing_is_complete_within_reasoning(tools: Mapping[str, ToolSpec]) -> None:
    assert not fed("gsm8k_annotation", tools, ["<think>", "<<48/2="]).finished
    stream = Stream(get_protocol("gsm8k_annotation"), tools, in_reasoning=True)
    for piece in ("I could write <<48/2=", " here.\n</thi", "nk>", "Half: <<48/2"):
        stream.feed(piece)
        assert not stream.finished
    stream.feed("=")
    assert stream.finished
    assert [call.name for call in stream.parsed.calls] == ["calculator"]


def test_an_empty_turn(tools: Mapping[str, ToolSpec]) -> None:
    stream = fed("hermes", tools, [])
    assert (stream.text, stream.finished, stream.parsed.calls, stream.parsed.text) == ("", False, (), "")


class Counted(React):
    """Counts what it reads in order to tell whether a turn is finished."""

    def __init__(self) -> None:
        self.read = 0

    def finished(self, text: str) -> bool:
        self.read += len(text)
        return super().finished(text)


@pytest.mark.parametrize("before", ["", "```\n", "<think>x</think>", "Action: python\nAction Input: "])
@pytest.mark.parametrize("piece", ["}", "`", "<think></think>", "a: b> ", "Action:"])
def test_many_pieces_are_read_a_few_times_and_not_each_time(
    tools: Mapping[str, ToolSpec], before: str, piece: str
) -> None:
    protocol = Counted()
    stream = Stream(protocol, tools)
    for part in [before, *[piece] * 30_000]:
        stream.feed(part)
        if stream.finished:
            break
    assert protocol.read <= 200_000 + 8 * len(stream.text)


def test_a_call_behind_a_long_turn_is_noticed_at_once(tools: Mapping[str, ToolSpec]) -> None:
    for reasons in ("<think>", ""):
        stream = Stream(get_protocol("gsm8k_annotation"), tools, in_reasoning=not reasons)
        for part in [reasons, *["So 1+1 = <<1+1=", "2>>2.\n"] * 3000, "</think>", "\nIt is <<1+1"]:
            stream.feed(part)
            assert not stream.finished
        stream.feed("=")
        assert stream.finished


def test_tags_are_seen_however_they_are_cut(tools: Mapping[str, ToolSpec]) -> None:
    for size in range(1, 12):
        text = "I say <<1=`</think>` and <<1= or <<1=</THINK> is <<1="
        stream = Stream(get_protocol("gsm8k_annotation"), tools, in_reasoning=True)
        for start in range(0, len(text), size):
            stream.feed(text[start : start + size])
            assert stream.finished is (start + size >= len(text))
