"""The tables of the pages say what the code says, no more and no less."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pkgutil
import re
import tomllib
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises

from galileo import config, errors
from galileo.cli.output import exit_status
from galileo.client import Client
from galileo.dht.topology import Group, NodeInfo, Topology
from galileo.formats.detection import READERS
from galileo.gateway import edr_requests, parameters
from galileo.gateway.ccqs import SUBMISSION
from galileo.gateway.channel_documents import DEFINITION
from galileo.gateway.routes import ROUTES
from galileo.gateway.subscription_bodies import FORMATS

ROOT = Path(__file__).parents[3]
TYPES: dict[str, Any] = {
    "text": str,
    "integer": int,
    "number": float,
    "true or false": bool,
    "list": tuple[str, ...],
    "table": Mapping[str, str],
}
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1}

Row = list[str]


def code(cell: str) -> str:
    """What stands between backticks."""
    assert cell.startswith("`"), cell
    assert cell.endswith("`"), cell
    return cell[1:-1]


def parse_default(text: str) -> Any:
    value = tomllib.loads(f"value = {text}")["value"]
    return tuple(value) if isinstance(value, list) else value


def documented(rows: list[Row]) -> dict[str, tuple[type, Any]]:
    """Type and default of each key."""
    return {
        code(key): (TYPES[kind], parse_default(code(default))) for key, kind, default, _, _ in rows
    }


def coded(section: type) -> dict[str, tuple[type, Any]]:
    kinds = typing.get_type_hints(section)
    made = section()
    return {one.name: (kinds[one.name], getattr(made, one.name)) for one in fields(section)}


@pytest.mark.parametrize("section", config.SECTIONS)
def test_configuration_table_has_every_key(section: str, page: Callable[[str], Any]) -> None:
    [rows] = page("docs/configuration.md").tables(f"[{section}]")
    assert documented(rows) == coded(config.SECTIONS[section])
    assert all(meaning for *_, meaning in rows)


def test_configuration_page_has_every_section(page: Callable[[str], Any]) -> None:
    named = [h for h in page("docs/configuration.md").headings if h.startswith("[")]
    assert named == [f"[{section}]" for section in (*config.SECTIONS, "cluster")]


def test_configuration_table_names_units(page: Callable[[str], Any]) -> None:
    units = {
        "calls_per_s": "calls a second",
        "_per_s": "bytes a second",
        "_s": "seconds",
        "_bytes_max": "bytes",
        "_mb": "MB",
    }
    for section in config.SECTIONS:
        [rows] = page("docs/configuration.md").tables(f"[{section}]")
        for key, _, _, unit, _ in rows:
            suffix = next((suffix for suffix in units if code(key).endswith(suffix)), None)
            assert suffix is None or unit == units[suffix], key


def test_configuration_table_of_the_cluster_is_complete(page: Callable[[str], Any]) -> None:
    cluster, node = page("docs/configuration.md").tables("[cluster]")
    known = sorted(code(row[0]) for row in cluster)
    with raises(errors.ConfigError, key="no such key", known=known):
        config.from_dict({"cluster": {"no such key": 1}})
    assert {code(row[0]) for row in node} == {one.name for one in dataclasses.fields(NodeInfo)}
    assert {one.name for one in dataclasses.fields(Group)} == {"name", "nodes"}
    made = Topology("c", (Group("g", (NodeInfo("n", "127.0.0.1:1"),)),), (("", 0),))
    defaults = {code(row[0]): row[2] for row in cluster}
    assert code(defaults["partitions_per_group"]) == str(made.partitions_per_group)
    assert code(defaults["replicas"]) == str(made.replicas)
    for one in dataclasses.fields(NodeInfo):
        default = json.dumps(one.default) if isinstance(one.default, bool | str) else one.default
        wanted = "" if default is dataclasses.MISSING else f"`{default}`"
        assert {code(row[0]): row[2] for row in node}[one.name] == wanted


def test_configuration_by_environment_and_flags_works_as_documented(
    page: Callable[[str], Any], tmp_path: Path
) -> None:
    text = page("docs/configuration.md").text
    _, least = next(page("docs/configuration.md").blocks("toml"))
    file = tmp_path / "node-1.toml"
    file.write_text(least)
    name, value = re.findall(r"`(GALILEO_\w+)=(\w+)`", text)[0]
    assert config.load(file, environment={name: value}).limits.ccqs_max == 500
    [flag] = re.findall(r"`--set ([^`]+)`", text)
    assert config.load(file, environment={}, overrides=[flag]).limits.ccqs_max == 500
    assert config.load(file, environment={}).limits.ccqs_max != 500


def error_rows(page: Any) -> list[tuple[str, Row]]:
    """Every row with its section's text."""
    found = []
    for heading in page.headings:
        for rows in page.tables(heading) if heading != "Details" else []:
            found += [(page.section(heading), row) for row in rows]
    return found


def test_errors_page_has_every_kind_once(page: Callable[[str], Any]) -> None:
    rows = [row for _, row in error_rows(page("docs/errors.md"))]
    kinds = [code(row[0]) for row in rows]
    assert sorted(kinds) == sorted(errors.by_kind())
    for kind, name, meaning, advice in rows:
        assert errors.by_kind()[code(kind)].__name__ == code(name)
        assert meaning
        assert advice


def test_errors_page_has_every_kind_in_its_branch(page: Callable[[str], Any]) -> None:
    for text, row in error_rows(page("docs/errors.md")):
        cls = errors.by_kind()[code(row[0])]
        stated = re.search(r"Branch `(\w+)`, exit status (\d+)", text)
        if stated is None:
            assert cls is errors.GalileoError
            continue
        assert issubclass(cls, getattr(errors, stated[1]))
        own = re.search(r"with exit status (\d+)", row[2])
        assert exit_status(cls("")) == int(own[1] if own else stated[2])


def test_calls_page_has_every_call_of_the_client(page: Callable[[str], Any]) -> None:
    [rows] = page("docs/calls.md").tables("All calls")
    calls = {name for name in dir(Client) if not name.startswith("_")}
    assert {re.findall(r"`(\w+)`", row[0])[0] for row in rows} == calls
    assert all(purpose for *_, purpose in rows)


def test_readme_and_index_name_every_file_format(page: Callable[[str], Any]) -> None:
    for name in ("README.md", "docs/README.md"):
        assert [r.title for r in READERS.values() if r.title not in page(name).text] == []


def test_architecture_layers_equal_the_import_contract(page: Callable[[str], Any]) -> None:
    [rows] = page("ARCHITECTURE.md").tables("Layers")
    shown: dict[int, list[str]] = {}
    for number, package, _ in rows:
        shown.setdefault(int(number), []).append(code(package))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    [contract] = [one for one in contracts if one["type"] == "layers"]
    layers = [sorted(layer.split(" | ")) for layer in contract["layers"]]
    assert [sorted(packages) for _, packages in sorted(shown.items())] == layers


def quantity(text: str) -> float:
    """`64 MiB` or `1,024`, as a number."""
    number, _, unit = text.replace(",", "").partition(" ")
    return float(number) * UNITS.get(unit, 1)


def value_of(name: str) -> Any:
    """A constant, or the default of a field of options."""
    value = pkgutil.resolve_name(name)
    if inspect.ismemberdescriptor(value):
        fields = dataclasses.fields(value.__objclass__)
        [value] = [field.default for field in fields if field.name == value.__name__]
    return value


def test_limits_page_equals_the_code(page: Callable[[str], Any]) -> None:
    [rows] = page("docs/dev/limits.md").tables("Constants")
    assert len(rows) > 10
    for what, limit, where in rows:
        assert value_of(code(where)) == quantity(limit), what


def test_http_page_lists_the_paths_and_parameters_of_the_gateway(
    page: Callable[[str], Any],
) -> None:
    http = page("docs/http.md")
    [paths] = http.tables("Paths")
    assert [(code(path), methods.split(", ")) for path, methods, _ in paths] == [
        (route.path, [*route.methods]) for route in ROUTES
    ]
    [listed] = http.tables("Parameters of items")
    assert [code(name) for name, _ in listed[:-1]] == [*parameters.ITEMS]
    [of_groups] = http.tables("Groups by cell and time")
    assert [code(name) for name, _ in of_groups[:-1]] == [
        name for name in parameters.CELLS if name not in parameters.FILTERS
    ]
    queries, common, _ = http.tables("Queries by place (EDR)")
    assert [code(name).partition("/")[0] for name, *_ in queries] == [
        *edr_requests.QUERIES,
        "locations",
    ]
    assert {code(name) for name, _ in common} == {"parameter-name", "crs", "f"}
    submission, of_labels = http.tables("Continuous queries")
    assert [code(name) for name, _ in submission] == [*SUBMISSION]
    assert [code(name) for name, _ in of_labels] == [*parameters.CCQ_LABELS]
    [definition] = http.tables("Channels")
    [bodies] = http.tables("Subscriptions")
    [of_notifications] = http.tables("Notifications")
    assert [code(name) for name, _ in definition] == [*DEFINITION]
    assert set(re.findall(r"`([a-z/-]+)`", " ".join(row[0] for row in bodies))) == {*FORMATS}
    assert [code(name) for name, _ in of_notifications] == [*parameters.NOTIFICATIONS]
