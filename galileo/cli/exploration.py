"""`galileo explain`, `nearest`, `summarise`, `drill`, `estimate`: what the graphs tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from galileo.cli.ccq import LABELS_SHOWN
from galileo.cli.output import Output, failing_well
from galileo.cli.session import Session, json_option, require_complete_option
from galileo.client.findings import NodeExplanation, QueryExplanation
from galileo.client.vertices import levels_of, parse_vertex
from galileo.errors import InputError
from galileo.model.schema import Schema

_BAR_CHARS = 40


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@require_complete_option
@json_option
@click.pass_obj
@failing_well
def explain(session: Session, *, dataset: str, query: str, require_complete: bool) -> None:
    """Show how a query is answered: whom it asks, what each rules out and looks at.

    \b
    Example:
      galileo explain nam "temperature > 290 AND S_INTERSECTS(geometry, BBOX(-110, 35, -100, 42))"
    """
    with session.client() as client:
        told = client.explain(dataset, query, require_complete=require_complete)
    if session.output.as_json:
        facts = {"found": told.found, "complete": told.complete, "missing": told.missing}
        session.output.value(_fields(told) | facts)
    else:
        _show_explanation(session.output, told)
    session.output.warn_partial(told.missing)


def _show_explanation(output: Output, told: QueryExplanation) -> None:
    output.rows([_node_row(node) for node in told.nodes], empty="No node can hold a match.")
    steps = [
        {
            "node": node.node,
            "condition": step.condition,
            "tested": step.tested,
            "passed": step.passed,
        }
        for node in told.nodes
        for step in node.steps
    ]
    output.rows(steps)
    away = "".join(f"\n{node.node}: {node.error}" for node in told.nodes if node.error)
    output.value(
        None,
        words=(
            f"{told.found:,} paths in {1e3 * told.total_s:,.1f} ms, "
            f"{1e3 * told.plan_s:,.1f} ms of them to find out whom to ask\n"
            f"groups {', '.join(told.groups) or 'none'}; {len(told.partitions)} partitions can "
            f"hold a match by placement, the feature graph spares {len(told.spared)}{away}"
        ),
    )


def _node_row(node: NodeExplanation) -> dict[str, Any]:
    return {
        "node": node.node,
        "group": node.group,
        "partitions": len(node.partitions),
        "runs": f"{node.runs - node.runs_pruned} of {node.runs}",
        "zones": f"{node.zones_scanned} of {node.zones}",
        "examined": f"{node.paths_examined:,} of {node.paths:,}",
        "cells tested": node.cells_tested,
        "found": node.found,
        "plan ms": 1e3 * node.plan_s,
        "sift ms": 1e3 * node.sift_s,
        "gather ms": 1e3 * node.gather_s,
        "answer ms": 1e3 * node.seconds,
    }


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@click.option("--latitude", type=float, required=True, help="Of the point, degrees.")
@click.option("--longitude", type=float, required=True, help="Of the point, degrees.")
@click.option("-k", "k", type=int, default=10, show_default=True, help="How many at most.")
@click.option("--within", type=float, help="None farther away than so many metres.")
@require_complete_option
@json_option
@click.pass_obj
@failing_well
def nearest(
    session: Session,
    *,
    dataset: str,
    query: str,
    latitude: float,
    longitude: float,
    k: int,
    within: float | None,
    require_complete: bool,
) -> None:
    """Find the observations nearest to a point, of those that match a query exactly.

    \b
    Example:
      galileo nearest nam "temperature > 290" --latitude 40.02 --longitude -105.27 -k 5
    """
    with session.client() as client:
        found = client.nearest(
            dataset,
            query,
            latitude=latitude,
            longitude=longitude,
            k=k,
            within_m=within,
            require_complete=require_complete,
        )
    session.output.warn_partial(found.missing)
    if session.output.as_json:
        rows = found.to_arrow().to_pylist()
        session.output.value({"rows": rows, "complete": found.complete, "missing": found.missing})
        return
    session.output.rows(found.to_arrow().to_pylist())
    session.output.value(None, words=f"{len(found):,} observations")


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@click.option("--feature", required=True, help="An indexed feature that has numbers.")
@click.option("--bins", type=int, help="Bins of a histogram, of equal width.")
@click.option("--edges", metavar="E,E,...", help="Edges of its bins instead.")
@require_complete_option
@json_option
@click.pass_obj
@failing_well
def summarise(
    session: Session,
    *,
    dataset: str,
    query: str,
    feature: str,
    bins: int | None,
    edges: str | None,
    require_complete: bool,
) -> None:
    """Count observations under the paths that match, with statistics of a feature.

    \b
    Example:
      galileo summarise nam "geohash LIKE '9x%'" --feature temperature --bins 10
    """
    if bins is not None and edges is not None:
        raise InputError("expected --bins or --edges, got both")
    with session.client() as client:
        wanted = bins if edges is None else _numbers("--edges", edges)
        told = client.summarise(
            dataset, query, feature=feature, bins=wanted, require_complete=require_complete
        )
    session.output.warn_partial(told.missing)
    if session.output.as_json:
        session.output.value({**_fields(told), "mean": told.mean, "complete": told.complete})
        return
    facts = ("paths", "observations", "nulls", "minimum", "mean", "maximum", "total")
    session.output.rows([{"feature": feature} | {name: getattr(told, name) for name in facts}])
    most = max(told.counts, default=0)
    session.output.rows(
        [
            {
                "from": row["low"],
                "to": row["high"],
                "observations": row["observations"],
                "": "█" * round(_BAR_CHARS * row["observations"] / max(most, 1)),
            }
            for row in told.to_arrow().to_pylist()
        ]
    )


@click.command()
@click.argument("dataset")
@click.argument("vertex", default="")
@click.option("--order", metavar="LEVEL,...", help="Levels of the tree, from the root down.")
@click.option("--limit", default=LABELS_SHOWN, show_default=True, help="Children of this page.")
@click.option("--after", metavar="VERTEX", help="The last child of the page before.")
@require_complete_option
@json_option
@click.pass_obj
@failing_well
def drill(
    session: Session,
    *,
    dataset: str,
    vertex: str,
    order: str | None,
    limit: int,
    after: str | None,
    require_complete: bool,
) -> None:
    """List the children of a vertex of the metadata graph, with what hangs under each.

    A vertex is the beginning of a path label without the dataset; without one, it is the root.
    Levels are geohash, datetime and the indexed features; with --order they come in another
    order, all or some of them.

    \b
    Example:
      galileo drill nam 9xjqb/2012-03-01T06:00:00Z
      galileo drill nam 290.5 --order temperature,geohash
    """
    levels = None if order is None else [level.strip() for level in order.split(",")]
    with session.client() as client:
        last = None if after is None else _last(after, client.schema(dataset), levels)
        found = client.children(
            dataset,
            vertex,
            order=levels,
            limit=limit,
            after=last,
            require_complete=require_complete,
        )
    session.output.warn_partial(found.missing)
    if session.output.as_json:
        session.output.value(
            {
                "level": found.level,
                "children": found.to_arrow().to_pylist(),
                "more": found.more,
                "complete": found.complete,
                "missing": found.missing,
            }
        )
        return
    rows = found.to_arrow().drop_columns(["value"]).to_pylist()
    session.output.rows(rows, title=found.level)
    texts = found.texts()
    more = f"; more with --after {texts[-1].as_py()}" if found.more else ""
    session.output.value(None, words=f"{len(found):,} of level {found.level}{more}")


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@click.option("--feature", help="Whose quantiles to tell; indexed, with numbers.")
@click.option("--quantiles", metavar="Q,Q,...", help="From 0 to 1. [default: 0,0.25,0.5,0.75,1]")
@require_complete_option
@json_option
@click.pass_obj
@failing_well
def estimate(
    session: Session,
    *,
    dataset: str,
    query: str,
    feature: str | None,
    quantiles: str | None,
    require_complete: bool,
) -> None:
    """Estimate how many paths match, from what one node knows of the whole cluster.

    \b
    Example:
      galileo estimate nam "temperature > 290" --feature humidity --quantiles 0.1,0.5,0.9
    """
    told_of = "0,0.25,0.5,0.75,1" if quantiles is None and feature else quantiles
    shares = _numbers("--quantiles", told_of) if told_of else []
    with session.client() as client:
        told = client.estimate(
            dataset,
            query,
            feature=feature,
            quantiles=shares,
            require_complete=require_complete,
        )
    session.output.warn_partial(told.missing)
    if session.output.as_json:
        facts = {"count": told.count, "error": told.error, "complete": told.complete}
        session.output.value(_fields(told) | facts)
        return
    session.output.rows(
        [
            {"quantile": q.share, "at least": q.low, "about": q.value, "at most": q.high}
            for q in told.quantiles
        ]
    )
    behind = f"; {told.behind:,} commits are not counted yet" if told.behind else ""
    session.output.value(
        None,
        words=f"{told.low:,} to {told.high:,} paths match, as {told.node} knows{behind}",
    )


def _last(vertex: str, schema: Schema, order: Sequence[str] | None) -> Any:
    path = parse_vertex(vertex, schema, order=order or levels_of(schema))
    if not path:
        raise InputError("expected --after to name a child, got the root")
    return path[-1]


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"expected numbers and commas for {option}, got {text!r}") from error


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type(value).__slots__}
