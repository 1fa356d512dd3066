"""Cursors of tables and datasets, as commands take them: the tokens that other commands print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from galileo.client import Client
from galileo.cursor import Cursor
from galileo.errors import InputError, InvalidToken
from galileo.model.schema import Schema, StoredSchema, not_keyed
from galileo.wire import token

F = TypeVar("F", bound=Callable[..., Any])


def unchanged_since_option(where: str) -> Callable[[F], F]:
    """`--unchanged-since`, of a command that writes; `where` names what prints cursors."""
    return click.option(
        "--unchanged-since",
        metavar="CURSOR",
        help=f"Refuse rows whose keys have changed after a cursor of {where}.",
    )


def changes_options(command: F) -> F:
    """`--after` and `--until`: between which cursors rows have changed."""
    after = click.option(
        "--after", "after", required=True, metavar="CURSOR", help="The cursor of an earlier answer."
    )
    until = click.option("--until", "until", metavar="CURSOR", help="The cursor of a later one.")
    decorated: F = after(until(command))
    return decorated


def keyed_dataset(client: Client, name: str) -> Schema:
    """The schema of a keyed dataset. Raises InputError if it has no key."""
    schema = client.schema(name)
    if not schema.is_keyed:
        raise not_keyed(schema)
    return schema


def cursor_of(schema: StoredSchema, text: str) -> Cursor:
    """The cursor of a token of a table or dataset. Raises InputError."""
    try:
        return token.decode(text, ccq_id=schema.key)
    except InvalidToken as error:
        kind = "dataset" if isinstance(schema, Schema) else "table"
        raise InputError(
            f"expected the cursor of an earlier answer about {kind} {schema.name!r}, got "
            f"{text[: token.SHOWN_CHARS]!r}",
            parameter="cursor",
        ) from error
