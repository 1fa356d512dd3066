"""`galileo delete`: observations of datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from galileo.cli.cursors import cursor_of, keyed_dataset, unchanged_since_option
from galileo.cli.datasets import check_terminal, confirm
from galileo.cli.options import EXISTING_FILE, csv_options
from galileo.cli.output import counted
from galileo.cli.session import Session, in_session
from galileo.cli.stored_rows import report_receipt
from galileo.client import Client
from galileo.errors import InputError
from galileo.formats import CsvOptions
from galileo.model.schema import Schema
from galileo.wire import token


@click.command()
@click.argument("name")
@click.argument("condition", default="")
@click.option(
    "--file",
    "path",
    type=EXISTING_FILE,
    help="A file of the observations: their place, their time and the features of the key.",
)
@click.option("--all", "everything", is_flag=True, help="Delete all observations.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@unchanged_since_option("`dataset show` or `dataset changes`, with --file")
@csv_options
@in_session
def delete(
    session: Session,
    *,
    name: str,
    condition: str,
    path: Path | None,
    everything: bool,
    yes: bool,
    unchanged_since: str | None,
    csv: dict[str, Any],
) -> None:
    """Delete observations, by a condition or, of a keyed dataset, by a file of their keys.

    The CONDITION is CQL2. The command shows how many observations match it, and asks before it
    deletes them; without a terminal to confirm it on, --yes is required. An observation of a keyed
    dataset that changes meanwhile is deleted only if it matches afterwards, too.

    Of a file, which is Parquet, Arrow, CSV or JSON lines, the keys are deleted without a question;
    unknown keys are ignored.

    \b
    Example:
      galileo delete buoys "waves > 40"
      galileo delete buoys "station = 'b17'" --yes
      galileo delete buoys --file wrong.csv
    """
    condition = condition.strip()
    if [bool(condition), path is not None, everything].count(True) != 1:
        raise InputError(
            "expected a CONDITION, --file, or --all for all observations, one of the three",
            parameter="condition",
        )
    if path is None and (csv or unchanged_since is not None):
        raise InputError(
            "--unchanged-since and the options of CSV files need --file; leave them out with a "
            "condition, which deletes only what has not changed since it was evaluated"
        )
    if path is None and not yes:
        check_terminal(f"deleting observations of dataset {name!r}")
    with session.client() as client, session.output.noting_warnings():
        schema = client.schema(name) if path is None else keyed_dataset(client, name)
        if path is not None:
            _delete_file(session, client, schema, path, unchanged_since=unchanged_since, csv=csv)
            return
        if not yes:
            question = f"Delete {counted(client.count(name, condition), 'observation')} of {name}?"
            confirm(session, question, otherwise="Nothing was deleted.")
        _delete_matching(session, client, schema, condition)


def _delete_file(
    session: Session,
    client: Client,
    schema: Schema,
    path: Path,
    *,
    unchanged_since: str | None,
    csv: dict[str, Any],
) -> None:
    """Deletes the keys of a file."""
    with session.output.counting(path.name, unit="keys") as come:
        receipt = client.delete(
            schema.name,
            path,
            csv=CsvOptions(**csv) if csv else None,
            unchanged_since=None if unchanged_since is None else cursor_of(schema, unchanged_since),
            progress=come,
        )
    report_receipt(session.output, receipt, f"deleted: {counted(receipt.rows, 'key')}")


def _delete_matching(session: Session, client: Client, schema: Schema, condition: str) -> None:
    """Deletes what matches a condition."""
    with session.output.counting(schema.name, unit="observations") as come:
        receipt = client.delete(schema.name, condition, progress=come)
    assert receipt.evaluated is not None, "a condition is evaluated at a cursor"
    report_receipt(
        session.output,
        receipt,
        f"deleted: {counted(receipt.rows, 'observation')}",
        evaluated=token.encode(schema.key, receipt.evaluated),
    )
