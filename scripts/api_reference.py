"""docs/api, from the signatures and docstrings of what is public."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import galileo
import galileo.client

DIRECTORY = "docs/api"
OWNED = (f"{DIRECTORY}/*.md",)
LINE_CHARS = 96

CLIENT = (
    "Every method blocks until its call is done. `AsyncClient` has the same methods with the same "
    "arguments; there, write `await` before a call and `async for` over an iterator."
)
CONDITIONS = "What a client takes as a query: CQL2 text, or an expression of these."
RESULTS = """
Labels LabelBatches BlockingLabelBatches QueryEnd Receipt Choice QueryExplanation NodeExplanation
NearestResult LatestResult Page Aggregates FeatureSummary Estimate Children Vertex TreeView
DatasetDescription FeatureDescription DatasetVersion PartitionVersion ClusterStatus NodeStatus
MoveProgress CallerIdentity TableRows
"""
CONTINUOUS = """
Ccq CcqInfo Update Window WindowChange Spool SpooledUpdate SpooledWindow SparqlView
"""
PAGES: dict[str, tuple[str, str, str]] = {
    "client": ("The clients", CLIENT, "connect Client AsyncClient Credentials"),
    "results": ("Results of a client", "", RESULTS),
    "continuous": ("Continuous queries", "", CONTINUOUS),
    "conditions": (
        "Conditions of a query",
        CONDITIONS,
        "f Properties Property Condition Template within near during geohash cell window",
    ),
    "schemas": (
        "Schemas and retention",
        "",
        "Schema Feature Table DroppedDataset Retention RetentionReport",
    ),
    "samplers": (
        "Samplers",
        "",
        "sampler sampler_archive SamplerSpec SamplerArchive UploadedSampler RevokedSampler",
    ),
    "files": (
        "Other shapes of results",
        "",
        "to_xarray to_geopandas to_geojson write_geojson write_geoparquet",
    ),
    "cluster": ("Local cluster and errors", "", "LocalCluster GalileoError"),
}
"""A title, an introduction, and names, by file. Names of none are on the page "other"."""
HOMES = ("galileo", "galileo.client", "galileo.query.builder")
STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
WRITTEN = "*Written by `scripts/generate` from the docstrings; do not edit.*"
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example|Yields):$")
ITEM = re.compile(r"^ {4}([\w*`][\w ,.*`]*):(?: (.*))?$")
DOCUMENT = re.compile(r"(?<![\[\w/(])docs/([\w/-]+\.md)")


def files() -> dict[str, str]:
    return {f"{DIRECTORY}/{name}": text for name, text in pages().items()}


def pages() -> dict[str, str]:
    """The text of each page, by its file's name."""
    listed = dict(PAGES)
    named = {name for _, _, names in PAGES.values() for name in names.split()}
    public = {*galileo.__all__, *galileo.client.__all__} - {"__version__"}
    if rest := " ".join(sorted(public - named)):
        listed["other"] = ("Other names", "", rest)
    texts = {f"{file}.md": _page(*page) for file, page in listed.items()}
    return {"README.md": _index(listed), **texts}


def _index(listed: dict[str, tuple[str, str, str]]) -> str:
    lines = ["# API reference", "", WRITTEN, "", "| page | describes |", "|---|---|"]
    for file, (title, _, names) in listed.items():
        links = ", ".join(f"[`{name}`]({file}.md#{name.lower()})" for name in names.split())
        lines.append(f"| [{title}]({file}.md) | {links} |")
    return "\n".join(lines) + "\n"


def _page(title: str, introduction: str, names: str) -> str:
    parts = [f"# {title}", WRITTEN, introduction]
    for name in names.split():
        parts += _entry(name, _public(name))
    return "\n\n".join(part for part in parts if part) + "\n"


def _public(name: str) -> Any:
    for home in HOMES:
        module = importlib.import_module(home)
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(f"{name} is not public any more; drop it from PAGES")


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"## {name}"
    if not callable(value):
        yield f"An instance of [`{type(value).__name__}`](#{type(value).__name__.lower()})."
        return
    yield _signature(name, value)
    yield _markdown(inspect.getdoc(value) or "")
    if name == "AsyncClient":
        yield "Its methods are those of `Client`, as coroutines and asynchronous iterators."
    elif inspect.isclass(value):
        yield from _members(name, value)


def _members(name: str, cls: type) -> Iterator[str]:
    ours = [base for base in cls.__mro__ if base.__module__.startswith("galileo.")]
    found = dict.fromkeys(m for base in ours for m in vars(base) if not m.startswith("_"))
    for member in found:
        value = inspect.getattr_static(cls, member)
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, property):
            yield f"### {name}.{member}"
            returned = _annotation(inspect.signature(value.fget).return_annotation)  # type: ignore[arg-type]
            yield f"```python\n{member}: {returned}\n```"
            yield _markdown(inspect.getdoc(value) or "")
        elif inspect.isfunction(value):
            yield f"### {name}.{member}"
            yield _signature(member, value)
            yield _markdown(inspect.getdoc(value) or "")


def _signature(name: str, value: Any) -> str:
    """The signature in a code block: on one line, or with a line for each parameter."""
    signature = inspect.signature(value)
    parameters = list(_parameters(signature))
    result = _annotation(signature.return_annotation)
    end = f") -> {result}" if result and not inspect.isclass(value) else ")"
    line = f"{name}({', '.join(parameters)}{end}"
    if len(line) > LINE_CHARS:
        line = "\n".join([f"{name}(", *(f"    {one}," for one in parameters), end])
    return f"```python\n{line}\n```"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    keywords = False
    for one in signature.parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.VAR_POSITIONAL:
            keywords = True
        if one.kind is one.KEYWORD_ONLY and not keywords:
            keywords = True
            yield "*"
        star = STARS.get(one.kind.name, "")
        annotation = _annotation(one.annotation)
        text = f"{star}{one.name}" + (f": {annotation}" if annotation else "")
        if one.default is one.empty:
            yield text
        else:
            default = _default(one.default)
            yield f"{text} = {default}" if annotation else f"{text}={default}"


def _default(value: Any) -> str:
    text = repr(value)
    return "..." if text.startswith("<") else text


def _annotation(value: Any) -> str:
    if value is inspect.Signature.empty:
        return ""
    return value if isinstance(value, str) else inspect.formatannotation(value)


def _markdown(doc: str) -> str:
    """A docstring with Google's sections as Markdown."""
    lines: list[str] = []
    section = ""
    for line in doc.splitlines():
        if found := SECTION.match(line):
            section = found[1]
            lines += [f"**{section}**", ""]
            if section == "Example":
                lines.append("```pycon")
        elif section == "Example":
            lines.append(line[4:])
        elif section in ("", "Returns", "Yields"):
            lines.append(line.strip())
        elif item := ITEM.match(line):
            lines.append(f"- `{item[1]}`: {item[2] or ''}".rstrip())
        else:
            lines.append(f"  {line.strip()}".rstrip())
    if section == "Example":
        lines.append("```")
    return DOCUMENT.sub(r"[\g<0>](../\1)", "\n".join(lines))
