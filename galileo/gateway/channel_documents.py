"""Documents of channels: their definitions, and how far their executions are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from galileo.client.async_client import AsyncClient
from galileo.client.results import ChannelPartition
from galileo.errors import InputError
from galileo.gateway import documents
from galileo.model.channel import Channel
from galileo.model.enrichment import lookups_to_dict, step_from_dict, step_to_dict
from galileo.model.schema import unknown_channel
from galileo.model.times import MICROS, iso

DEFINITION = (
    *("dataset", "template", "period", "columns", "keep"),
    *("new", "leave", "age_max", "enrich", "lookup"),
)
"""Members of the definition of a channel."""


async def channel_named(client: AsyncClient, name: str) -> Channel:
    """A channel as it is now. Raises UnknownDataset if the caller may use none of that name."""
    channels = {channel.name: channel for channel in await client.channels()}
    if name not in channels:
        raise unknown_channel(name, sorted(channels))
    return channels[name]


def definition(name: str, given: Any) -> Channel:
    """The channel that the body of a request defines.

    Raises:
        InputError: it is no such definition.
    """
    if not isinstance(given, dict) or {"dataset", "template"} - given.keys():
        raise InputError(
            'expected a JSON object such as {"dataset": "weather", "template": "temperature > '
            ':least"}',
            expected="channel",
        )
    if unknown := sorted(given.keys() - set(DEFINITION)):
        raise InputError(
            f"there is no member {unknown[0]!r}; expected {', '.join(DEFINITION)}",
            parameter=unknown[0],
        )
    if not isinstance(given.get("columns", []), list):
        raise InputError(
            f"expected a list of columns, got {given['columns']!r:.100}", parameter="columns"
        )
    rest = {name: value for name, value in given.items() if name not in ("dataset", "template")}
    if "enrich" in rest:
        if not isinstance(rest["enrich"], list):
            raise InputError(
                f"expected a list of steps, got {rest['enrich']!r:.100}", parameter="enrich"
            )
        rest["enrich"] = [step_from_dict(step) for step in rest["enrich"]]
    return Channel(name, given["dataset"], given["template"], **rest)


def listed(url: str, channels: Iterable[Channel]) -> dict[str, Any]:
    """Channels, by their names."""
    at = f"{url}/channels"
    by_name = sorted(channels, key=lambda channel: channel.name)
    return {
        "links": [documents.link("self", at, documents.JSON), documents.page_link(at)],
        "channels": [described(url, channel) for channel in by_name],
    }


def described(url: str, channel: Channel) -> dict[str, Any]:
    """A channel of a cluster."""
    at, dataset = channel_url(url, channel.name), quote(channel.dataset)
    of_broker = f"{at}/brokers/{{brokerId}}"
    return {
        "id": channel.name,
        "dataset": channel.dataset,
        "template": channel.template,
        "parameters": [{"name": name, "type": kind} for name, kind in channel.parameters],
        "period": channel.period_s,
        "columns": list(channel.delivered_schema.names),
        "keep": channel.keep_us / MICROS,
        "new": channel.new,
        "leave": channel.leave,
        "age_max": None if channel.age_max_us is None else channel.age_max_us / MICROS,
        "enrich": [step_to_dict(step) for step in channel.enrich],
        "lookup": lookups_to_dict(channel.lookup),
        "links": [
            documents.link("self", at, documents.JSON, "this channel"),
            documents.page_link(at),
            documents.link(
                "collection", f"{url}/collections/{dataset}", documents.JSON, "its dataset"
            ),
        ],
        "linkTemplates": [
            _template("item", f"{at}/subscriptions/{{subscriptionId}}", "a subscription"),
            _template("items", f"{of_broker}/notifications", "notifications of a broker"),
            {
                **_template("monitor", f"{of_broker}/events", "the same as events"),
                "type": documents.EVENT_STREAM,
            },
            _template("related", f"{of_broker}/position", "how far a broker is"),
        ],
    }


def progress(channel: Channel, partitions: Sequence[ChannelPartition]) -> dict[str, Any]:
    """How far the executions of a channel are.

    Args:
        channel: the channel.
        partitions: of the subscriptions, as nodes have described them.
    """
    answered = {one.partition for one in partitions}
    missing = [number for number in range(channel.partitions) if number not in answered]
    return {
        "subscriptions": sum(one.subscriptions for one in partitions),
        "behind": max((one.behind for one in partitions), default=0),
        "failures": sorted({one.failure for one in partitions if one.failure}),
        "complete": not missing,
        "missing": missing,
        "partitions": [
            {
                "partition": one.partition,
                "node": one.node,
                "subscriptions": one.subscriptions,
                "indexBytes": one.index_bytes,
                "execution": one.execution,
                "executed": iso(math.floor(one.executed_at * MICROS)) if one.executed_at else None,
                "took": one.took_s,
                "behind": one.behind,
                "failure": one.failure or None,
            }
            for one in partitions
        ],
    }


def channel_url(url: str, name: str) -> str:
    """The URL of a channel at the gateway at a URL."""
    return f"{url}/channels/{quote(name)}"


def _template(rel: str, template: str, title: str) -> dict[str, str]:
    return {"rel": rel, "uriTemplate": template, "type": documents.JSON, "title": title}
