"""`galileo ccq`: cached continuous queries."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import tempfile
from pathlib import Path
from typing import Any

import click

from galileo.cli.lazy import CommandGroup
from galileo.cli.options import EXISTING_FILE
from galileo.cli.output import counted, time_left
from galileo.cli.positions import NOW, START, WatchPosition
from galileo.cli.sampler_options import SamplerChoice, sampler_options
from galileo.cli.session import Session, in_session
from galileo.cli.table_writer import write_table
from galileo.cli.watch_display import WatchDisplay, stop_when_reader_ends
from galileo.client import Client, Labels, Spool, SpooledWindow, Update, WindowChange
from galileo.client.table_formats import rows_of
from galileo.errors import InputError
from galileo.model.times import iso, seconds
from galileo.model.windows import Window
from galileo.query.cql_text import to_text

LABELS_SHOWN = 20


@click.group(cls=CommandGroup)
def ccq() -> None:
    """Continuous queries: submit, fetch, watch and cancel.

    \b
    Example:
      ID=$(galileo ccq submit nam "temperature > 290" --expiration 7d --quiet)
      galileo ccq watch $ID
    """


@ccq.command()
@click.argument("dataset")
@click.argument("query", default="")
@click.option(
    "--interval", default="1s", show_default=True, help="Time between two evaluations, such as 5s."
)
@click.option(
    "--expiration",
    default="30d",
    show_default=True,
    help="Time after which the query ends, such as 7d.",
)
@sampler_options
@click.option(
    "--compression",
    type=click.Choice(["none", "lz4"]),
    default="none",
    show_default=True,
    help="Compression of the labels that wait to be fetched.",
)
@click.option(
    "--window",
    metavar="KIND:SIZE[/SLIDE]",
    help="Windows over the time of observations, such as tumbling:1h or sliding:6h/1h.",
)
@click.option("--lateness", help="How far past its end a window stays open, such as 10m.")
@click.option(
    "--hold",
    default="7d",
    show_default=True,
    help="How long what readers may still need is kept if none fetches, at most 90d.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print the id alone.")
@in_session
def submit(
    session: Session,
    *,
    dataset: str,
    query: str,
    interval: str,
    expiration: str,
    sampler: SamplerChoice,
    compression: str,
    window: str | None,
    lateness: str | None,
    hold: str,
    quiet: bool,
) -> None:
    """Submit a continuous query and print its id, first token and how to go on.

    \b
    Example:
      ID=$(galileo ccq submit nam "temperature > 290" --interval 5s --quiet)
      galileo ccq submit nam --sampler uniform --option fraction=0.1
      galileo ccq submit nam --sampler-file my_sampler.py --option fraction=0.1
      galileo ccq submit nam "t > 290" --window tumbling:1h --lateness 10m
    """
    with session.client() as client:
        submitted = client.submit(
            dataset,
            query,
            interval=interval,
            expiration=expiration,
            sampler=sampler.spec(),
            compression=compression,
            window=_window(window, lateness),
            hold=hold,
        )
    if quiet and not session.output.as_json:
        click.echo(submitted.id)
        return
    session.output.value(
        {
            "id": submitted.id,
            "coordinator": submitted.coordinator,
            "labels": len(submitted.initial),
            "complete": submitted.initial.complete,
            "token": submitted.token,
        },
        words=(
            f"{submitted.id}\n"
            f"labels that match now: {len(submitted.initial):,}; coordinator "
            f"{submitted.coordinator}; "
            f"ends in {time_left(seconds(expiration))}\n"
            f"Print new labels as they come:\n  galileo ccq watch {submitted.id}\n"
            f"Fetch new labels once:\n  galileo ccq fetch {submitted.id} \\\n"
            f"    --token {submitted.token}"
        ),
    )


@ccq.command()
@click.argument("ccq_id")
@click.option("--token", default="", help="Resume token of the last update; else from the start.")
@click.option("--wait", help="Wait for up to this long for a new label, such as 10s.")
@in_session
def fetch(session: Session, *, ccq_id: str, token: str, wait: str | None) -> None:
    """Fetch the labels that are new since a token, and the next token.

    \b
    Example:
      galileo ccq fetch ccq-8c1f... --token AQRjY3E... --wait 10s
    """
    with session.client() as client:
        update = client.fetch(ccq_id, token=token, wait=wait)
    _show(session, update)


@ccq.command()
@click.argument("ccq_id")
@click.option(
    "--from",
    "begin",
    metavar="start|now|NAME",
    help="Where to begin: at the first label, with new ones, or at the position of that NAME.  "
    "[default: now; start with --spool or --closed-only]",
)
@click.option("--token", default="", help="Resume token of the last update, in place of --from.")
@click.option("--updates", type=click.IntRange(1), help="Stop after this many updates.")
@click.option(
    "--spool",
    "spool_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Store updates in this file before they are printed, and resume where it ends.",
)
@click.option(
    "--closed-only", is_flag=True, help="Print each window with all of its labels when it closes."
)
@in_session
def watch(
    session: Session,
    *,
    ccq_id: str,
    begin: str | None,
    token: str,
    updates: int | None,
    spool_path: Path | None,
    closed_only: bool,
) -> None:
    """Print updates as they come, until Ctrl-C or the query's end.

    Begins with labels that are new from now on; --from start prints the earlier ones first. With
    --from NAME, the position is kept in ~/.local/state/galileo under that name: the first watch
    begins at the first label, each later one resumes after the last update that was printed.

    On a terminal the newest labels are redrawn; in a pipe the updates follow each other, until
    the reader of the pipe ends.

    With --spool, labels and token are stored in one step. Killed at any time and restarted, the
    watch continues without a gap or a repetition.

    With --closed-only, a window is printed when it closes, and again when labels come late or are
    withdrawn. Its labels are kept in the spool until then, or in a temporary one.

    \b
    Example:
      galileo ccq watch ccq-8c1f... --from start --json | jq .labels
      galileo ccq watch ccq-8c1f... --from alarms
      galileo ccq watch ccq-8c1f... --spool hot.spool
    """
    position = _position(ccq_id, begin, token=token, is_stored=closed_only or bool(spool_path))
    with session.client() as client, contextlib.ExitStack() as stack:
        token = token or position.token(client)
        if closed_only:
            _demand_windows(client, ccq_id)
            if spool_path is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="galileo-"))
                spool_path = Path(folder) / "watched.spool"
        spool = stack.enter_context(Spool(spool_path)) if spool_path else None
        stack.enter_context(stop_when_reader_ends())
        display = WatchDisplay(session.output, ccq_id) if session.output.is_live else None
        if display is not None and not closed_only:
            stack.enter_context(display)
        watched = client.watch(ccq_id, token=token, spool=spool)
        for number, update in enumerate(session.output.going_on(watched), start=1):
            if closed_only and spool is not None:
                _show_closed(session, update, spool)
            elif display is not None:
                display.update(
                    update, [_closing(change) for change in update.windows if change.is_closed]
                )
            else:
                _show(session, update)
            position.save(update.token)
            if number == updates:
                return


def _position(ccq_id: str, begin: str | None, *, token: str, is_stored: bool) -> WatchPosition:
    """A watch that keeps labels keeps all of them; any other begins with new ones."""
    if begin is not None and token:
        raise InputError("expected --from or --token, got both")
    if begin not in (None, START) and is_stored:
        raise InputError(
            f"expected --from start with --spool or --closed-only, which keep all labels, "
            f"got {begin!r}"
        )
    return WatchPosition(ccq_id, begin or (START if is_stored or token else NOW))


@ccq.command()
@click.argument("path", type=EXISTING_FILE)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all labels to a file (.parquet, .geoparquet, .geojson, .arrow, .csv, .ndjson).",
)
@click.option(
    "--forget", type=click.IntRange(1), metavar="N", help="Delete updates up to number N."
)
@in_session
def spool(session: Session, *, path: Path, output: Path | None, forget: int | None) -> None:
    """Show what a spool holds, write it to a file, or delete processed updates.

    \b
    Example:
      galileo ccq spool hot.spool --output hot.parquet
    """
    with Spool(path) as held:
        if output is not None:
            write_table(held.labels().to_arrow(), output)
        if forget is not None:
            held.forget(until=forget)
        session.output.value(
            {
                "ccq": held.ccq_id,
                "labels": len(held),
                "last_number": held.last_number,
                "token": held.token,
                "gone": held.gone,
                "windows": [_window_words(window) for window in held.windows()],
            },
            words=(
                f"{counted(len(held), 'label')} of {held.ccq_id or 'no query yet'}, "
                f"last update number {held.last_number}"
                + (
                    f"; dropped by retention: {counted(len(held.gone), 'range')} of commits"
                    if held.gone
                    else ""
                )
            ),
        )


@ccq.command("list")
@in_session
def list_ccqs(session: Session) -> None:
    """List the continuous queries of the cluster.

    \b
    Example:
      galileo ccq list --json
    """
    with session.client() as client:
        infos = client.list_ccqs()
    rows = [
        {
            "id": info.id,
            "dataset": info.dataset,
            "query": query_text(info.query),
            "state": info.state,
            "interval_s": info.interval_s,
            "expires": dt.datetime.fromtimestamp(info.expires_at, tz=dt.UTC),
            "coordinator": info.coordinator,
            "holders": ", ".join(info.holders),
            "window": str(info.window) if info.window else "",
        }
        for info in infos
    ]
    session.output.rows(rows, empty="No continuous queries.")


@ccq.command()
@click.argument("ccq_id")
@in_session
def cancel(session: Session, *, ccq_id: str) -> None:
    """End a continuous query everywhere.

    \b
    Example:
      galileo ccq cancel ccq-8c1f...
    """
    with session.client() as client:
        client.cancel(ccq_id)
    session.output.value({"cancelled": ccq_id}, words=f"cancelled {ccq_id}")


def query_text(canonical: str) -> str:
    """CQL2 text of a query's canonical JSON."""
    return to_text(json.loads(canonical)) if canonical else ""


def _window(text: str | None, lateness: str | None) -> Window | None:
    if text is None and lateness is not None:
        raise InputError("--lateness needs --window; add it")
    return None if text is None else Window.parse(text, lateness=lateness)


def _demand_windows(client: Client, ccq_id: str) -> None:
    """Raises InputError where the query is known to have none, for then nothing would ever come."""
    known = {info.id: info for info in client.list_ccqs()}
    if ccq_id in known and known[ccq_id].window is None:
        raise InputError(f"--closed-only needs a query with windows; {ccq_id} has none")


def _show(session: Session, update: Update) -> None:
    if session.output.as_json:
        session.output.value(
            {
                "labels": rows_of(update.labels.to_arrow()),
                "reset": update.reset,
                "withdrawn": rows_of(_withdrawn(update).to_arrow()),
                "token": update.token,
                "frontier": update.frontier,
                "age_s": update.age_s,
                "interval_s": update.interval_s,
                "more": update.more,
                "complete": update.labels.complete,
                "missing": update.labels.missing,
                "gone": update.gone,
                "clock": None if update.clock_us is None else iso(update.clock_us),
                "windows": [_window_words(change) for change in update.windows],
            }
        )
        return
    if update.reset:
        words = "reset: forget the labels of earlier updates; all that match now follow"
        session.output.value(None, words=words)
    show_labels(session, update.labels)
    if withdrawn := _withdrawn(update):
        words = f"withdrawn, since they match or count no more: {counted(len(withdrawn), 'label')}"
        session.output.value(None, words=words)
        show_labels(session, withdrawn)
    if not update.is_news:
        session.output.value(None, words=f"nothing new: {update.status}")
    for dropped in update.gone:
        place = f"partition {dropped.partition}, commits {dropped.first} to {dropped.last}"
        session.output.value(
            None, words=f"gone: {place}: dropped by retention before they were fetched"
        )
    for change in update.windows:
        if change.is_closed:
            session.output.value(None, words=_closing(change))
    session.output.value(None, words=f"token {update.token}")


def _withdrawn(update: Update) -> Labels:
    schema = update.labels.schema
    return update.withdrawn or Labels(schema, schema.label_schema.empty_table())


def _show_closed(session: Session, update: Update, spool: Spool) -> None:
    """The windows that an update closes, with all labels that the spool holds for them."""
    for change in update.windows:
        if not change.is_closed:
            continue
        labels = spool.labels(change)
        if session.output.as_json:
            content = {"labels": rows_of(labels.to_arrow()), "token": update.token}
            session.output.value(_window_words(change) | content)
        else:
            session.output.value(None, words=_closing(change))
            show_labels(session, labels)


def _closing(change: WindowChange) -> str:
    span = f"{iso(change.start_us)} to {iso(change.end_us)}"
    withdrawn = f", {change.withdrawn:,} withdrawn" * bool(change.withdrawn)
    late = f": {counted(change.labels, 'late label')}{withdrawn}" * (change.state == "reopened")
    return f"window {span} {change.state}{late}"


def _window_words(window: WindowChange | SpooledWindow) -> dict[str, Any]:
    span = {"start": iso(window.start_us), "end": iso(window.end_us)}
    if isinstance(window, SpooledWindow):
        state = "closed" if window.is_closed else "open"
        return span | {"labels": window.labels, "state": state}
    return span | {"new": window.labels, "withdrawn": window.withdrawn, "state": window.state}


def show_labels(session: Session, labels: Labels, *, limit: int = LABELS_SHOWN) -> None:
    """The first labels as a table, and how many there are; --wide shows where they are stored."""
    hidden = ["label"] if session.output.is_wide else ["block", "partition", "sequence", "label"]
    rows = rows_of(labels.slice(0, min(limit, len(labels))).to_arrow().drop_columns(hidden))
    session.output.rows(rows)
    shown = f", the first {limit} shown" if len(labels) > limit else ""
    session.output.value(None, words=f"{counted(len(labels), 'label')}{shown}")
    session.output.warn_partial(labels.missing)
