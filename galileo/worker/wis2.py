"""Notifications as WIS2 notification messages (WMO No. 1061, volume II, appendix F, version 1).

A message announces an observation: where it is, its time, a link to it at a gateway, and the
feature itself as inline content with its digest, if it is small. The linked answer is made on
request, so global caches shall not keep it.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import uuid
from typing import Any
from urllib.parse import quote

from galileo.client.notification_json import MEDIA_TYPE
from galileo.model.broker import Mqtt

CONFORMS_TO = "http://wis.wmo.int/spec/wnm/1/conf/core"
CONTENT_BYTES_MAX = 4_096
MESSAGE_BYTES_MAX = 8_192
"""Of inline content and of a message, as the standard has them."""
_NAMESPACE = uuid.UUID("5b1f5d0e-3f0c-5e0f-9a5b-0d6f7c1a2e34")


def message(feature: str, *, sink: Mqtt, dataset: str, topic: str, key: str) -> str:
    """A notification message.

    Args:
        feature: the notification, as of `galileo.client.notification_json.features`.
        sink: with the gateway to link to, and the identifier of the discovery metadata.
        dataset: of the observation.
        topic: of the message, of which `data_id` consists but for channel and version.
        key: of the notification; the same key gives the same `id`.
    """
    parsed: dict[str, Any] = json.loads(feature)
    at = parsed["properties"].get("time")
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    value = feature.encode()
    digest = base64.b64encode(hashlib.sha512(value).digest()).decode()
    properties: dict[str, Any] = {
        "data_id": f"{_without_version(topic)}/{key}",
        "metadata_id": sink.metadata_id,
        "pubtime": f"{now.isoformat(timespec='milliseconds')}Z",
        "datetime": at,
        "cache": False,
    }
    content = {
        "integrity": {"method": "sha512", "value": digest},
        "content": {"encoding": "utf-8", "size": len(value), "value": feature},
    }
    link = {
        "rel": "canonical",
        "type": MEDIA_TYPE,
        "href": _href(sink.wis2, dataset, parsed["geometry"], at),
    }
    whole = {
        "id": str(uuid.uuid5(_NAMESPACE, key)),
        "conformsTo": [CONFORMS_TO],
        "type": "Feature",
        "geometry": parsed["geometry"],
        "properties": properties | content,
        "links": [link],
    }
    text = _compact(whole)
    if len(value) <= CONTENT_BYTES_MAX and len(text.encode()) <= MESSAGE_BYTES_MAX:
        return text
    return _compact(whole | {"properties": properties})


def _compact(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _without_version(topic: str) -> str:
    """A topic such as `origin/a/wis2/...` without the channel and the version before it."""
    levels = topic.split("/")
    is_of_wis2 = levels[0] in ("origin", "cache") and len(levels) > 2
    return "/".join(levels[2:] if is_of_wis2 else levels)


def _href(gateway: str, dataset: str, geometry: dict[str, Any] | None, at: str | None) -> str:
    """The items of the dataset at the place and the time of an observation."""
    wanted = []
    if geometry is not None:
        longitude, latitude = geometry["coordinates"]
        wanted.append(f"bbox={longitude},{latitude},{longitude},{latitude}")
    if at is not None:
        wanted.append(f"datetime={at}")
    return f"{gateway.rstrip('/')}/collections/{quote(dataset)}/items?{'&'.join(wanted)}"
