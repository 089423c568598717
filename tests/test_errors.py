"""Errors: one tree to catch, and messages that help."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym import errors
from trajgym.errors import ConfigError, StorageError, TrajgymError, UnknownNameError, did_you_mean

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = re.findall(r"─ (\w+)(?: \((\w+)\))?", errors.__doc__ or "")
    assert {name for name, _ in drawn} == {c.__name__ for c in CLASSES} - {"TrajgymError"}
    for name, standard in drawn:
        bases = {base.__name__ for base in getattr(errors, name).__mro__}
        assert {"TrajgymError", standard or "Exception"} <= bases
    assert issubclass(UnknownNameError, ConfigError)


def test_everything_is_exported() -> None:
    assert set(errors.__all__) == {c.__name__ for c in CLASSES} | {"did_you_mean"}


def test_an_unknown_name_is_told_with_what_there_is() -> None:
    error = UnknownNameError("tool", "calculater", {"python": 1, "calculator": 2}, "Register it.")
    message = "Unknown tool 'calculater'. Did you mean 'calculator'? Known: 'calculator', 'python'. Register it."
    assert str(error) == message  # a KeyError by itself would show it in quotes
    assert isinstance(error, KeyError)
    assert isinstance(error, ValueError)
    assert str(UnknownNameError("tool", 3, [])) == "Unknown tool 3. Known: none."


@given(st.text(), st.text(), st.lists(st.text()), st.text())
def test_an_unknown_name_comes_back_from_another_process_as_it_was(
    kind: str, name: str, known: list[str], hint: str
) -> None:
    error = UnknownNameError(kind, name, known, hint)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is UnknownNameError
    assert str(again) == str(error)


@pytest.mark.parametrize("cls", [c for c in CLASSES if c is not UnknownNameError])
def test_every_other_error_does_too(cls: type[TrajgymError]) -> None:
    again = pickle.loads(pickle.dumps(cls("what was got")))
    assert (type(again), str(again)) == (cls, "what was got")


def test_a_full_disk_is_an_os_error() -> None:
    with pytest.raises(OSError, match="full"):
        raise StorageError("The disk is full.")


def test_far_off_names_get_no_suggestion() -> None:
    assert did_you_mean("zzz", ["hermes", "react"]) == ""
    assert did_you_mean("recat", ["hermes", "react"]) == " Did you mean 'react'?"
