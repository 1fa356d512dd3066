"""The mapping of a file's variables to features and coordinates."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from galileo.errors import InputError
from galileo.formats.csv_options import CsvOptions
from galileo.formats.grid_options import GridOptions
from galileo.model.schema import COORDINATES

CONSTANT = "@"

Sources: TypeAlias = "Mapping | AbstractMapping[str, Any] | Iterable[str] | str"
"""A mapping, a dict such as `{"temperature": "2t"}`, or texts such as `temperature=2t`."""
Sentinels: TypeAlias = "float | str | AbstractMapping[str, Any] | Iterable[float | str]"
"""Values that mean a missing value, in all variables or by variable."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """How the variables of a file become the columns of a dataset.

    Args:
        features: pairs of a feature and its source: a variable's name, or an expression of names
            (`galileo.formats.expressions`), as in `hypot(u10, v10)`. Empty: by name, or all
            variables.
        latitude: its variable, or a number for all rows; None finds it by its usual names. In
            tables any expression of columns.
        longitude: likewise.
        time: likewise; several names separated by commas are year, month, day and so on;
            `epoch_s(x)` and `epoch_ms(x)` read numbers of seconds and milliseconds.
        constant_time: the time of all rows, for files without times.
        missing: pairs of a variable (empty for all) and a value that means a missing value.
        csv: how a CSV file is written.
        grid: which rows a file of grids, stations or profiles has.
    """

    features: tuple[tuple[str, str], ...] = ()
    latitude: str | None = None
    longitude: str | None = None
    time: str | None = None
    constant_time: str | None = None
    missing: tuple[tuple[str, str], ...] = ()
    csv: CsvOptions = field(default_factory=CsvOptions)
    grid: GridOptions = field(default_factory=GridOptions)

    @staticmethod
    def of(
        sources: Sources | None,
        missing: Sentinels | None = None,
        csv: CsvOptions | None = None,
        grid: GridOptions | None = None,
    ) -> Mapping:
        """A mapping from the arguments of a call.

        Raises:
            InputError: it has the wrong type or form.
        """
        if isinstance(sources, Mapping):
            mapping = sources
        elif isinstance(sources, AbstractMapping):
            mapping = Mapping.parse(
                f"{name}={_source_text(value)}" for name, value in sources.items()
            )
        elif isinstance(sources, str):
            mapping = Mapping.parse([sources])
        elif sources is None or isinstance(sources, Iterable):
            mapping = Mapping.parse(sources or ())
        else:
            raise InputError(f"expected a mapping such as {{'temperature': '2t'}}, got {sources!r}")
        missing_pairs = mapping.missing + tuple(_sentinels(missing))
        return replace(
            mapping, missing=missing_pairs, csv=csv or mapping.csv, grid=grid or mapping.grid
        )

    @property
    def is_empty(self) -> bool:
        return self == Mapping()

    def sentinels(self, name: str) -> tuple[str, ...]:
        """The values that mean a missing value in the variable of a full name."""
        return tuple(value for variable, value in self.missing if variable in ("", name))

    @staticmethod
    def parse(texts: Iterable[str]) -> Mapping:
        """A mapping from texts such as `temperature=2t` or `time=@2012-03-01T06:00Z`.

        The names `latitude`, `longitude` and `time` map the coordinates; `@` before a time
        makes it the time of all rows.

        Raises:
            InputError: a text has no `=`, or two name the same target.
        """
        pairs = [_pair(text) for text in texts]
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(
                f"expected each feature mapped once, got {', '.join(twice)} again",
                expected="unique",
                feature=twice[0],
            )
        sources = dict(pairs)
        time = sources.get("time")
        constant = time.removeprefix(CONSTANT) if time and time.startswith(CONSTANT) else None
        return Mapping(
            features=tuple(pair for pair in pairs if pair[0] not in COORDINATES),
            latitude=sources.get("latitude"),
            longitude=sources.get("longitude"),
            time=time if constant is None else None,
            constant_time=constant,
        )


def _source_text(source: Any) -> str:
    if isinstance(source, dt.datetime):
        return f"{CONSTANT}{source.isoformat()}"
    return str(source)


def _sentinels(missing: Sentinels | None) -> Iterable[tuple[str, str]]:
    """Pairs as in `Mapping.missing`; a text may name its variable, `temp=-9999`."""
    if missing is None:
        return
    if isinstance(missing, AbstractMapping):
        for name, values in missing.items():
            yield from ((str(name), value) for _, value in _sentinels(values))
    elif isinstance(missing, str):
        name, _, value = missing.rpartition("=")
        yield name.strip(), value.strip()
    elif isinstance(missing, Iterable):
        for sentinel in missing:
            yield from _sentinels(sentinel)
    else:
        yield "", str(missing)


def _pair(text: str) -> tuple[str, str]:
    if not isinstance(text, str):
        raise InputError(
            f"expected a mapping such as 'temperature=2t', got {text!r}", expected="mapping"
        )
    feature, sign, source = text.partition("=")
    if not sign or not feature.strip() or not source.strip():
        raise InputError(
            f"expected a mapping such as temperature=2t, got {text!r}", expected="mapping"
        )
    return feature.strip(), source.strip()
