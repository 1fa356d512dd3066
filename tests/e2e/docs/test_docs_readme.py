"""What the pages show must run; what they link to must exist."""

from __future__ import annotations

import json
import re
import shlex
import threading
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click
import duckdb
import pytest
from parameters import keep_quick

import galileo
from galileo import config
from galileo.cli.main import main
from galileo.cli.session import Session
from galileo.sampler_runtime import unavailable_reason

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "plugins/*/README.md")
    for path in ROOT.glob(pattern)
)
WITH_CLUSTER = [
    "docs/samplers.md",
    "docs/client.md",
    "docs/exploring.md",
    "docs/results.md",
    "docs/continuous.md",
    "docs/windows.md",
    "docs/input.md",
    "docs/schema-design.md",
    "docs/tables.md",
    "docs/corrections.md",
    "docs/channels.md",
]
ALONE = ["docs/cluster.md", "docs/errors.md", "docs/sandbox.md"]
CONFIGURATIONS = ["docs/cluster.md", "docs/configuration.md"]
DOCUMENTED_NODE = "127.0.0.1:7701"
PICTURES_BYTES_MAX = 1_450_000
LONGEST = "docs/channels.md"

_FILE = re.compile(r"# (\w+\.py)\n")
"""The first line of code that a page has its reader write into a file."""
_SHELL = "();<>|&\n"
_MODULE = re.compile(r"`([\w/]+\.py)`")


def run(page: Any, *, node: str = DOCUMENTED_NODE) -> dict[str, Any]:
    """Runs a page's Python in one namespace; a traceback names the page's own lines."""
    names: dict[str, Any] = {"__name__": "documented"}
    try:
        for line, code in page.blocks("python"):
            if file := _FILE.match(code):
                Path(file[1]).write_text(code, encoding="utf-8")
            padded = "\n" * line + code.replace(DOCUMENTED_NODE, node)
            exec(compile(padded, str(ROOT / page.name), "exec"), names)
    finally:
        for client in [value for value in names.values() if isinstance(value, galileo.Client)]:
            client.close()
    assert len(names) > 2, f"{page.name} shows no Python"
    return names


def test_readme_code_runs_and_finds_labels(
    page: Callable[[str], Any],
    evaluator: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GALILEO_EVALUATOR__DIRECTORY", evaluator["directory"])
    names = run(page("README.md"))
    assert len(names["labels"]) > 10
    assert len(names["update"].labels) > 0
    assert names["update"].token != names["ccq"].token
    assert re.search(r" [1-9]\d* observations$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    "name", keep_quick(WITH_CLUSTER, *(page for page in WITH_CLUSTER if page != LONGEST))
)
def test_page_code_runs_against_a_cluster(
    name: str,
    page: Callable[[str], Any],
    cluster: galileo.LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name == "docs/samplers.md" and unavailable_reason() is not None:
        pytest.skip(f"what the page sends cannot be contained here: {unavailable_reason()}")
    monkeypatch.chdir(tmp_path)
    run(page(name), node=cluster.addresses[0])


@pytest.fixture
def posts() -> Iterator[tuple[str, list[str]]]:
    """A webhook of this machine: its address, and the texts that were posted to it."""
    texts: list[str] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            texts.append(json.loads(body)["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Webhook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", texts
        finally:
            server.shutdown()
            thread.join()


def test_cookbook_code_runs_and_posts_its_alert(
    page: Callable[[str], Any],
    cluster: galileo.LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    posts: tuple[str, list[str]],
) -> None:
    address, texts = posts
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALERT_WEBHOOK", address)
    cookbook = page("docs/cookbook.md")
    run(cookbook, node=cluster.addresses[0])
    assert sorted("\n".join(texts).split("\n"))[0].startswith("b2: 268.9 K at 2024-01-10")
    [(_, sql)] = cookbook.blocks("sql")
    relation = duckdb.sql(sql)
    assert relation is not None
    assert relation.fetchall()


@pytest.mark.parametrize("name", ALONE)
def test_page_code_runs_alone(name: str, page: Callable[[str], Any]) -> None:
    run(page(name))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_page_configurations_load(name: str, page: Callable[[str], Any]) -> None:
    loaded = [config.from_dict(tomllib.loads(text)) for _, text in page(name).blocks("toml")]
    assert loaded
    assert all(one.node.name in one.topology.by_name for one in loaded)


def commands(block: str) -> Iterator[list[str]]:
    """The simple commands of a piece of shell; quoted texts may span lines."""
    lexer = shlex.shlex(block.replace("\\\n", " "), posix=True, punctuation_chars=_SHELL)
    lexer.whitespace, lexer.whitespace_split = " \t", True
    words: list[str] = []
    for token in [*lexer, "\n"]:
        if set(token) <= set(_SHELL):
            yield words
            words = []
        else:
            words.append(token)


def parse(arguments: list[str]) -> None:
    """Parses the arguments of `galileo` as the command line would, without running anything."""
    context = click.Context(main, info_name="galileo", obj=Session({"nodes": [DOCUMENTED_NODE]}))
    command: click.Command = main
    while isinstance(command, click.Group):
        _, arguments, _ = command.make_parser(context).parse_args(list(arguments))
        if command.invoke_without_command and not arguments:
            return
        name, found, arguments = command.resolve_command(context, arguments)
        assert name is not None
        assert found is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
    make_files(command, arguments, context)
    command.make_context(context.info_name, list(arguments), parent=context.parent)


def make_files(command: click.Command, arguments: list[str], context: click.Context) -> None:
    """Makes the files that must exist for the command to take them."""
    given, _, _ = command.make_parser(context).parse_args(list(arguments))
    for parameter in command.params:
        if isinstance(parameter.type, click.Path) and parameter.type.exists:
            value = given.get(parameter.name)
            files = value if isinstance(value, tuple | list) else [value]
            for file in (one for one in files if isinstance(one, str)):
                if parameter.type.file_okay:
                    Path(file).parent.mkdir(parents=True, exist_ok=True)
                    Path(file).touch()
                else:
                    Path(file).mkdir(parents=True, exist_ok=True)


def test_commands_of_pages_parse(
    page: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _, block in (block for name in PAGES for block in page(name).blocks("console")):
        for words in filter(None, commands(block)):
            if Path(words[0]).name == "galileo":
                # Files such as /etc/galileo/secrets.toml are made below the temporary directory.
                parse([word.removeprefix("/") for word in words[1:]])
            scripts = [word for word in words if word.startswith("scripts/")]
            assert all((ROOT / script).is_file() for script in scripts), words


@pytest.mark.parametrize(
    "wrong",
    [
        "galileo qury nam",
        "galileo query",
        "galileo query nam --limits 5",
        "galileo ccq submit nam --compression zip",
    ],
)
def test_command_check_notices_a_wrong_command(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [words] = filter(None, commands(wrong))
    with pytest.raises(click.UsageError):
        parse(words[1:])


def test_command_check_splits_shell() -> None:
    text = 'up --nodes 3 &\nquery "a > 1\n AND b" \\\n  --json | jq .x > out\n'
    assert list(filter(None, commands(text))) == [
        ["up", "--nodes", "3"],
        ["query", "a > 1\n AND b", "--json"],
        ["jq", ".x"],
        ["out"],
    ]


def test_links_of_pages_exist(page: Callable[[str], Any]) -> None:
    dead = []
    links = [(name, link) for name in PAGES for link in page(name).links]
    for name, link in links:
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        exists = target.exists()
        if exists and anchor:
            exists = anchor in page(str(target.resolve().relative_to(ROOT))).anchors
        if not exists:
            dead.append((name, link))
    assert dead == []


def test_modules_of_pages_exist(page: Callable[[str], Any]) -> None:
    places = [ROOT, ROOT / "galileo", ROOT / "tests" / "kit" / "simulator"]
    absent = [
        (name, module)
        for name in PAGES
        for module in _MODULE.findall(page(name).prose)
        if not any((place / module).is_file() for place in places)
    ]
    assert absent == []


def test_documentation_index_lists_every_page(page: Callable[[str], Any]) -> None:
    listed = {link for link in page("docs/README.md").links if not link.startswith("..")}
    there = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    there |= {f"dev/{path.name}" for path in (ROOT / "docs" / "dev").glob("*.md")}
    there |= {f"notebooks/{path.name}" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    assert there | {"dev/decisions/README.md", "api/README.md", "commands/README.md"} == listed


def test_pictures_are_used_and_small(page: Callable[[str], Any]) -> None:
    pictures = list((ROOT / "docs").glob("**/img/*"))
    shown = {link.rpartition("/")[2] for name in PAGES for link in page(name).links}
    assert [path.name for path in pictures if path.name not in shown] == []
    assert sum(path.stat().st_size for path in pictures) < PICTURES_BYTES_MAX
    drawn = [path.read_text() for path in pictures if path.suffix == ".svg"]
    assert drawn
    assert [svg for svg in drawn if "@font-face" in svg or "https://cdn" in svg] == []


def test_decisions_are_listed(page: Callable[[str], Any]) -> None:
    there = {path.name for path in (ROOT / "docs" / "dev" / "decisions").glob("0*.md")}
    assert there == set(page("docs/dev/decisions/README.md").links)


def test_public_names_are_explained_in_a_page(page: Callable[[str], Any]) -> None:
    text = "\n".join(page(name).text for name in ("README.md", "docs/api/README.md", *WITH_CLUSTER))
    names = [name for name in galileo.__all__ if not name.startswith("__")]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
