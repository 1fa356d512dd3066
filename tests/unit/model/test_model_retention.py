"""Retention policies as values and as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from galileo.errors import InputError
from galileo.model.retention import BYTES_MIN, Retention, VersionedRetention


def test_a_policy_travels_as_json() -> None:
    for policy in (Retention("30d"), Retention(bytes=BYTES_MIN), Retention(1, bytes=1 << 40)):
        assert Retention.from_json(policy.to_json()) == policy
        numbered = VersionedRetention(7, policy)
        assert VersionedRetention.from_json(numbered.to_json()) == numbered
    assert VersionedRetention.from_json(VersionedRetention(3).to_json()).retention is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retention(),
        lambda: Retention(past_readers=True),
        lambda: Retention("10ms"),
        lambda: Retention("soon"),
        lambda: Retention(bytes=BYTES_MIN - 1),
        lambda: Retention(bytes=1e9),
        lambda: Retention.from_json("{}"),
        lambda: Retention.from_json("?"),
        lambda: VersionedRetention.from_json('{"version": -1, "retention": null}'),
        lambda: VersionedRetention.from_json("[]"),
    ],
)
def test_a_wrong_policy_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match="expected"):
        make()
