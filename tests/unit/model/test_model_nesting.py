"""JSON that is nested without end is refused as an input, wherever it is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from galileo.errors import InputError
from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import Schema
from galileo.model.windows import Window
from galileo.samplers import SamplerSpec
from galileo.wire.value_json import values_from_json

DEEP = "[" * 100_000 + "]" * 100_000
READERS: list[Callable[[str], object]] = [
    Schema.from_json,
    Retention.from_json,
    VersionedRetention.from_json,
    Window.from_json,
    SamplerSpec.from_json,
    values_from_json,
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("text", [DEEP, '{"name": ' + DEEP + "}"])
def test_from_json_deep_nesting_raises_input_error(
    read: Callable[[str], object], text: str
) -> None:
    with pytest.raises(InputError):
        read(text)
