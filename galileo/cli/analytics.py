"""`galileo explain`, `nearest`, `stats`, `estimate`, `graph`: answers from metadata graphs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from galileo.cli.ccq import LABELS_SHOWN
from galileo.cli.lazy import CommandGroup
from galileo.cli.output import Output, counted
from galileo.cli.session import Session, in_session, require_complete_option
from galileo.client.analytics_results import FeatureSummary, NodeExplanation, QueryExplanation
from galileo.client.graph_path import levels_of, parse_vertex
from galileo.client.table_formats import rows_of
from galileo.errors import InputError
from galileo.geo.circles import distance_m
from galileo.model.schema import NUMBERS, Schema
from galileo.query.cql_text import to_text

_BAR_CHARS = 40


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@require_complete_option
@in_session
def explain(session: Session, *, dataset: str, query: str, require_complete: bool) -> None:
    """Show which nodes answer a query, and how much data each one prunes and scans.

    \b
    Example:
      galileo explain nam "S_INTERSECTS(geometry, BBOX(-110, 35, -100, 42))"
    """
    with session.client() as client:
        result = client.explain(dataset, query, require_complete=require_complete)
    if session.output.as_json:
        facts = {"found": result.found, "complete": result.complete, "missing": result.missing}
        session.output.value(_fields(result) | facts)
    else:
        _show_explanation(session.output, result)
    session.output.warn_partial(result.missing)


def _show_explanation(output: Output, result: QueryExplanation) -> None:
    output.rows([_node_row(node) for node in result.nodes], empty="No node can hold a match.")
    steps = [
        {
            "condition": _condition(step.condition),
            "tested": step.tested,
            "passed": step.passed,
            "node": node.node,
        }
        for node in result.nodes
        for step in node.steps
    ]
    if steps:
        output.gap()
        output.rows(steps)
    lines = [
        "",
        f"paths that match: {result.found:,}",
        f"time: {_time(result.total_s)}, of which planning {_time(result.plan_s)}",
        f"groups: {', '.join(result.groups) or 'none'}",
        f"partitions: {len(result.partitions)} by placement, {len(result.pruned)} of them pruned",
        *(
            output.fold(f"{node.node} did not answer: {node.error}")
            for node in result.nodes
            if node.error
        ),
    ]
    output.value(None, words="\n".join(lines))


def _node_row(node: NodeExplanation) -> dict[str, Any]:
    return {
        "node": node.node,
        "partitions": len(node.partitions),
        "paths": node.paths,
        "examined": node.paths_examined,
        "matching": node.found,
        "time": _time(node.seconds),
        "zones scanned": f"{node.zones_scanned} of {node.zones}" if node.zones else "",
        "runs scanned": f"{node.runs - node.runs_pruned} of {node.runs}" if node.runs else "",
        "cells tested": node.cells_tested,
        "plan": _time(node.plan_s),
        "filter": _time(node.sift_s),
        "gather": _time(node.gather_s),
        "group": node.group,
    }


def _time(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{1e3 * seconds:,.1f} ms"


def _condition(condition: str) -> str:
    """CQL2 text of a condition's JSON; a condition on commits is none."""
    return to_text(json.loads(condition)) if condition.startswith("{") else condition


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@click.option("--latitude", type=float, required=True, help="Latitude of the point in degrees.")
@click.option("--longitude", type=float, required=True, help="Longitude of the point in degrees.")
@click.option("-k", "k", type=int, default=10, show_default=True, help="Number of observations.")
@click.option("--within", metavar="DISTANCE", help="Greatest distance, in metres or such as 50km.")
@require_complete_option
@in_session
def nearest(
    session: Session,
    *,
    dataset: str,
    query: str,
    latitude: float,
    longitude: float,
    k: int,
    within: str | None,
    require_complete: bool,
) -> None:
    """Find the matching observations nearest to a point.

    \b
    Example:
      galileo nearest nam "t > 290" --latitude 40.02 --longitude -105.27 -k 5
    """
    with session.client() as client:
        result = client.nearest(
            dataset,
            query,
            latitude=latitude,
            longitude=longitude,
            k=k,
            within_m=None if within is None else distance_m(within),
            require_complete=require_complete,
        )
    session.output.warn_partial(result.missing)
    if session.output.as_json:
        rows = rows_of(result.to_arrow())
        session.output.value({"rows": rows, "complete": result.complete, "missing": result.missing})
        return
    table = result.to_arrow()
    # The distance first, since the last columns may not fit.
    names = ["distance_m", *(name for name in table.column_names if name != "distance_m")]
    session.output.rows(rows_of(table.select(names)))
    session.output.value(None, words=counted(len(result), "observation"))


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@click.option("--feature", help="An indexed numeric feature; by default all of them.")
@click.option("--bins", type=int, help="Number of bins of a histogram, of equal width.")
@click.option("--edges", metavar="E,E,...", help="Edges of the histogram's bins.")
@require_complete_option
@in_session
def stats(
    session: Session,
    *,
    dataset: str,
    query: str,
    feature: str | None,
    bins: int | None,
    edges: str | None,
    require_complete: bool,
) -> None:
    """Count the matching observations, with statistics and histograms of features.

    Counts whole blocks: observations under the paths that match.

    \b
    Example:
      galileo stats nam "geohash LIKE '9x%'"
      galileo stats nam "geohash LIKE '9x%'" --feature temperature --bins 10
    """
    if bins is not None and edges is not None:
        raise InputError("expected --bins or --edges, got both")
    bounds = bins if edges is None else _numbers("--edges", edges)
    with session.client() as client:
        names = [feature] if feature else _numeric_features(client.schema(dataset))
        if bounds is not None and len(names) > 1:
            raise InputError(f"a histogram needs --feature, one of {', '.join(names)}")
        summaries = {
            name: client.summarise(
                dataset, query, feature=name, bins=bounds, require_complete=require_complete
            )
            for name in names
        }
    output = session.output
    output.warn_partial(
        tuple(sorted({partition for result in summaries.values() for partition in result.missing}))
    )
    if output.as_json:
        values = [
            {**_fields(result), "mean": result.mean, "complete": result.complete}
            for result in summaries.values()
        ]
        output.value(values[0] if feature else values)
        return
    facts = ("observations", "minimum", "mean", "maximum", "nulls", "paths", "total")
    output.rows(
        [
            {"feature": name} | {fact: getattr(result, fact) for fact in facts}
            for name, result in summaries.items()
        ]
    )
    if bounds is not None:
        output.gap()
        _show_histogram(output, summaries[names[0]])


def _numeric_features(schema: Schema) -> list[str]:
    names = [
        feature.name for feature in schema.features if feature.indexed and feature.type in NUMBERS
    ]
    if not names:
        raise InputError(f"dataset {schema.name!r} has no indexed feature that has numbers")
    return names


def _show_histogram(output: Output, result: FeatureSummary) -> None:
    most = max(result.counts, default=0)
    output.rows(
        [
            {
                "from": row["low"],
                "to": row["high"],
                "observations": row["observations"],
                "": "█" * round(_BAR_CHARS * row["observations"] / max(most, 1)),
            }
            for row in rows_of(result.to_arrow())
        ]
    )


@click.group(cls=CommandGroup)
def graph() -> None:
    """The metadata graph of a dataset.

    \b
    Example:
      galileo graph children nam
    """


@graph.command()
@click.argument("dataset")
@click.argument("vertex", default="")
@click.option(
    "--order", metavar="LEVEL,...", help="Order of the tree's levels, from the root down."
)
@click.option(
    "--limit", default=LABELS_SHOWN, show_default=True, help="Number of children to list."
)
@click.option("--after", metavar="VERTEX", help="List the children after this one.")
@require_complete_option
@in_session
def children(
    session: Session,
    *,
    dataset: str,
    vertex: str,
    order: str | None,
    limit: int,
    after: str | None,
    require_complete: bool,
) -> None:
    """List the children of a vertex of the metadata graph, with their counts.

    A vertex is the beginning of a path label without the dataset; without one, it is the root.
    Levels are geohash, datetime and the indexed features; with --order they come in another
    order, all or some of them.

    \b
    Example:
      galileo graph children nam 9xjqb/2012-03-01T06:00:00Z
      galileo graph children nam 290.5 --order temperature,geohash
    """
    levels = None if order is None else [level.strip() for level in order.split(",")]
    with session.client() as client:
        last = None if after is None else _last(after, client.schema(dataset), levels)
        result = client.children(
            dataset,
            vertex,
            order=levels,
            limit=limit,
            after=last,
            require_complete=require_complete,
        )
    session.output.warn_partial(result.missing)
    if session.output.as_json:
        session.output.value(
            {
                "level": result.level,
                "children": rows_of(result.to_arrow()),
                "more": result.more,
                "complete": result.complete,
                "missing": result.missing,
            }
        )
        return
    rows = rows_of(result.to_arrow().drop_columns(["value"]))
    session.output.rows(rows, title=result.level)
    texts = result.texts()
    more = f"; more with --after {texts[-1].as_py()}" if result.more else ""
    session.output.value(None, words=f"{len(result):,} of level {result.level}{more}")


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@click.option("--feature", help="Feature to compute quantiles for; indexed, with numbers.")
@click.option("--quantiles", metavar="Q,Q,...", help="From 0 to 1. [default: 0,0.25,0.5,0.75,1]")
@require_complete_option
@in_session
def estimate(
    session: Session,
    *,
    dataset: str,
    query: str,
    feature: str | None,
    quantiles: str | None,
    require_complete: bool,
) -> None:
    """Estimate how many paths match a query, from metadata that one node has.

    \b
    Example:
      galileo estimate nam "t > 290" --feature humidity --quantiles 0.1,0.9
    """
    told_of = "0,0.25,0.5,0.75,1" if quantiles is None and feature else quantiles
    shares = _numbers("--quantiles", told_of) if told_of else []
    with session.client() as client:
        result = client.estimate(
            dataset,
            query,
            feature=feature,
            quantiles=shares,
            require_complete=require_complete,
        )
    session.output.warn_partial(result.missing)
    if session.output.as_json:
        facts = {"count": result.count, "error": result.error, "complete": result.complete}
        session.output.value(_fields(result) | facts)
        return
    session.output.rows(
        [
            {"quantile": q.share, "at least": q.low, "about": q.value, "at most": q.high}
            for q in result.quantiles
        ]
    )
    behind = ""
    if result.behind:
        behind = f"; not counted: the newest {counted(result.behind, 'commit')}"
    paths = f"{result.low:,}" if result.low == result.high else f"{result.low:,} to {result.high:,}"
    words = f"paths that match: {paths}, as estimated by {result.node}{behind}"
    session.output.value(None, words=words)


def _last(vertex: str, schema: Schema, order: Sequence[str] | None) -> Any:
    path = parse_vertex(vertex, schema, order=order or levels_of(schema))
    if not path:
        raise InputError("--after must name a child, not the root")
    return path[-1]


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"expected numbers and commas for {option}, got {text!r}") from error


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type(value).__slots__}
