"""Reading replies: whatever bytes come, there is one reply, the need for more, or an error that says why."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trajgym.envs.sandbox.reply import HELLO, LENGTH, STATUSES, Reply, ReplyError, frame, max_frame, read_reply

ID = "0123456789abcdef"
LIMIT = max_frame(100)
BLANK: dict[str, Any] = {
    "id": ID,
    "status": "ok",
    "value": "",
    "tail": "",
    "dropped": 0,
    "type": "",
    "message": "",
    "traceback": "",
    "exit_code": 0,
}
TEXTS = ("value", "tail", "type", "message", "traceback")
NUMBERS = ("dropped", "exit_code")

texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
replies = st.fixed_dictionaries(
    {
        "id": st.just(ID),
        "status": st.sampled_from(STATUSES),
        **dict.fromkeys(TEXTS, texts),
        "dropped": st.integers(0, 2**62 - 1),
        "exit_code": st.integers(0, 255),
    }
).map(lambda reply: {**reply, "type": "", "message": "", "traceback": ""} if reply["status"] == "ok" else reply)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


def framed(body: str | bytes) -> bytes:
    """Return any body as a frame."""
    data = body if isinstance(body, bytes) else body.encode("ascii")
    return LENGTH.pack(len(data)) + data


def read(data: bytes) -> Reply | None:
    return read_reply(bytearray(data), ID, LIMIT)


def outcome(data: bytes) -> Reply | str | None:
    try:
        return read(data)
    except ReplyError as error:
        return str(error)


@given(replies)
def test_a_reply_is_read_as_it_was_sent(body: dict[str, Any]) -> None:
    reply = read(frame(body))
    assert reply is not None
    assert {"id": ID, **reply._asdict()} == body


@given(replies, st.randoms(use_true_random=False))
def test_a_reply_in_pieces_is_there_with_its_last_byte(body: dict[str, Any], source: random.Random) -> None:
    data = frame(body)
    came = bytearray()
    while len(came) < len(data):
        assert read_reply(came, ID, LIMIT) is None
        came += data[len(came) : len(came) + source.randint(1, len(data))]
    assert read_reply(came, ID, LIMIT) == read(data) is not None


@given(replies, st.binary(min_size=1, max_size=50))
def test_nothing_may_follow(body: dict[str, Any], more: bytes) -> None:
    with pytest.raises(ReplyError, match=rf"{len(more)} bytes after the frame"):
        read(frame(body) + more)


def test_two_replies_are_one_too_many() -> None:
    with pytest.raises(ReplyError, match="bytes after the frame"):
        read(frame(BLANK) * 2)


@given(st.binary(max_size=300))
@example(HELLO)
def test_any_bytes(data: bytes) -> None:
    found = outcome(data)
    # A reply names the request, which random bytes do not.
    assert found is None or isinstance(found, str)
    assert (
        found is not None
        or len(data) < LENGTH.size
        or len(data) < LENGTH.size + LENGTH.unpack_from(data)[0] <= LIMIT + 4
    )


@given(st.binary(max_size=300))
def test_any_bytes_in_a_frame(body: bytes) -> None:
    assert isinstance(outcome(framed(body)), str)


@given(json_values)
def test_any_json_in_a_frame(value: Any) -> None:
    assert isinstance(outcome(framed(json.dumps(value))), str)


@given(replies, st.data())
def test_a_frame_with_some_bytes_changed(body: dict[str, Any], data: st.DataObject) -> None:
    sent = bytearray(frame(body))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(sent) - 1))
        change = data.draw(st.sampled_from(("set", "drop", "double")))
        if change == "set":
            sent[place] = data.draw(st.integers(0, 255))
        elif change == "drop":
            del sent[place]
        else:
            sent.insert(place, sent[place])
        if not sent:
            return
    found = outcome(bytes(sent))
    if isinstance(found, Reply):
        assert found.status in STATUSES
        assert all(type(getattr(found, name)) is str for name in TEXTS)
        assert all(type(getattr(found, name)) is int for name in NUMBERS)
        assert json.loads(sent[LENGTH.size :])["id"] == ID


@given(st.sampled_from(sorted(BLANK)), json_values)
def test_each_field_has_exactly_its_type(name: str, value: Any) -> None:
    found = outcome(framed(json.dumps({**BLANK, name: value})))
    if isinstance(found, Reply):
        assert type(value) is type(BLANK[name])
        assert name not in ("id", "status") or value in (ID, *STATUSES)
    else:
        assert isinstance(found, str)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value", [True, False, 0.0, 1e0, None, "0", [], {}, math.nan, math.inf, 2**62, -(2**62), 10**4000]
)
def test_numbers_are_whole_and_bounded(name: str, value: Any) -> None:
    assert isinstance(outcome(framed(json.dumps({**BLANK, name: value}))), str)


@pytest.mark.parametrize("name", ["id", "status", *TEXTS])
@pytest.mark.parametrize("value", [None, True, 0, 1.5, ["x"], {"x": "y"}])
def test_texts_are_texts(name: str, value: Any) -> None:
    assert isinstance(outcome(framed(json.dumps({**BLANK, name: value}))), str)


@pytest.mark.parametrize("name", sorted(BLANK))
def test_fields_are_all_there_once_and_no_others(name: str) -> None:
    text = json.dumps(BLANK)
    one = f"{json.dumps(name)}: {json.dumps(BLANK[name])}"
    assert one in text
    less = {key: value for key, value in BLANK.items() if key != name}
    assert outcome(framed(json.dumps(less))) == "not the fields of a reply"
    assert outcome(framed(json.dumps({**less, name.upper(): BLANK[name]}))) == "not the fields of a reply"
    assert outcome(framed(json.dumps({**BLANK, name + " ": BLANK[name]}))) == "not the fields of a reply"
    assert str(outcome(framed(text.replace(one, f"{one}, {one}")))).startswith("not JSON")


@pytest.mark.parametrize("other", ["", ID[:-1], ID + "0", ID.upper(), ID + "\0", " " + ID])
def test_the_id_is_the_one_asked_for(other: str) -> None:
    assert outcome(frame({**BLANK, "id": other})) == "the id of another request"


@pytest.mark.parametrize("status", ["", "Ok", "OK", "ok ", "error\n", "unknown"])
def test_a_status_is_one_of_five(status: str) -> None:
    assert outcome(frame({**BLANK, "status": status})) == "a field out of range"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        json.dumps([BLANK]).encode(),
        json.dumps(json.dumps(BLANK)).encode(),
        json.dumps(BLANK).encode() + b"x",
        json.dumps(BLANK).encode() * 2,
        b"\xef\xbb\xbf" + json.dumps(BLANK).encode(),
        json.dumps(BLANK).encode("utf-16"),
        json.dumps({**BLANK, "value": "é"}, ensure_ascii=False).encode(),
        json.dumps({**BLANK, "value": "é"}, ensure_ascii=False).encode("latin-1"),
        json.dumps(BLANK).replace('"ok"', "'ok'").encode(),
        json.dumps(BLANK).replace('""', '"\n"', 1).encode(),
        json.dumps(BLANK).replace('""', r'"\x41"', 1).encode(),
        json.dumps(BLANK).replace("}", ",}").encode(),
        json.dumps(BLANK).replace(": 0", ": 00").encode(),
        json.dumps(BLANK).replace(": 0", ": -").encode(),
        json.dumps(BLANK).replace(": 0", ": NaN").encode(),
        json.dumps(BLANK).replace(": 0", ": " + "9" * 5_000).encode(),
        b"[" * 5_000,
        b'{"a":' * 5_000,
        json.dumps(BLANK).encode()[:-1] + b', "x": ' + b"[" * 10_000,
    ],
)
def test_what_is_not_quite_json_or_not_quite_a_reply(body: bytes) -> None:
    assert len(body) < LIMIT
    assert isinstance(outcome(framed(body)), str)


@pytest.mark.parametrize("length", [LIMIT + 1, 2**31, 2**32 - 1])
def test_a_long_frame_is_refused_before_it_comes(length: int) -> None:
    assert outcome(LENGTH.pack(length)) == f"a frame of {length} bytes, allowed are {LIMIT}"


def test_the_longest_reply_fits() -> None:
    shown, error = "\U0001f4a9" * 50, "\ud800\udc00" * 2_000
    body = {
        **BLANK,
        "status": "error",
        "value": shown,
        "tail": shown,
        "type": error,
        "message": error,
        "traceback": error,
    }
    assert len(frame(body)) <= LIMIT
    assert isinstance(read(frame(body)), Reply)


def test_reading_leaves_the_bytes_alone() -> None:
    data = bytearray(frame(BLANK))
    read_reply(data, ID, LIMIT)
    assert data == frame(BLANK)
