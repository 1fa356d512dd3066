"""Read positions: in a file, or of `galileo ccq watch` by name in the user's state directory."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from galileo.client import Client
from galileo.durable_files import replace_file
from galileo.errors import InputError, InvalidToken
from galileo.wire import token as resume

START, NOW = "start", "now"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class PositionFile:
    """A file with the token of a reader; it is replaced as a whole.

    Args:
        path: of the file, which need not exist.
        reader: whose tokens it holds: the id of a continuous query, or the reader of a channel.
    """

    def __init__(self, path: Path, reader: str) -> None:
        self._path, self._reader = path, reader

    def token(self) -> str:
        """The token that was saved last; "" if there is no file.

        Raises:
            InputError: the file holds something else, or the token of another reader.
        """
        try:
            token = self._path.read_text(encoding="utf-8").strip()
            resume.read(token, ccq_id=self._reader)
        except FileNotFoundError:
            return ""
        except (UnicodeDecodeError, InvalidToken) as error:
            raise InputError(
                f"{self._path} holds no position of {self._reader}: {error}. Delete the file to "
                "begin at the first result",
                file=str(self._path),
                reader=self._reader,
            ) from error
        return token

    def save(self, token: str) -> None:
        """Replaces the token, durably."""
        replace_file(self._path, f"{token}\n".encode())


class WatchPosition:
    """Where a watch begins, and where it has got to.

    Args:
        ccq_id: of the continuous query.
        begin: "start", "now" or a name.
        environment: of the process if absent.

    Raises:
        InputError: it is no name.
    """

    def __init__(
        self, ccq_id: str, begin: str, *, environment: Mapping[str, str] | None = None
    ) -> None:
        if not _NAME.fullmatch(begin):
            raise InputError(
                "expected start, now or a name of letters, digits, '_', '.' and '-', "
                f"got {begin!r}",
                parameter="from",
            )
        variables = os.environ if environment is None else environment
        home = variables.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        self._ccq_id, self._begin = ccq_id, begin
        self._directory = Path(home) / "galileo" / "positions" / ccq_id
        self._file = PositionFile(self._directory / begin, ccq_id)

    def token(self, client: Client) -> str:
        """The token to begin with; empty for the first label. A new name begins there, too.

        Raises:
            InputError: the file of the name holds something else, or the token of another query.
        """
        if self._begin == START:
            return ""
        if self._begin == NOW:
            newest = client.fetch(self._ccq_id, labels_max=1)
            return resume.encode(self._ccq_id, newest.frontier)
        return self._file.token()

    def save(self, token: str) -> None:
        """Keeps the token of an update that was printed, under the name if there is one."""
        if self._begin in (START, NOW):
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file.save(token)
