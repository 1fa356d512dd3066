"""`galileo aggregate` and `galileo latest`: groups of observations, and the newest of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from galileo.cli.ccq import LABELS_SHOWN
from galileo.cli.data import (
    Target,
    check_format,
    limit_of,
    limit_options,
    output_options,
    write_tables,
)
from galileo.cli.output import Output, counted
from galileo.cli.session import Session, in_session, require_complete_option
from galileo.client import Aggregates, LatestResult
from galileo.client.table_formats import rows_of
from galileo.errors import InputError
from galileo.model.grouping import STATISTICS

F = TypeVar("F", bound=Callable[..., Any])


def _statistic_options(command: F) -> F:
    """An option for each statistic, which names a feature and may be repeated."""
    for name, statistic in reversed([*STATISTICS.items()]):
        option = click.option(
            f"--{name}", f"{name}_of", metavar="FEATURE", multiple=True, help=statistic.help
        )
        command = option(command)
    return command


def _percentile(_: click.Context, option: click.Parameter, given: Sequence[tuple[str, str]]) -> Any:
    """The features of each percentile, such as p90 of the option --percentile 90 t."""
    return [(f"p{share.removeprefix('p')}", feature) for share, feature in given]


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@click.option(
    "--by",
    metavar="KEY",
    multiple=True,
    help="cell:5 (geohash characters), bits:14, window:1h, window:1mo, or a feature; repeat it for "
    "more keys.",
)
@_statistic_options
@click.option(
    "--percentile",
    "percentiles",
    type=(str, str),
    metavar="PERCENT FEATURE",
    multiple=True,
    callback=_percentile,
    help="Percentile of a feature, such as 90 t or 2.5 t.",
)
@limit_options
@output_options("groups")
@require_complete_option
@in_session
def aggregate(
    session: Session,
    /,
    *,
    dataset: str,
    query: str,
    by: tuple[str, ...],
    percentiles: list[tuple[str, str]],
    limit: int | None,
    everything: bool,
    output: str | None,
    file_format: str | None,
    require_complete: bool,
    **features_of: tuple[str, ...],
) -> None:
    """Group the matching observations, with counts and statistics of features.

    Keys are geohash cells, time windows and values of features. The nodes group, so that only the
    groups are downloaded. Without --by, all observations are one group.

    \b
    Example:
      galileo aggregate nam --by cell:4 --by window:1d --mean t --max t
      galileo aggregate nam --by cell:4 --by window:1mo --mean t --percentile 90 t
      galileo aggregate nam "temperature > 290" --by cell:5 --output warm.geojson
    """
    limit = limit_of(limit, everything=everything)
    check_format(output, file_format)
    with session.client() as client:
        groups = client.aggregate(
            dataset,
            query,
            by=by,
            statistics=_statistics(features_of, percentiles),
            require_complete=require_complete,
        )
    limit = _shown(session.output, limit, everything=everything) if output is None else limit
    target = None if output is None else Target(output, file_format)
    _deliver(session.output, groups, "groups", limit=limit, target=target)
    _note_rank_error(session.output, groups.rank_error)


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@click.option(
    "--by",
    metavar="KEY",
    required=True,
    help="cell:5 (geohash characters), or a feature such as station.",
)
@limit_options
@output_options("observations")
@require_complete_option
@in_session
def latest(
    session: Session,
    *,
    dataset: str,
    query: str,
    by: str,
    limit: int | None,
    everything: bool,
    output: str | None,
    file_format: str | None,
    require_complete: bool,
) -> None:
    """Find the newest matching observation of each cell, or of each value of a feature.

    \b
    Example:
      galileo latest nam --by station
      galileo latest nam "temperature > 290" --by cell:4 --output newest.geojson
    """
    limit = limit_of(limit, everything=everything)
    check_format(output, file_format)
    with session.client() as client:
        newest = client.latest(dataset, query, by=by, require_complete=require_complete)
    limit = _shown(session.output, limit, everything=everything) if output is None else limit
    target = None if output is None else Target(output, file_format)
    _deliver(session.output, newest, "observations", limit=limit, target=target)


def _shown(output: Output, limit: int | None, *, everything: bool) -> int | None:
    """How many rows a terminal shows."""
    return LABELS_SHOWN if limit is None and not everything and not output.as_json else limit


def _statistics(
    features_of: dict[str, tuple[str, ...]], percentiles: Sequence[tuple[str, str]]
) -> dict[str, list[str]]:
    """The statistics of each feature, in the order of `STATISTICS`, then its percentiles."""
    named = [(name, feature) for name in STATISTICS for feature in features_of[f"{name}_of"]]
    statistics: dict[str, list[str]] = {}
    for name, feature in (*named, *percentiles):
        names = statistics.setdefault(feature, [])
        if name in names:
            raise InputError(f"expected {name} of {feature} once, got it twice")
        names.append(name)
    return statistics


def _deliver(
    output: Output,
    answer: Aggregates | LatestResult,
    unit: str,
    *,
    limit: int | None,
    target: Target | None,
) -> None:
    """Writes the rows of an answer to a file, or shows them."""
    table = answer.to_arrow().slice(0, limit)
    if target is not None:
        write_tables(
            output,
            [table],
            table.schema,
            target=target,
            unit=unit,
            missing=lambda: answer.missing,
        )
        return
    if output.as_json:
        facts: dict[str, Any] = {
            "more": table.num_rows < len(answer),
            "complete": answer.complete,
            "missing": answer.missing,
        }
        if isinstance(answer, Aggregates):
            facts["rank_error"] = answer.rank_error
        output.value({unit: rows_of(table), **facts})
    else:
        output.rows(rows_of(table))
        left = f"; {table.num_rows:,} shown, --all shows all" * (table.num_rows < len(answer))
        output.value(None, words=f"{counted(len(answer), unit.removesuffix('s'))}{left}")
    output.warn_partial(answer.missing)


def _note_rank_error(output: Output, error: float) -> None:
    if error:
        output.note(
            "galileo: percentiles of groups with more than 10,000 different values are estimates: "
            f"their ranks differ by at most {100 * error:.2g} % of the values"
        )
