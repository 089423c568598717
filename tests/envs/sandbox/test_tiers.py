"""Which isolation is tried, and what is said where none works."""

from __future__ import annotations

import errno

import pytest

from trajgym.envs.sandbox import landlock, machine
from trajgym.envs.sandbox.jail import LAYERS
from trajgym.envs.sandbox.tiers import LAYERS_OF, TIERS, UNSAFE_SWITCH, candidates, missing, remedy, unavailable
from trajgym.errors import ConfigError, EnvironmentFault, UnknownNameError


@pytest.mark.parametrize(
    ("isolation", "least", "tried"),
    [
        (None, "namespaces", ("namespaces",)),
        (None, "landlock", ("namespaces", "landlock")),
        ("namespaces", "namespaces", ("namespaces",)),
        ("namespaces", "landlock", ("namespaces",)),
        ("landlock", "landlock", ("landlock",)),
    ],
)
def test_the_strongest_is_tried_first_and_none_never_by_itself(
    isolation: str | None, least: str, tried: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(UNSAFE_SWITCH, "1")
    assert candidates(isolation, least, allow_unsafe=True) == tried


@pytest.mark.parametrize(
    ("allowed", "variable"), [(False, "1"), (True, None), (True, "0"), (True, "yes"), (False, None)]
)
@pytest.mark.parametrize(("isolation", "least"), [("none", None), ("none", "none"), (None, "none")])
def test_no_isolation_takes_two_switches(
    isolation: str | None, least: str | None, allowed: bool, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(UNSAFE_SWITCH, raising=False)
    if variable is not None:
        monkeypatch.setenv(UNSAFE_SWITCH, variable)
    with pytest.raises(ConfigError, match=f"allow_unsafe=True and set {UNSAFE_SWITCH}=1"):
        candidates(isolation, least, allow_unsafe=allowed)
    monkeypatch.setenv(UNSAFE_SWITCH, "1")
    assert candidates(isolation, least, allow_unsafe=True)[-1] == "none"


@pytest.mark.parametrize(
    ("isolation", "least", "message"),
    [
        ("landlok", "landlock", "Unknown isolation 'landlok'. Did you mean 'landlock'"),
        (None, "docker", "Unknown min_isolation 'docker'"),
    ],
)
def test_an_unknown_name_is_refused(isolation: str | None, least: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        candidates(isolation, least, allow_unsafe=False)


def test_weaker_than_the_least_is_refused() -> None:
    with pytest.raises(ConfigError, match="'landlock' is weaker than min_isolation='namespaces'"):
        candidates("landlock", "namespaces", allow_unsafe=False)


def test_a_weaker_tier_has_fewer_layers() -> None:
    assert list(LAYERS_OF) == list(TIERS)
    layers = [set(LAYERS_OF[tier]) for tier in TIERS]
    assert layers[0] == set(LAYERS)
    assert layers[0] > layers[1] > layers[2]


def test_what_is_missing_is_named_with_a_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    assert "CONFIG_SECURITY_LANDLOCK" in missing("landlock")
    assert missing("namespaces") == ""
    monkeypatch.setattr(machine, "this_machine", lambda: None)
    assert "WSL 2" in missing("namespaces")
    assert "x86-64" in missing("landlock")
    assert missing("none") == ""


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EINVAL, errno.ENOSYS])
def test_a_refused_namespace_has_a_remedy(code: int) -> None:
    assert "kernel.apparmor_restrict_unprivileged_userns=0" in remedy("namespaces", code)
    assert remedy("landlock", code) == ""


@pytest.mark.parametrize("code", [None, errno.EMFILE, errno.ENOMEM])
def test_other_failures_are_not_blamed_on_namespaces(code: int | None) -> None:
    assert remedy("namespaces", code) == ""


def test_the_error_lists_every_tier_with_its_reason() -> None:
    error = unavailable({"namespaces": "not allowed", "landlock": "too old"})
    assert isinstance(error, EnvironmentFault)
    for part in ("\n  namespaces: not allowed.", "\n  landlock: too old.", "trajgym doctor", "docs/security.md"):
        assert part in str(error)
