"""Notifications as WIS2 notification messages (WMO No. 1061, volume II, appendix F, version 1).

A message announces an observation: where it is, its time, a link to it at a gateway, and the
feature itself as inline content, if it is small.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any
from urllib.parse import quote

from galileo.client.notification_json import MEDIA_TYPE

CONFORMS_TO = "http://wis.wmo.int/spec/wnm/1/conf/core"
CONTENT_BYTES_MAX = 4_096
"""Of inline content, as the standard has it."""
_NAMESPACE = uuid.UUID("5b1f5d0e-3f0c-5e0f-9a5b-0d6f7c1a2e34")


def message(feature: str, *, gateway: str, dataset: str, topic: str, key: str) -> str:
    """A notification message.

    Args:
        feature: the notification, as of `galileo.client.notification_json.features`.
        gateway: URL under which receivers reach the HTTP gateway.
        dataset: of the observation.
        topic: of the message, of which `data_id` consists but for channel and version.
        key: of the notification; the same key gives the same `id`.
    """
    parsed: dict[str, Any] = json.loads(feature)
    at = parsed["properties"].get("time")
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    properties: dict[str, Any] = {
        "data_id": f"{_without_version(topic)}/{key}",
        "pubtime": f"{now.isoformat(timespec='milliseconds')}Z",
        "datetime": at,
    }
    size = len(feature.encode())
    if size <= CONTENT_BYTES_MAX:
        properties["content"] = {"encoding": "utf-8", "size": size, "value": feature}
    link = {
        "rel": "canonical",
        "type": MEDIA_TYPE,
        "href": _href(gateway, dataset, parsed["geometry"], at),
    }
    return json.dumps(
        {
            "id": str(uuid.uuid5(_NAMESPACE, key)),
            "conformsTo": [CONFORMS_TO],
            "type": "Feature",
            "geometry": parsed["geometry"],
            "properties": properties,
            "links": [link],
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )


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
