from __future__ import annotations

import pytest

from trajgym.envs.tools.docstring import Docstring

FULL = """Look up a row.

    Tables are small.

    Args:
        table: Its name, for
            example `prices`.
        row (int): The row
          number.

        exact: Whether: colons matter.

    Returns:
        The row as text.

    Examples:
        lookup(table="prices", row=3)

    Raises:
        KeyError: never shown.
    """


def test_a_full_docstring() -> None:
    read = Docstring.read(FULL)
    assert read.description == ('Look up a row.\n\nTables are small.\n\nExamples:\n    lookup(table="prices", row=3)')
    assert read.parameters == {
        "table": "Its name, for example `prices`.",
        "row": "The row number.",
        "exact": "Whether: colons matter.",
    }


@pytest.mark.parametrize("text", [None, "", "  \n "])
def test_nothing(text: str | None) -> None:
    assert Docstring.read(text) == Docstring()


def test_text_after_a_section_belongs_to_the_description() -> None:
    read = Docstring.read("One.\n\nArgs:\n    a: A.\n\nTwo.")
    assert (read.description, read.parameters) == ("One.\n\nTwo.", {"a": "A."})


def test_an_empty_section() -> None:
    assert Docstring.read("One.\n\nArgs:\n") == Docstring("One.")
