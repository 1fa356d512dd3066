"""Options of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from galileo.errors import ConfigError

SECRET_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What a worker may reach.

    Attributes:
        secrets: directory of the files that sinks name as their secrets; None for none.
        allow: hosts, and networks such as "10.0.0.0/8", that sinks may reach although their
            addresses are not public.
    """

    secrets: Path | None = None
    allow: tuple[str, ...] = ()

    def secret(self, name: str) -> str:
        """The text of a secret's file, without space around it.

        Raises:
            ConfigError: there is no such file, or it is empty or too large.
        """
        if self.secrets is None:
            raise ConfigError(
                f"expected a directory with the secret {name!r}; start the worker with one",
                expected="secrets",
            )
        try:
            with (self.secrets / name).open("rb") as file:
                data = file.read(SECRET_BYTES_MAX + 1)
            text = data.decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"expected the secret {name!r} as a text file in {self.secrets}: {error}",
                expected="secrets",
            ) from error
        if not text or len(data) > SECRET_BYTES_MAX:
            raise ConfigError(
                f"expected a secret of 1 to {SECRET_BYTES_MAX} bytes in the file {name!r} of "
                f"{self.secrets}, got {len(data)}",
                expected="secrets",
            )
        return text
