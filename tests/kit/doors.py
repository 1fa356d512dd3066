"""The doors of a cluster, as case files use them: the clients, the command and HTTP."""

from __future__ import annotations

import csv
import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pandas as pd
import pyarrow as pa
from case_files import STORING, NotOffered, Question, Refused, Row, written
from click.testing import CliRunner

import galileo
from galileo.cli.main import main
from galileo.client.descriptions import DatasetDescription
from galileo.client.pages import Page
from galileo.errors import GalileoError

TIMEOUT_S = 60.0
WAIT = "200ms"
"""Readers of notifications wait for so long."""


@dataclass(frozen=True)
class Verb:
    """What asks a question through each door.

    Attributes:
        method: of the clients.
        command: words before the name of the dataset, table or channel.
        path: of the API, with the format of the answer; "" where it offers nothing like it.
        is_value: whether the answer is one value with members, not rows.
    """

    method: str
    command: str
    path: str = ""
    is_value: bool = False


VERBS: Mapping[str, Verb] = {
    "dataset": Verb("create_dataset", "dataset create"),
    "extend": Verb("add_features", "dataset add-feature"),
    "ingest": Verb("ingest", "ingest", "/collections/{}/items", is_value=True),
    "select": Verb("select", "read", "/collections/{}/items?f=ndjson"),
    "read": Verb("read", "read"),
    "labels": Verb("query", "query"),
    "count": Verb("count", "count"),
    "page": Verb("select_page", "page", "/collections/{}/items?f=geojson"),
    "aggregate": Verb("aggregate", "aggregate", "/collections/{}/cells?f=json"),
    "latest": Verb("latest", "latest", "/collections/{}/latest?f=json"),
    "nearest": Verb("nearest", "nearest"),
    "summary": Verb("summarise", "stats", "/collections/{}/summary?f=json", is_value=True),
    "estimate": Verb("estimate", "estimate", "/collections/{}/estimate?f=json", is_value=True),
    "explain": Verb("explain", "explain", "/collections/{}/explain?f=json", is_value=True),
    "children": Verb("children", "graph children"),
    "describe": Verb("describe", "dataset show", "/collections/{}/summary?f=json"),
    "table": Verb("create_table", "table create"),
    "upsert": Verb("upsert", "table upsert", is_value=True),
    "rows": Verb("table", "table show"),
    "delete": Verb("delete", "table delete", is_value=True),
    "channel": Verb("create_channel", "channel create", "/channels/{}", is_value=True),
    "subscribe": Verb("subscribe", "channel subscribe", "/channels/{}/subscriptions", True),
    "unsubscribe": Verb("unsubscribe", "channel unsubscribe", is_value=True),
    "notifications": Verb(
        "fetch_notifications",
        f"channel follow --wait {WAIT}",
        "/channels/{}/brokers/{}/notifications?limit=1000",
    ),
    "ccq": Verb("submit", "ccq submit", "/ccqs", is_value=True),
}
TABLES = ("rows", "labels", "groups", "observations", "children", "features")
"""Members of JSON answers that are rows."""


def rows_of(verb: Verb, answer: Any) -> Sequence[Row]:
    """The rows of an answer: a result of a client, or a JSON document."""
    if verb.is_value or answer is None:
        return [answer if isinstance(answer, dict) else _members(answer)]
    match answer:
        case int():
            return [{"count": answer}]
        case {"columns": dict() as columns}:
            names = ["geohash" if name == "cell" else name for name in columns]
            rows = zip(*columns.values(), strict=True)
            return [dict(zip(names, row, strict=True)) for row in rows]
        case {"notifications": executions}:
            return [
                {"subscription": name, **execution["features"][number]["properties"]}
                for execution in executions
                for match in execution["matches"]
                for number in match["rows"]
                for name in match["subscriptions"]
            ]
        case {"features": features, **others}:
            return [{**others, **feature, **feature.get("properties", {})} for feature in features]
        case dict():
            return next((answer[name] for name in TABLES if name in answer), [answer])
        case list():
            return [row for part in answer for row in rows_of(verb, part)]
        case galileo.Schema():
            return [_members(feature) for feature in answer.features]
        case DatasetDescription():
            return [_members(answer) | _members(feature) for feature in answer.features]
        case Page():
            answer = answer.table
    table: pa.Table = answer if isinstance(answer, pa.Table) else answer.to_arrow()
    return list(table.to_pylist())


def _members(value: Any) -> dict[str, Any]:
    names = (name for name in dir(value) if not name.startswith("_"))
    return {name: member for name in names if not callable(member := getattr(value, name))}


# --- what is written as what is asked ------------------------------------------------------------


def _split(text: str) -> list[str]:
    return text.split(",") if text else []


def _statistics(text: str) -> dict[str, list[str]]:
    """Of "t:mean,t:max": the statistics of each feature."""
    pairs = [pair.split(":") for pair in _split(text)]
    return {name: [pair[-1] for pair in pairs if pair[0] == name] for name, *_ in pairs}


def _statistic_words(feature: str, statistic: str) -> list[str]:
    if statistic[1:].isdigit():
        return ["--percentile", statistic[1:], feature]
    return [f"--{statistic}", feature]


def _sampler(text: str) -> galileo.SamplerSpec:
    """Of "uniform" or "uniform:fraction=0.5"."""
    name, _, option = text.partition(":")
    key, _, value = option.partition("=")
    return galileo.sampler(name, **({key: json.loads(value)} if key else {}))


def _lookup(text: str) -> dict[str, str]:
    """Of "TABLE=:NAME"."""
    table, _, parameter = text.partition("=")
    return {table: parameter}


ARGUMENTS: Mapping[str, Callable[[str], Any]] = {
    "columns": _split,
    "by": lambda text: _split(text) if "," in text else text,
    "order": _split,
    "statistics": _statistics,
    "quantiles": lambda text: [float(part) for part in _split(text)],
    "bins": lambda text: [float(part) for part in _split(text)] if "," in text else int(text),
    "keys": lambda text: _typed(_split(text)),
    "sampler": _sampler,
    "lookup": _lookup,
    **dict.fromkeys(("limit", "k", "geohash_precision"), int),
    **dict.fromkeys(("latitude", "longitude", "within_m"), float),
}
"""Options of questions as arguments of Python; others are texts."""


def _text(cell: str) -> str:
    return "" if cell == "null" else cell.strip("'")


def _typed(cells: Sequence[str]) -> list[Any]:
    """The values of a column, which are numbers or truth values if all cells are."""
    for kind in (int, float, {"true": True, "false": False}.__getitem__):
        try:
            return [None if cell == "null" else kind(cell) for cell in cells]
        except (KeyError, ValueError):
            continue
    return [None if cell == "null" else _text(cell) for cell in cells]


def _columns(question: Question) -> dict[str, list[Any]]:
    names, *rows = question.table
    return {name: _typed([row[n] for row in rows]) for n, name in enumerate(names)}


def _csv(question: Question) -> str:
    lines = io.StringIO()
    csv.writer(lines).writerows([_text(cell) for cell in row] for row in question.table)
    return lines.getvalue()


def _feature(text: str) -> galileo.Feature:
    return galileo.Feature(**_feature_members(text))


def _feature_members(text: str) -> dict[str, Any]:
    """Of "qc::int:1-good,4-bad"."""
    name, unit, kind, flags = (*text.split(":"), "", "", "")[:4]
    pairs = (flag.partition("-") for flag in _split(flags))
    meanings = {int(value): meaning for value, _, meaning in pairs}
    return {"name": name, "unit": unit, "type": kind or "float", "flags": meanings}


def _feature_word(text: str) -> str:
    """A feature as the command takes it, which has flags in JSON."""
    return json.dumps(_feature_members(text)) if text.count(":") == 3 else text


# --- doors ---------------------------------------------------------------------------------------


class ClientDoor:
    """A client of Python.

    Args:
        name: of its class.
        call: calls a method by its name, and waits for the result.
    """

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.name = name
        self._call = call

    def ask(self, question: Question) -> Sequence[Row]:
        verb = VERBS[question.verb]
        try:
            options = {
                option: ARGUMENTS.get(option, str)(value)
                for option, value in question.options.items()
            }
            values, options = self._arguments(question, options)
            return rows_of(verb, self._call(verb.method, *values, **options))
        except GalileoError as error:
            raise Refused(error.kind, error.message, error.details) from error

    def _arguments(
        self, question: Question, options: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments of the method that asks a question."""
        name, where = question.name, question.where
        match question.verb:
            case "dataset":
                return [galileo.Schema(name, map(_feature, question.words), **options)], {}
            case "extend":
                return [name, [_feature(word) for word in question.words]], {}
            case "table":
                columns: dict[str, Any] = dict(word.split(":") for word in question.words)
                return [galileo.Table(name, columns, _split(options["key"]))], {}
            case "channel":
                return [galileo.Channel(name, template=where, **options)], {}
            case "delete" | "unsubscribe":
                return [name, options["keys"]], {}
            case "ingest" | "upsert" | "subscribe":
                return [name, pa.table(_columns(question))], options
            case "read":
                return [self._call("query", name, where)], options
            case "rows" | "describe" | "children" | "notifications":
                return [name, *question.words], options
        return [name, where], options


OPTIONS = {
    "k": "-k",
    "within_m": "--within",
    "geohash_precision": "--precision",
    "time_bucket": "--bucket",
    "keys": "--key",
}
"""Options of the command that have other names."""


class CommandDoor:
    """The command `galileo` with --json, in this process.

    Args:
        node: address of a node.
        directory: of files to store.
    """

    name = "the command"

    def __init__(self, node: str, directory: Path) -> None:
        self._node = node
        self._directory = directory

    def ask(self, question: Question) -> Sequence[Row]:
        verb = VERBS[question.verb]
        words = ["--node", self._node, "--json", *verb.command.split(), question.name]
        if question.verb in STORING:
            file = self._directory / f"{question.name}.csv"
            file.write_text(_csv(question), encoding="utf-8")
            words.append(str(file))
        repeated = {"dataset": ["--feature"], "table": ["--column"]}.get(question.verb, [])
        given = [*question.words]
        if question.verb in ("dataset", "extend"):
            given = [_feature_word(word) for word in given]
        words += [part for word in given for part in (*repeated, word)]
        for option, value in question.options.items():
            words += _words(question.verb, option, value)
        words += ["--", question.where] if question.where else []
        done = CliRunner().invoke(main, words)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        if done.exit_code:
            assert (done.exit_code, done.stdout) == (2, ""), "the exit status of a wrong input"
            error = json.loads(done.stderr.splitlines()[-1])["error"]
            raise Refused(error["kind"], error["message"], error["details"])
        if question.verb == "notifications":
            lines = map(json.loads, done.stdout.splitlines())
            return [{**line, **line["observation"]} for line in lines if "observation" in line]
        return rows_of(verb, json.loads(done.stdout))


def _words(verb: str, option: str, value: str) -> list[str]:
    """An option of a question as words of the command."""
    match verb, option:
        case (("delete" | "unsubscribe"), "keys"):
            return value.split(",")
        case "channel", "dataset":
            return [value]
        case _, "statistics":
            pairs = [pair.split(":") for pair in value.split(",")]
            return [word for name, kind in pairs for word in _statistic_words(name, kind)]
        case ("aggregate", "by") | ("table", "key") | ("channel", "columns"):
            name = option.removesuffix("s")
            return [word for part in value.split(",") for word in (f"--{name}", part)]
        case _, "sampler":
            name, _, option = value.partition(":")
            return ["--sampler", name, *(("--option", option) if option else ())]
        case "summary", "bins":
            return ["--edges" if "," in value else "--bins", value]
    return [OPTIONS.get(option, f"--{option.replace('_', '-')}"), value]


class HttpDoor:
    """The API of a gateway.

    Args:
        url: of the gateway.
        creating: creates datasets and tables, which the API does not, and fills tables.
    """

    name = "HTTP"

    def __init__(self, url: str, creating: ClientDoor) -> None:
        self._url = url
        self._creating = creating

    def ask(self, question: Question) -> Sequence[Row]:
        verb, options = VERBS[question.verb], dict[str, Any](question.options)
        path = verb.path.format(question.name, *question.words)
        match question.verb:
            case "dataset" | "extend" | "table" | "upsert" | "delete" | "unsubscribe":
                return self._creating.ask(question)
            case "channel" | "ccq":
                for name in options.keys() & {"columns", "lookup"}:
                    options[name] = ARGUMENTS[name](options[name])
                if question.verb == "channel":
                    return rows_of(
                        verb, self._send(path, "PUT", options | {"template": question.where})
                    )
                asked = options | {"dataset": question.name, "query": question.where}
                return rows_of(verb, self._send(path, "POST", asked))
            case "ingest" | "subscribe":
                is_csv = question.verb == "ingest"  # In CSV an empty text is none.
                rows = _csv(question) if is_csv else pa.table(_columns(question)).to_pylist()
                receipt = self._send(path, "POST", rows)
                stored = receipt.get("observations", receipt.get("subscriptions"))
                return [{"rows": stored, "duplicate_rows": receipt["duplicates"]}]
            case "aggregate":
                keys = dict(key.partition(":")[::2] for key in _split(options.pop("by", "")))
                if not keys or keys.keys() - {"cell", "window"}:
                    raise NotOffered
                options |= {"precision" if key == "cell" else key: keys[key] for key in keys}
                path = path if "cell" in keys else path.replace("cells", "series")
        if not path or options.keys() & {"columns", "order_by"}:
            raise NotOffered
        if question.where:
            options["filter"] = question.where
        answer = self._send(f"{path}&{urlencode(options)}")
        if question.verb in ("aggregate", "latest"):
            self._check_formats(f"{path}&{urlencode(options)}", answer["columns"])
        return answer if isinstance(answer, list) else rows_of(verb, answer)

    def _check_formats(self, path: str, columns: dict[str, list[Any]]) -> None:
        """Makes sure that CSV and Arrow have the columns that JSON has."""
        texts: Any = {
            name: str for name in columns if any(isinstance(v, str) for v in columns[name])
        }
        body = io.BytesIO(self._read(path.replace("f=json", "f=csv")))
        frame = pd.read_csv(body, dtype=texts, float_precision="round_trip").astype(object)
        assert frame.where(frame.notna(), None).to_dict("list") == columns
        table = pa.ipc.open_file(self._read(path.replace("f=json", "f=arrow"))).read_all()
        arrow = {name: [*map(written, values)] for name, values in table.to_pydict().items()}
        assert arrow == {name: [*map(written, values)] for name, values in columns.items()}
        if "/latest?" in path:
            features = self._send(path.replace("f=json", "f=geojson"))["features"]
            places = [feature["geometry"]["coordinates"] for feature in features]
            assert places == [*map(list, zip(columns["longitude"], columns["latitude"]))]  # noqa: B905

    def _send(self, path: str, method: str = "GET", body: Any = "") -> Any:
        """The JSON value of an answer, or the values of its lines."""
        answer = self._read(path, method, body)
        if "ndjson" in path:
            return [json.loads(line) for line in answer.splitlines()]
        return json.loads(answer)

    def _read(self, path: str, method: str = "GET", body: Any = "") -> bytes:
        text = body if isinstance(body, str) else json.dumps(body)
        headers = {"Content-Type": "text/csv" if text is body else "application/json"}
        request = urllib.request.Request(
            self._url + path, text.encode() or None, headers if text else {}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                return bytes(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                problem = json.loads(error.read())
            kind = problem.get("kind", str(error.code))
            raise Refused(kind, problem["detail"], problem.get("details", {})) from error
