"""`galileo datasets`: which datasets there are, and what is in them."""

from __future__ import annotations

from typing import Any

import click

from galileo.cli.output import Output, failing_well
from galileo.cli.retention import in_units, in_words
from galileo.cli.session import Session, json_option
from galileo.client import Client
from galileo.model.retention import Retention
from galileo.model.schema import Feature, Schema

MICROS = 1_000_000


@click.command()
@click.argument("name", required=False)
@json_option
@click.pass_obj
@failing_well
def datasets(session: Session, *, name: str | None) -> None:
    """List the datasets that you may use, or show the features of the one of that NAME.

    \b
    Example:
      galileo datasets
      galileo datasets nam --json | jq '.features[].name'
    """
    with session.client() as client:
        if name is not None:
            _show(session.output, client.schema(name), client.retention(name))
            return
        schemas = sorted(client.datasets(), key=lambda schema: schema.name)
        kept = _retentions(client) if schemas else {}
    if session.output.as_json:
        session.output.value([_told(schema, kept.get(schema.name)) for schema in schemas])
        return
    rows = [_row(schema, kept.get(schema.name)) for schema in schemas]
    session.output.rows(rows, empty="There is no dataset that you may use.")


def _retentions(client: Client) -> dict[str, Retention]:
    """Of all datasets that have one, in one call; as the nodes that answer know them."""
    return {
        one["dataset"]: Retention.from_dict(one["retention"])
        for node in client.status().nodes
        for one in node.datasets
        if one["retention"] is not None
    }


def _show(output: Output, schema: Schema, retention: Retention | None) -> None:
    if output.as_json:
        output.value(_told(schema, retention))
        return
    words = (
        f"{schema.name}: blocks of {schema.geohash_precision} geohash characters and "
        f"{_bucket(schema)}; {in_words(retention)}"
    )
    output.value(None, words=words)
    output.rows(
        [
            {
                "feature": feature.name,
                "unit": feature.unit,
                "type": feature.type,
                "indexed": "yes" if feature.indexed else "no",
            }
            for feature in schema.features
        ]
    )


def _row(schema: Schema, retention: Retention | None) -> dict[str, Any]:
    return {
        "dataset": schema.name,
        "features": ", ".join(map(_feature, schema.features)),
        "precision": schema.geohash_precision,
        "bucket": _bucket(schema),
        "retention": in_words(retention),
    }


def _feature(feature: Feature) -> str:
    return f"{feature.name} ({', '.join(filter(None, [feature.unit, feature.type]))})"


def _bucket(schema: Schema) -> str:
    return in_units(schema.time_bucket_us / MICROS)


def _told(schema: Schema, retention: Retention | None) -> dict[str, Any]:
    return {**schema.to_dict(), "retention": retention.to_dict() if retention else None}
