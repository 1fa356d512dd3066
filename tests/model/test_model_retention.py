"""Retention policies as values and as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from galileo.errors import InputError
from galileo.model.retention import BYTES_MIN, NumberedRetention, Retention


def test_a_policy_travels_as_json() -> None:
    for policy in (Retention("30d"), Retention(bytes=BYTES_MIN), Retention(1, bytes=1 << 40)):
        assert Retention.from_json(policy.to_json()) == policy
        numbered = NumberedRetention(7, policy)
        assert NumberedRetention.from_json(numbered.to_json()) == numbered
    assert NumberedRetention.from_json(NumberedRetention(3).to_json()).retention is None


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
        lambda: NumberedRetention.from_json('{"version": -1, "retention": null}'),
        lambda: NumberedRetention.from_json("[]"),
    ],
)
def test_a_wrong_policy_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match="expected"):
        make()
