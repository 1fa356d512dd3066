"""The table of calls of docs/calls.md, from the signatures and docstrings of the client."""

from __future__ import annotations

import inspect
import re

import api_reference
from generated_files import markdown_table, replace_part

from galileo.client import AsyncClient, Client

PAGE = "docs/calls.md"
OWNED = (PAGE,)
MANY = re.compile(r"^(Iterator|list|tuple)\[(\w+)(?:, \.\.\.)?\]$")
SENTENCE = re.compile(r"(.*?)(?:[.;](?= |$)|$)")
PAGE_OF = {
    name: file for file, (_, _, names) in api_reference.PAGES.items() for name in names.split()
}


def files() -> dict[str, str]:
    rows = [[_call(name), _returned(name), _purpose(name)] for name in calls()]
    table = markdown_table(["call", "returns", "purpose"], *rows)
    return {PAGE: replace_part(PAGE, "calls", table)}


def calls() -> list[str]:
    """Names of all calls, in the order of the classes that `AsyncClient` is made of."""
    names = (name for cls in reversed(AsyncClient.__mro__) for name in vars(cls))
    return [n for n in dict.fromkeys(names) if hasattr(Client, n) and not n.startswith("_")]


def _call(name: str) -> str:
    """The call with its arguments, without their types."""
    signature = inspect.signature(getattr(Client, name))
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in list(signature.parameters.values())[1:]
    ]
    shown = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    text = str(shown).replace("'", '"')
    return f"[`{name}`](api/client.md#client{name})`{text}`"


def _returned(name: str) -> str:
    annotation = str(inspect.signature(getattr(Client, name)).return_annotation)
    if many := MANY.match(annotation):
        return f"{many[1].lower()} of {_type(many[2])}"
    return (
        " or ".join(_type(part) for part in annotation.split(" | ")) if annotation != "None" else ""
    )


def _type(name: str) -> str:
    return f"[`{name}`](api/{PAGE_OF[name]}.md#{name.lower()})" if name in PAGE_OF else f"`{name}`"


def _purpose(name: str) -> str:
    first = (inspect.getdoc(getattr(Client, name)) or "").partition("\n\n")[0].replace("\n", " ")
    [sentence] = SENTENCE.match(first).groups()  # type: ignore[union-attr]
    return str(sentence)
