from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trajgym.envs.tasks import ListTasks, as_source
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.types import Task


def _some(n: int) -> list[Task]:
    return [Task(f"set/{i}", f"{i} + {i}?", str(2 * i)) for i in range(n)]


def test_a_list_is_a_finite_source_in_its_own_order() -> None:
    tasks = _some(5)
    source = as_source(iter(tasks))
    assert len(source) == 5  # type: ignore[arg-type]
    assert list(source) == tasks  # type: ignore[call-overload]
    assert source.get("set/3") is tasks[3]


def test_a_source_is_left_alone() -> None:
    source = ListTasks(_some(2))
    assert as_source(source) is source


def test_draws_are_uniform_seeded_and_leave_the_global_generators_alone() -> None:
    source = ListTasks(_some(4))
    state = np.random.get_state()[1].tobytes()  # type: ignore[union-attr]
    rng = np.random.default_rng(3)
    drawn = [source.sample(rng).id for _ in range(4000)]
    again = np.random.default_rng(3)
    assert drawn == [source.sample(again).id for _ in range(4000)]
    assert all(900 < drawn.count(task.id) < 1100 for task in source)
    assert np.random.get_state()[1].tobytes() == state  # type: ignore[union-attr]


def test_an_unknown_id_names_the_closest_ones_but_not_thousands() -> None:
    source = ListTasks(_some(3000))
    with pytest.raises(UnknownNameError, match=r"Did you mean 'set/2999'\?") as caught:
        source.get("set/29999")
    assert len(str(caught.value)) < 400
    assert "3000" in str(caught.value)


@pytest.mark.parametrize("task_id", ["", "something else", 3, None, ["set/0"]])
def test_ids_of_any_kind_are_refused_by_name(task_id: Any) -> None:
    with pytest.raises(UnknownNameError, match="'set/0'"):
        ListTasks(_some(2)).get(task_id)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "no task"),
        ("", "no task"),
        ("abc", "Item 0 .* got str"),
        ([*_some(1), {"id": "x"}], "Item 1 .* got dict"),
        ([*_some(2), _some(1)[0]], "Items 0 and 2 .* 'set/0'"),
        (None, "got NoneType"),
        (7, "got int"),
        (_some(1)[0], "got Task"),
    ],
)
def test_bad_lists_are_refused_with_the_reason(tasks: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_source(tasks)
