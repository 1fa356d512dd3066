"""Quotas: limits of what one principal may use of a cluster.

The quotas of a principal come before those of its role, and these before `[quotas]`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from galileo.errors import ConfigError

NO_RATE = 1e12
"""A rate from here on means no limit: no node reaches it, so nothing is counted."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits of one principal; `interval_min_s` is a minimum, all others are maxima.

    Attributes:
        ccqs_max: live continuous queries in the cluster.
        datasets_max: names of the datasets, tables and channels that were created in the cluster,
            dropped ones included.
        interval_min_s: shortest update interval of them.
        expiration_max_s: longest time until one expires.
        vertices_max: of all geometries of a query together.
        calls_max: concurrent calls of a node, including waiting ones and streams.
        calls_per_s: of a node; of a stream each request counts.
        bytes_in_per_s: encoded size of requests to a node.
        bytes_out_per_s: encoded size of a node's answers.
    """

    ccqs_max: int = 1_000_000
    datasets_max: int = 1_000
    interval_min_s: float = 0.001
    expiration_max_s: float = 3_162_240_000.0
    vertices_max: int = 200_000
    calls_max: int = 4_096
    calls_per_s: float = NO_RATE
    bytes_in_per_s: float = NO_RATE
    bytes_out_per_s: float = NO_RATE

    def with_overrides(self, overrides: Mapping[str, float]) -> Quotas:
        """The same with the given limits, as `parse_quotas` returns them."""
        return dataclasses.replace(self, **overrides)  # type: ignore[arg-type]


KINDS: Mapping[str, type] = typing.get_type_hints(Quotas)


def parse_quotas(raw: Any, what: str) -> dict[str, float]:
    """Validate limits by name.

    Args:
        raw: a mapping from a file.
        what: its name in messages, which do not repeat values.

    Raises:
        ConfigError: it is no mapping, or a name or a limit is wrong.
    """
    if not isinstance(raw, Mapping) or not set(raw) <= set(KINDS):
        raise ConfigError(f"expected {what} to be a table of {', '.join(KINDS)}")
    return {name: _bound(value, KINDS[name], f"{name} of {what}") for name, value in raw.items()}


def _bound(value: Any, kind: type, what: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value > 0 or (kind is int and not isinstance(value, int)):
        number = "a whole number" if kind is int else "a number"
        raise ConfigError(f"expected {what} to be {number} above zero")
    return kind(value)  # type: ignore[no-any-return]
