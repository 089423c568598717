from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.protocols import strict_json
from trajgym.protocols.strict_json import MAX_DIGITS, read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NOISE = st.lists(st.sampled_from([*'{}[]:,"\\/ \n\tn0123456789.eE+-ab', "true", "null", "NaN", "é"])).map("".join)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_reads_what_json_writes(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    found = read_json(f"  {text} tail", 1)
    assert (found.value, found.end, found.error) == (value, len(text) + 2, None)


@given(VALUES.filter(lambda value: isinstance(value, (dict, list, str))), st.data())
def test_every_beginning_of_a_value_is_cut_and_not_wrong(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    found = read_json(text[: data.draw(st.integers(0, len(text) - 1))])
    assert found.error is not None
    assert found.error.kind == "truncated_call"
    assert not found.complete


@given(
    st.text(st.sampled_from([*'{}[]:,"\\/ \n0129.eE+-tuD8é', "\ud83d", "\ude00", "\x01"]))
    | VALUES.map(json.dumps)
    | st.integers(60, 70).map(lambda depth: "[" * depth + "]" * depth)
    | st.integers(MAX_DIGITS - 2, MAX_DIGITS + 2).map(lambda digits: "-" + "7" * digits),
    st.text(max_size=3),
)
def test_python_own_reader_changes_nothing(value: str, tail: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        quick = read_json(value + tail)
        patch.setattr(strict_json, "_QUICK", -1)
        assert repr(read_json(value + tail)) == repr(quick)  # 1 is not 1.0


def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


def finite(word: str) -> float:
    if math.isinf(float(word)) or word == "NaN":
        raise ValueError(word)
    return float(word)


@given(NOISE)
def test_accepts_exactly_what_json_accepts_and_the_rules_allow(text: str) -> None:
    decoder = json.JSONDecoder(object_pairs_hook=without_twins, parse_constant=finite, parse_float=finite)
    found = read_json(text)
    try:
        expected = decoder.raw_decode(text, len(text) - len(text.lstrip(" \n\t")))
    except ValueError:
        assert found.error is not None
    else:
        assert (found.value, found.end, found.error) == (*expected, None)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "truncated_call"),
        ("-", "truncated_call"),
        ("[1.", "truncated_call"),
        ("[1e+", "truncated_call"),
        ("[-Infin", "truncated_call"),
        ('"\\', "truncated_call"),
        ('"\\u12', "truncated_call"),
        ('"\\u12g', "malformed_json"),
        ('"a\tb"', "malformed_json"),
        ("[1,]", "malformed_json"),
        ("[.5]", "malformed_json"),
        ("[+1]", "malformed_json"),
        ("[1.]", "malformed_json"),
        ("[0x10]", "malformed_json"),
        ("[\u0661]", "malformed_json"),
        ("{1: 2}", "malformed_json"),
        ("None", "malformed_json"),
        ('{"a": NaN, }', "malformed_json"),
        ('{"a": 1, "a": NaN}', "duplicate_key"),
        ("[1e999]", "non_finite_number"),
        ("[" * 65, "too_deep"),
    ],
)
def test_kinds(text: str, kind: str) -> None:
    found = read_json(text)
    assert found.error is not None
    assert found.error.kind == kind
