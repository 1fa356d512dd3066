"""Retention: limits of the age and size of a dataset's files, and what nodes dropped for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from galileo.errors import InputError, reason_of
from galileo.model.schema import finite_json
from galileo.model.times import Duration, seconds

AGE_MIN_S = 1.0
BYTES_MIN = 1 << 20
"""The smallest size limit: a few commits."""


@dataclass(frozen=True, slots=True, init=False)
class Retention:
    """A dataset's retention policy; a limit of age, of size, or both.

    Attributes:
        age_s: files whose observations are all older, by their own times, are deleted. None: no
            limit.
        bytes: of the dataset's files on each node; above it, its oldest files are deleted. None: no
            limit.
        past_readers: whether commits may be deleted that a reader of a live continuous query has
            not fetched, or a named reader not processed. Its next answer then reports them.

    Example:
        >>> galileo.Retention("30d", bytes=50 << 30).age_s
        2592000.0
    """

    age_s: float | None
    bytes: int | None
    past_readers: bool

    def __init__(
        self,
        age: Duration | None = None,
        *,
        bytes: int | None = None,
        past_readers: bool = False,
    ) -> None:
        """Check the limits.

        Args:
            age: such as "30d"; a number means seconds.
            bytes: on each node.
            past_readers: see the class.

        Raises:
            InputError: there is no limit, or one is too small.
        """
        age_s = None if age is None else seconds(age)
        if age_s is None and bytes is None:
            raise InputError(
                "expected a retention with an age or a number of bytes, got neither",
                expected="age_or_bytes",
            )
        if age_s is not None and age_s < AGE_MIN_S:
            raise InputError(
                f"expected an age of at least {AGE_MIN_S:g} s, got {age_s:g} s",
                expected="age",
                bound=AGE_MIN_S,
            )
        if bytes is not None and (type(bytes) is not int or bytes < BYTES_MIN):
            raise InputError(
                f"expected at least {BYTES_MIN} bytes on each node, got {bytes!r}",
                expected="bytes",
                bound=BYTES_MIN,
            )
        object.__setattr__(self, "age_s", age_s)
        object.__setattr__(self, "bytes", bytes)
        object.__setattr__(self, "past_readers", bool(past_readers))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, which `from_dict` reads.

        Example:
            >>> galileo.Retention("1d").to_dict()
            {'age_s': 86400.0, 'bytes': None, 'past_readers': False}
        """
        return {"age_s": self.age_s, "bytes": self.bytes, "past_readers": self.past_readers}

    def to_json(self) -> str:
        """As JSON text, which `from_json` reads.

        Example:
            >>> galileo.Retention("1d").to_json()
            '{"age_s": 86400.0, "bytes": null, "past_readers": false}'
        """
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Retention:
        """The inverse of `to_json`.

        Raises:
            InputError: the text is another.

        Example:
            >>> galileo.Retention.from_json(galileo.Retention("1d").to_json()).age_s
            86400.0
        """
        try:
            raw = finite_json(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"expected a retention in JSON: {error}", expected="json") from error
        return Retention.from_dict(raw)

    @staticmethod
    def from_dict(raw: dict[str, Any]) -> Retention:
        """The inverse of `to_dict`.

        Example:
            >>> galileo.Retention.from_dict(galileo.Retention("1d").to_dict()).age_s
            86400.0
        """
        try:
            return Retention(raw["age_s"], bytes=raw["bytes"], past_readers=raw["past_readers"])
        except (KeyError, TypeError) as error:
            raise InputError(
                f"expected a retention as `Retention.to_dict` gives it: {reason_of(error)}",
                expected="retention",
            ) from error


@dataclass(frozen=True, slots=True)
class VersionedRetention:
    """A policy with the number of its change; the higher version replaces the lower.

    Attributes:
        version: 0 for a dataset that never had one, then counted where policies are set.
        retention: None: nothing is deleted.
    """

    version: int = 0
    retention: Retention | None = None

    def to_json(self) -> str:
        held = None if self.retention is None else self.retention.to_dict()
        return json.dumps({"version": self.version, "retention": held}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> VersionedRetention:
        """The inverse of `to_json`.

        Raises:
            InputError: the text is another.
        """
        try:
            raw = json.loads(text)
            version, held = raw["version"], raw["retention"]
            if type(version) is not int or version < 0:
                raise InputError(
                    f"expected a version of at least 0, got {version!r}", expected="version"
                )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"expected a numbered retention in JSON: {error!r}", expected="versioned_retention"
            ) from error
        return VersionedRetention(version, None if held is None else Retention.from_dict(held))


UNLIMITED = VersionedRetention()


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What a retention policy demands to drop and readers hold back.

    Attributes:
        bytes: of the files.
        readers: the continuous queries that have not been fetched so far, the named readers that
            have not processed so far, the channels that have not matched so far ("channel " and
            the name), or the brokers of a channel that have not acknowledged so far; none where
            these are not known for certain.
        since_us: the time of the newest observation or execution in the oldest file, microseconds
            since 1970.
    """

    partition: int
    bytes: int
    readers: tuple[str, ...]
    since_us: int


@dataclass(frozen=True, slots=True)
class RetentionOutcome:
    """What a node has dropped, what is held back, and what failed."""

    files: int = 0
    commits: int = 0
    bytes: int = 0
    held: tuple[HeldBack, ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    """What a node removed with a dropped dataset; sizes in bytes."""

    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Removed) -> Removed:
        return Removed(self.rows + other.rows, self.bytes + other.bytes)
