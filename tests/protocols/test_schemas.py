from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from trajgym.envs.tools import Tool
from trajgym.protocols.schemas import allowed_types, text_parameter

ROOT = {"$defs": {"Level": {"enum": ["low", 3, None]}, "Tree": {"$ref": "#/$defs/Tree"}}}
ALL = {"array", "boolean", "integer", "null", "number", "object", "string"}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"type": "array", "items": {"type": "string"}}, {"const": 0.5}]}, {"array", "number"}),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"$ref": "#/$defs/Level"}, {"string", "integer", "null"}),
        ({"$ref": "#/$defs/Tree"}, ALL),
        ({"$ref": "#/$defs/Missing"}, ALL),
        ({"description": "anything"}, ALL),
    ],
)
def test_allowed_types(schema: Mapping[str, Any], types: set[str]) -> None:
    assert allowed_types(schema, ROOT) == types


def test_the_only_text_parameter(tools: Mapping[str, Tool]) -> None:
    assert {name: text_parameter(tool) for name, tool in tools.items()} == {
        "calculator": "expression",
        "python": "code",
        "lookup": "table",
        "reset": None,
    }
