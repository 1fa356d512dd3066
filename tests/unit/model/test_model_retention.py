"""Retention policies as values and as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expected_errors import raises

from galileo.errors import InputError
from galileo.model.retention import BYTES_MIN, Retention, VersionedRetention


def test_retention_json_round_trip_is_equal() -> None:
    for policy in (Retention("30d"), Retention(bytes=BYTES_MIN), Retention(1, bytes=1 << 40)):
        assert Retention.from_json(policy.to_json()) == policy
        numbered = VersionedRetention(7, policy)
        assert VersionedRetention.from_json(numbered.to_json()) == numbered
    assert VersionedRetention.from_json(VersionedRetention(3).to_json()).retention is None


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Retention(), "age_or_bytes"),
        (lambda: Retention(past_readers=True), "age_or_bytes"),
        (lambda: Retention("10ms"), "age"),
        (lambda: Retention("soon"), "duration"),
        (lambda: Retention(bytes=BYTES_MIN - 1), "bytes"),
        (lambda: Retention(bytes=1e9), "bytes"),
        (lambda: Retention.from_json("{}"), "retention"),
        (lambda: Retention.from_json("?"), "json"),
        (lambda: VersionedRetention.from_json('{"version": -1, "retention": null}'), "version"),
        (lambda: VersionedRetention.from_json("[]"), "versioned_retention"),
    ],
)
def test_retention_invalid_policy_raises_input_error(
    make: Callable[[], Any], expected: str
) -> None:
    with raises(InputError, expected=expected):
        make()
