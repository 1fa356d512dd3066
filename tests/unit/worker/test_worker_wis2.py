"""WIS2 notification messages."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

import galileo
from galileo.worker.wis2 import message

SINK = galileo.Mqtt(
    "mqtt://a", wis2="https://gateway.example.org", metadata_id="urn:wmo:md:ch-example:air"
)


def sent(text: str) -> tuple[str, dict[str, Any]]:
    """A feature with a text, and the properties of its message."""
    properties = {"time": "2024-06-01T12:00:00Z", "text": text}
    feature = json.dumps(
        {"type": "Feature", "geometry": None, "properties": properties}, ensure_ascii=False
    )
    topic = "origin/a/wis2/ch-example/data/core/weather"
    whole = message(feature, sink=SINK, dataset="air", topic=topic, key="k")
    assert len(whole.encode()) <= 8_192
    return feature, json.loads(whole)["properties"]


def test_small_feature_is_inline_with_its_digest() -> None:
    feature, properties = sent("ä")
    assert properties["content"]["value"] == feature
    digest = base64.b64decode(properties["integrity"]["value"])
    assert digest == hashlib.sha512(feature.encode()).digest()
    assert properties["integrity"]["method"] == "sha512"
    assert (properties["metadata_id"], properties["cache"]) == (SINK.metadata_id, False)
    assert properties["data_id"] == "wis2/ch-example/data/core/weather/k"


@pytest.mark.parametrize("text", ["a" * 4_096, '"' * 1_900, "ä" * 2_100, '"' * 1_785 + "ä" * 150])
def test_feature_that_makes_the_message_too_large_is_linked_alone(text: str) -> None:
    _, properties = sent(text)
    assert "content" not in properties
    assert "integrity" not in properties
