"""`galileo datasets`: which datasets there are, and what is in them."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from galileo.cli.output import Output, failing_well
from galileo.cli.retention import in_units, in_words
from galileo.cli.session import Session, json_option, require_complete_option
from galileo.client import Client, DatasetDescription, FeatureDescription
from galileo.model.retention import Retention

MICROS = 1_000_000
DESCRIBED_AT_A_TIME = 8
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@click.command()
@click.argument("name", required=False)
@require_complete_option
@json_option
@click.pass_obj
@failing_well
def datasets(session: Session, *, name: str | None, require_complete: bool) -> None:
    """List the datasets that you may use, or describe the one of that NAME.

    Numbers come from the metadata graphs; no observation is read. Place and time are those of
    blocks: whole cells and time buckets. Of features that are not indexed there are no statistics.

    \b
    Example:
      galileo datasets
      galileo datasets nam --json | jq '.features[] | {name, minimum, maximum}'
    """
    with session.client() as client:
        if name is not None:
            described = [client.describe(name, require_complete=require_complete)]
            kept = {name: client.retention(name)}
        else:
            described = _describe_all(client, require_complete=require_complete)
            kept = _retentions(client) if described else {}
    facts = [_facts(one, kept.get(one.schema.name)) for one in described]
    if session.output.as_json:
        session.output.value(facts if name is None else facts[0])
    elif name is not None:
        _show(session.output, described[0], kept[name])
    else:
        rows = [_row(one) for one in described]
        session.output.rows(rows, empty="There is no dataset that you may use.")
    session.output.warn_partial(sorted({p for one in described for p in one.missing}))


def _describe_all(client: Client, *, require_complete: bool) -> list[DatasetDescription]:
    """All datasets by name, some at a time."""

    def describe(name: str) -> DatasetDescription:
        return client.describe(name, require_complete=require_complete)

    names = sorted(schema.name for schema in client.datasets())
    with ThreadPoolExecutor(DESCRIBED_AT_A_TIME) as threads:
        return list(threads.map(describe, names))


def _retentions(client: Client) -> dict[str, Retention | None]:
    """Of all datasets that have one, in one call; as the nodes that answer know them."""
    return {
        one["dataset"]: Retention.from_dict(one["retention"])
        for node in client.status().nodes
        for one in node.datasets
        if one["retention"] is not None
    }


def _show(output: Output, described: DatasetDescription, retention: Retention | None) -> None:
    schema = described.schema
    place = ""
    if described.bbox is not None:
        west, south, east, north = described.bbox
        place = f"longitude {west:g} to {east:g}, latitude {south:g} to {north:g}\n"
    words = (
        f"{schema.name}: blocks of {schema.geohash_precision} geohash characters and "
        f"{_bucket(described)}; {in_words(retention)}\n"
        f"{described.observations:,} observations in {described.paths:,} paths and "
        f"{_in_bytes(described.bytes)}"
    )
    if described.start is not None and described.end is not None:
        words += f"\n{place}from {_in_time(described.start)} to {_in_time(described.end)}"
    output.value(None, words=words)
    output.rows([_feature_row(feature) for feature in described.features])


def _feature_row(feature: FeatureDescription) -> dict[str, Any]:
    unit = f" ({feature.unit})" if feature.unit else ""
    values = ", ".join(list(feature.values)[:3])
    more = ", …" if len(feature.values) > 3 else ""
    return {
        "feature": f"{feature.name}{unit}",
        "type": feature.type if feature.indexed else f"{feature.type}, not indexed",
        "nulls": feature.nulls,
        "min": feature.minimum,
        "mean": feature.mean,
        "max": feature.maximum,
        "values": f"{feature.distinct:,}: {values}{more}" if feature.distinct else "",
    }


def _row(described: DatasetDescription) -> dict[str, Any]:
    """Two lines, of which the second has where time and place end."""
    time, place = "", ""
    if described.bbox is not None and described.start is not None and described.end is not None:
        west, south, east, north = described.bbox
        last = described.end - dt.timedelta(microseconds=1)
        time = f"{described.start:%Y-%m-%d}\n{last:%Y-%m-%d}"
        place = f"{west:.4g} {south:.4g}\n{east:.4g} {north:.4g}"
    return {
        "dataset": described.schema.name,
        "rows": described.observations,
        "bytes": _in_bytes(described.bytes),
        "first, last": time,
        "bbox": place,
        "features": len(described.features),
    }


def _in_bytes(size: float) -> str:
    """Three digits and a decimal unit, such as 12.3 MB."""
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]}"


def _in_time(value: dt.datetime) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%SZ")


def _bucket(described: DatasetDescription) -> str:
    return in_units(described.schema.time_bucket_us / MICROS)


def _facts(described: DatasetDescription, retention: Retention | None) -> dict[str, Any]:
    return {
        **described.schema.to_dict(),
        "features": described.features,
        "retention": retention.to_dict() if retention else None,
        "observations": described.observations,
        "paths": described.paths,
        "bytes": described.bytes,
        "bbox": described.bbox,
        "start": described.start,
        "end": described.end,
        "complete": described.complete,
        "missing": described.missing,
    }
