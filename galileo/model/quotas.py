"""What one principal may use of a cluster: bounds with names.

A principal without bounds of its own has those of its role, then those of `[quotas]`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from galileo.errors import ConfigError

NO_RATE = 1e12
"""Rates from here on are none: no node reaches them, so nothing is counted."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """Most that one principal may use; `interval_min_s` is a least.

    Attributes:
        ccqs_max: continuous queries that it has alive, in the cluster.
        interval_min_s: shortest update interval of them.
        expiration_max_s: longest time until one expires.
        vertices_max: of all geometries of a query together.
        calls_max: calls of a node at a time, those that wait and streams included.
        calls_per_s: of a node; of a stream each request counts.
        bytes_in_per_s: of requests to a node, as they are encoded.
        bytes_out_per_s: of a node's answers.
    """

    ccqs_max: int = 1_000_000
    interval_min_s: float = 0.001
    expiration_max_s: float = 3_162_240_000.0
    vertices_max: int = 200_000
    calls_max: int = 4_096
    calls_per_s: float = NO_RATE
    bytes_in_per_s: float = NO_RATE
    bytes_out_per_s: float = NO_RATE

    def with_overrides(self, overrides: Mapping[str, float]) -> Quotas:
        """The same with other bounds for the names given, as `parse_quotas` returns them."""
        return dataclasses.replace(self, **overrides)  # type: ignore[arg-type]


KINDS: Mapping[str, type] = typing.get_type_hints(Quotas)


def parse_quotas(raw: Any, what: str) -> dict[str, float]:
    """Bounds by their names, checked.

    Args:
        raw: a mapping from a configuration file.
        what: it is, for the message, which repeats nothing of it.

    Raises:
        ConfigError: it is none, or a name or a bound is wrong.
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
