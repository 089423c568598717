"""Episodes that were played before, so that an evaluation which was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trajgym.errors import ConfigError, DataError, StorageError
from trajgym.rollout import Episode
from trajgym.types import Trajectory, from_json, to_json

__all__ = ["Played", "Store", "folder_fingerprint"]


class Played(NamedTuple):
    """An episode, how long the policy took for it, in seconds, and the tokens that it read and wrote.

    The tokens are those that an endpoint counts; ``None`` where it does not, or where the trajectory holds them.
    """

    trajectory: Trajectory
    seconds: float
    tokens: tuple[int, int] | None = None


class Store:
    """A JSON-lines file of played episodes, one a line, that is only ever appended to.

    An episode is found again only where all that decides it is the same: the identity below, the task with its wording
    and answer, and both seeds. A line that a kill has cut short is dropped; anything else that cannot be read is an
    error. Episodes that failed by our machinery's doing are not kept, and so are tried again.

    Args:
        path: The file; made when the first episode is added.
        identity: What decides an episode besides its task and seeds, as JSON values: the model's fingerprint, the
            environment with its arguments, the way of sampling.

    Raises:
        ConfigError: When the identity is empty or no JSON.
        DataError: When the file holds something else.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        if not identity:
            raise ConfigError("A store needs an identity, such as {'model': fingerprint, 'env': id}; it got none.")
        try:
            self._identity = json.dumps(identity, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"The identity of a store must be JSON values: {error}.") from error
        self.path = path
        self._lines = self._read()

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, episode: Episode) -> Played | None:
        """Return what came of an episode, ``None`` when it was not played under this identity.

        Raises:
            DataError: When its line holds no trajectory.
        """
        row = self._lines.get(self._key(episode))
        if row is None:
            return None
        try:
            tokens = None if row["tokens"] is None else (int(row["tokens"][0]), int(row["tokens"][1]))
            return Played(from_json(Trajectory, row["trajectory"]), float(row["seconds"]), tokens)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._broken(f"{type(error).__name__}: {error}") from error

    def add(self, episodes: Sequence[Episode], played: Sequence[Played]) -> None:
        """Append what came of episodes; the lines are on the disk when this returns.

        Raises:
            StorageError: When the file cannot be written.
        """
        new: dict[str, Any] = {}
        for episode, (trajectory, seconds, tokens) in zip(episodes, played, strict=True):
            if trajectory.valid:
                row = {"seconds": seconds, "tokens": tokens, "trajectory": to_json(trajectory)}
                new[self._key(episode)] = row
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8", newline="\n") as file:
                for key, row in new.items():
                    file.write(json.dumps({"key": key, **row}, ensure_ascii=True, default=str) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written: {error}. Free some space, or set another --out."
            ) from error
        self._lines.update(new)

    def _key(self, episode: Episode) -> str:
        task = json.dumps(to_json(episode.task), sort_keys=True, default=str)
        parts = "\x1f".join((self._identity, task, str(episode.seed), str(episode.policy_seed)))
        return hashlib.blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def _read(self) -> dict[str, Any]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error}.") from error
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._cut(whole)
        found = {}
        for number, line in enumerate(content[:whole].split(b"\n")[:-1], start=1):
            try:
                row = json.loads(line)
                kept = {"seconds": row["seconds"], "tokens": row.get("tokens"), "trajectory": row["trajectory"]}
                found[str(row["key"])] = kept
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._broken(f"line {number}: {type(error).__name__}: {error}") from error
        return found

    def _cut(self, size: int) -> None:
        """Drop a line that was not written to its end, or the next one would be glued to it."""
        try:
            os.truncate(self.path, size)
        except OSError as error:
            raise StorageError(f"{self.path} ends in half a line, which cannot be cut off: {error}.") from error

    def _broken(self, why: str) -> DataError:
        return DataError(
            f"{self.path} does not hold played episodes ({why}). Delete it to play them again, or set another --out."
        )


def folder_fingerprint(folder: Path) -> str:
    """Return a hash of the names and contents of the files right in a folder, such as a model's.

    Raises:
        DataError: When it cannot be read, or holds no file.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        for path in files:
            digest.update(f"{path.name}\x1f{path.stat().st_size}\x1f".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error}.") from error
    if not files:
        raise DataError(f"{folder} holds no file, so there is nothing to tell it by.")
    return digest.hexdigest()
