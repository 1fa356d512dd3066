"""Wrong commands, and what their errors say: the problem first, what was expected, what to do."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

import galileo
from galileo.cli.main import main

HEAD = "latitude,longitude,time,temperature,station\n"
ROW = "40,-105,2014-03-01T06:00:00Z,290,KDEN\n"
FILES = {
    "good.csv": HEAD + ROW,
    "empty.csv": "",
    "junk.bin": "\x01\x02\x00junk",
    "time.csv": HEAD + ROW.replace("2014-03-01T06:00:00Z", "yesterday"),
    "place.csv": HEAD + ROW.replace("40,", "95,"),
    "text.csv": HEAD + ROW.replace("290", "warm"),
    "timeless.csv": "latitude,longitude,temperature,station\n40,-105,290,KDEN\n",
    "others.csv": "latitude,longitude,time,humidity\n40,-105,2014-03-01T06:00:00Z,3\n",
    "ragged.csv": f"{HEAD}40,-105\n",
    "buoys.csv": "latitude,longitude,time,id,waves\n40,-105,2014-03-01T06:00:00Z,b1,3\n",
    "waves.csv": "latitude,longitude,time,waves\n40,-105,2014-03-01T06:00:00Z,3.5\n",
    "sampler.py": "class Sampler:\n    pass\n",
    "broken.toml": "[node\n",
    "keys.toml": '[node]\nport = "x"\n',
    "section.toml": "[nod]\nx = 1\n",
    "token": "glt_made-up\n",
}
"""Written for the commands; `{files}` is their directory."""
LEAKS = re.compile(
    r"Traceback|__init__|object at 0x|NoneType|\$\.|at \$|\[['\"]|_pb2|Errno|Error\(|\(char |=None"
)
"""What belongs to Python or to the wire, and to no message."""


@dataclass(frozen=True)
class World:
    """What the commands go wrong on; `names` are what they may name in braces."""

    client: galileo.Client
    dataset: str
    names: dict[str, str]

    def run(self, command: str) -> Result:
        words = shlex.split(command.format(**self.names))
        given = [] if "--node" in words else ["--node", self.names["node"]]
        return CliRunner().invoke(main, [*given, "--timeout", "10s", *words])


@pytest.fixture(scope="module")
def world(
    client: galileo.Client,
    cluster: galileo.LocalCluster,
    fresh_name: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    name, files = fresh_name("commands"), tmp_path_factory.mktemp("commands")
    features = [galileo.Feature("temperature", "K"), galileo.Feature("station", type="text")]
    client.create_dataset(galileo.Schema(name, features))
    for file, content in FILES.items():
        (files / file).write_text(content, encoding="utf-8")
    client.ingest(name, pd.read_csv(files / "good.csv"))
    (files / "token").chmod(0o600)
    buoys = fresh_name("buoys")
    keyed = [galileo.Feature("id", type="text"), galileo.Feature("waves", "m")]
    client.create_dataset(galileo.Schema(buoys, keyed, key="id"))
    client.ingest(buoys, pd.read_csv(files / "buoys.csv"))
    ccq, cancelled = client.submit(name), client.submit(name)
    client.cancel(cancelled)
    expiring = client.submit(name, interval="100ms", expiration="1s")
    names = {
        "air": name,
        "buoys": buoys,
        "files": str(files),
        "ccq": ccq.id,
        "cancelled": cancelled.id,
        "expiring": expiring.id,
        "node": cluster.addresses[0],
    }
    yield World(client, name, names)
    client.cancel(ccq)


TRY_AGAIN, GONE = 3, 4
WRONG: dict[str, tuple[str, str]] = {
    # --- datasets and schemas ---
    "query berg": ("unknown_dataset", "^dataset 'berg' does not exist.*galileo dataset create"),
    "retention set berg --age 3d": ("unknown_dataset", "^dataset 'berg' does not exist"),
    "dataset create new": ("usage", "Missing option '--feature'"),
    "retention set {air}": ("invalid_input", "^say what to keep: --age, --size or both, or none"),
    "retention set {air} --size big": ("invalid_input", "such as 10GB.* got 'big'"),
    "retention set {air} none --age 3d": ("invalid_input", "got both"),
    # --- queries ---
    "query {air} --limit 3 --all": ("invalid_input", "--limit or --all, got both"),
    "query {air} --limit many": ("usage", "'--limit': 'many' is not a valid integer"),
    "query {air} --limt 3": ("usage", "'--limt'.*Did you mean.*'--limit'"),
    "query {air} --limit -1": ("usage", "'--limit'"),
    "query {air} --output - --format parquet": ("invalid_input", "for standard output"),
    "sparql {air} 'SELECT * {{SERVICE <http://x/> {{?s ?p ?o}}}}'": (
        "unsupported_query",
        "SERVICE",
    ),
    "reed {air}": ("usage", "No such command 'reed'.*'read'"),
    "ls": ("usage", "No such command 'ls'; did you mean galileo dataset list"),
    "describe {air}": ("usage", "did you mean galileo dataset show"),
    "delete {air} --file {files}/good.csv": (
        "invalid_input",
        "a keyed dataset, got the dataset '{air}'",
    ),
    "delete {buoys}": ("invalid_input", "a CONDITION, --file, or --all"),
    "delete {buoys} ' '": ("invalid_input", "a CONDITION, --file, or --all"),
    "delete {buoys} 'waves > 4' --all": ("invalid_input", "one of the three"),
    "delete {buoys} 'waves > 4' --file {files}/buoys.csv": ("invalid_input", "one of the three"),
    "delete {buoys} 'waves > 4'": ("invalid_input", "'{buoys}' cannot be undone.*add --yes"),
    "delete {buoys} --all": ("invalid_input", "'{buoys}' cannot be undone.*add --yes"),
    "delete {buoys} 'waves >' --yes": ("query_syntax", "waves >"),
    "delete {buoys} 'height > 4' --yes": ("unknown_property", "height"),
    "delete {buoys} 'waves > 4' --yes --unchanged-since x": ("invalid_input", "need --file"),
    "delete {buoys} --all --yes --separator ';'": ("invalid_input", "need --file"),
    "delete {buoys} --file {files}/buoys.csv --unchanged-since x": (
        "invalid_input",
        "about dataset '{buoys}', got 'x'",
    ),
    "delete {buoys} --file {files}/good.csv": ("invalid_observations", "id"),
    "delete {buoys} --file /nowhere.csv": ("usage", "'/nowhere.csv' does not exist"),
    "delete berg --all --yes": ("unknown_dataset", "^dataset 'berg' does not exist"),
    "dataset changes {air} --after x": ("invalid_input", "got the dataset '{air}'"),
    "dataset changes {buoys}": ("usage", "Missing option '--after'"),
    "dataset changes {buoys} --after x": ("invalid_input", "about dataset '{buoys}', got 'x'"),
    "read {buoys} --at x": ("invalid_input", "about dataset '{buoys}', got 'x'"),
    "read {buoys} --at x --whole-blocks": ("invalid_input", "got both"),
    "dataset create new --feature t --key t": ("invalid_schema", "int, text, bool, got .*'t'"),
    "dataset create new --feature t --key u": ("invalid_schema", "features of .*got 'u'"),
    "read {air} --columns temp --output {files}/no.csv": ("invalid_input", "no column 'temp'"),
    "read {air} --columns time,time --output {files}/no.csv": ("invalid_input", "'time' twice"),
    "nearest {air} --latitude 9 --longitude 9 --within 5mi": (
        "invalid_input",
        "metres, or such as '50km', got '5mi'",
    ),
    "count wl3": ("unknown_dataset", r"^(?!.*galileo\.brokers)(?!.*{table})"),
    "nearest {air} -114 32": ("usage", "the negative number -1….*--latitude, --longitude"),
    # --- outputs ---
    "query {air} --output {files}/x.xyz": ("invalid_input", "ending in .parquet, .*got 'x.xyz'"),
    "query {air} --output /nowhere/x.csv": ("invalid_input", "^cannot write /nowhere/x.csv: No"),
    "query {air} --format csv": ("invalid_input", "^--format needs --output"),
    "read {air} --format csv": ("invalid_input", "^--format needs --output"),
    "sparql export {air} {files}/x.xyz": ("invalid_input", "ending in .nt, .*got 'x.xyz'"),
    "sparql export {air} /nowhere/x.ttl": ("invalid_input", "^cannot use /nowhere/x.ttl: No such"),
    # --- samplers ---
    "query {air} --sampler uniform --option fraction": ("invalid_input", "KEY=JSON, got 'frac"),
    "query {air} --option fraction=0.1": ("invalid_input", "^--option and --seed need --sampler"),
    "query {air} --sampler-file {files}/sampler.py": (
        "invalid_archive",
        "a method sample, got none; send a file with one",
    ),
    "query {air} --sampler-file {files}/sampler.py --sampler uniform": (
        "invalid_input",
        "got both; leave one out",
    ),
    "sampler revoke abc": ("invalid_input", "8 digits .*got 'abc'"),
    "ccq submit {air} --sampler-file {files}/sampler.py": (
        "invalid_archive",
        "a method sample, got none; send a file with one",
    ),
    f"sampler revoke {'0' * 64}": ("unknown_sampler", "which the cluster does not have"),
    "sampler new 'a b'": ("invalid_input", "got 'a b'"),
    # --- files to ingest ---
    "ingest {air} /nowhere.csv": ("invalid_input", "expected a file at /nowhere.csv, got none"),
    "ingest {air} {files}/empty.csv": ("invalid_input", "header line .*empty.csv, got none"),
    "ingest {air} {files}/junk.bin": (
        "invalid_input",
        "^cannot detect the format of .*one of arrow",
    ),
    "ingest {air} {files}/time.csv": (
        "invalid_observations",
        "time.csv: 'time' has no time in line 2.*'yesterday'",
    ),
    "ingest {air} {files}/text.csv": (
        "invalid_observations",
        "'temperature', got 'warm' in line 2",
    ),
    "ingest {air} {files}/timeless.csv": (
        "invalid_input",
        "timeless.csv: found no column for the time",
    ),
    "ingest {air} {files}/others.csv": ("invalid_input", "no variable named like temperature"),
    "ingest {air} {files}/ragged.csv": (
        "invalid_observations",
        "expected 5 fields, got 2 in line 2 of",
    ),
    "ingest berg {files}/good.csv": ("unknown_dataset", "galileo ingest --create$"),
    "ingest {air} {files}/good.csv --format xls": ("invalid_input", "of arrow, .*got 'xls'"),
    "ingest {air} {files}/good.csv --map temperature": ("invalid_input", "mapping such as .* got"),
    "ingest {air} {files}/good.csv --map temperature=temp": (
        "unknown_property",
        "good.csv: the file has no variable 'temp' .did you mean 'temperature'",
    ),
    "ingest {air} {files}/good.csv --map 'temperature=1 +'": ("invalid_input", r"'1 \+'"),
    "ingest {air} {files}/good.csv --map depth=temperature": (
        "invalid_schema",
        "good.csv: dataset '{air}' has no feature 'depth'; its features are temperature, station",
    ),
    "ingest new {files}/good.csv --create --key temp": ("unknown_property", "no feature 'temp'"),
    "ingest new {files}/waves.csv --create --key waves": (
        "invalid_schema",
        "waves.csv: expected a key .*int, text, bool, got feature 'waves' of type float",
    ),
    "ingest {air} {files}/good.csv --create --key station": ("invalid_input", "without a key"),
    "ingest {buoys} {files}/buoys.csv --create --key depth": ("invalid_input", "with the key id"),
    "ingest {air} {files}/good.csv --unchanged-since x": ("invalid_input", "a keyed dataset"),
    "ingest {buoys} {files}/buoys.csv --unchanged-since x": (
        "invalid_input",
        "about dataset '{buoys}', got 'x'",
    ),
    "ingest new {files}/good.csv --create --index depth": (
        "unknown_property",
        "no feature 'depth'",
    ),
    # --- continuous queries ---
    "ccq fetch ccq-nope": ("unknown_ccq", "^continuous query 'ccq-nope' does not exist.*ccq list"),
    "ccq watch ccq-nope": ("unknown_ccq", "^continuous query 'ccq-nope' does not exist"),
    "ccq cancel ccq-nope": ("unknown_ccq", "^continuous query 'ccq-nope' does not exist"),
    "ccq fetch {cancelled}": ("ccq_cancelled", "'{cancelled}' was cancelled; submit it again"),
    "ccq watch {cancelled}": ("ccq_cancelled", "was cancelled"),
    "ccq watch {expiring}": ("ccq_expired", "'{expiring}' has expired; submit it again"),
    "ccq fetch {ccq} --token bogus": ("invalid_token", "^'bogus' is no resume token"),
    "ccq fetch {ccq} --wait soon": ("invalid_input", "such as .*got 'soon'"),
    "ccq watch {ccq} --from 'a b'": ("invalid_input", "start, now or a name .*got 'a b'"),
    "ccq watch {ccq} --from start --token x": ("invalid_input", "--from or --token, got both"),
    "ccq watch {ccq} --from alarms --spool {files}/x": ("invalid_input", "--from start .*'alarms'"),
    "ccq watch {ccq} --spool /nowhere/x": ("invalid_input", "spool /nowhere/x does not exist"),
    "ccq watch {ccq} --spool {files}/good.csv": ("invalid_input", "a spool .*name a new file"),
    "ccq watch {ccq} --closed-only": ("invalid_input", "^--closed-only needs a query with windows"),
    "dataset drop nosuch --yes": (
        "unknown_dataset",
        "^dataset 'nosuch' does not exist.* Datasets: [^;]*$",
    ),
    "ccq submit {air} --window hourly": ("invalid_input", "'tumbling:1h' .*got 'hourly'"),
    "ccq submit {air} --lateness 5m": ("invalid_input", "^--lateness needs --window"),
    # --- SPARQL ---
    "sparql {air} 'SELEC ?x'": ("query_syntax", "line 1, .*'SELEC"),
    "sparql {air} 'SELECT ?x {{?x no:such ?y}}'": (
        "query_syntax",
        "^prefix 'no:' .* is not declared",
    ),
    # --- connections ---
    "status --node 127.0.0.1:9 --timeout 10ms": (
        "unavailable",
        "^no node could be reached at 127.0.0.1:9; check .*refused",
    ),
    "status --node http://h:1": ("invalid_input", "'host:port' or 'host', got 'http://h:1'"),
    "status --node h:99999": ("invalid_input", "got 'h:99999'"),
    "status --timeout soon": ("invalid_input", "got 'soon'"),
    "status --profile lab": ("config", "^there is no profile 'lab' in "),
    "status --token-file /nowhere": ("config", "token_file to be a readable file: No such file"),
    "status --token-file {files}/good.csv": ("config", "run chmod 600"),
    "status --tls /nowhere": ("config", "tls.key to be a readable file: No such file"),
    "status --node 10.0.0.1 --token-file {files}/token": ("config", "TLS to .*--insecure if"),
    # --- nodes and their files ---
    "drain node-9": ("invalid_input", "^node 'node-9' does not exist; nodes: node-1, "),
    "partition move --to node-9": (
        "invalid_input",
        "^node 'node-9' does not exist; nodes: node-1, ",
    ),
    "partition move 99 --to node-1": ("invalid_input", "partitions from 0 to [0-9]+, got 99$"),
    "serve --config {files}/broken.toml": ("config", r"broken.toml: .*line 1, column 6"),
    "serve --config {files}/keys.toml": ("config", "^unknown key in .node.: 'port'. Known: add"),
    "serve --config {files}/section.toml": ("config", "^unknown section: 'nod'; did you mean"),
    "serve --config {files}/keys.toml --set nope": ("config", "of audit, auth, .*got 'nope'"),
    "up --nodes 0": ("invalid_input", "one node in each group, got 0 nodes"),
    "up --nodes 2 --groups 3": ("invalid_input", "got 2 nodes and 3 groups"),
    "backup {files} {files}/copy": ("invalid_input", "the directory of a node, got {files};"),
    "restore {files} {files}/copy": ("invalid_input", "a backup .*got {files}"),
    "verify {files}": ("invalid_input", "the directory of a node, got {files};"),
    "token create ann --role king --principals {files}/p": (
        "usage",
        "'king' is not one of 'subscriber', 'reader'",
    ),
    "token revoke ann --principals {files}/p": ("config", "No such file.*galileo token create"),
    "cert issue client {files} ann": (
        "invalid_input",
        "an authority in .*galileo ca create {files}",
    ),
}
"""By command: the kind and what the message matches; "usage" is an error of the command line."""
STATUS = {"unavailable": TRY_AGAIN, "ccq_cancelled": GONE, "ccq_expired": GONE}
"""Exit statuses other than that for a wrong input."""


@pytest.mark.parametrize("command", WRONG)
def test_wrong_command_is_refused_with_kind_and_message(world: World, command: str) -> None:
    kind, pattern = WRONG[command]
    done = world.run(command)
    assert done.exit_code == STATUS.get(kind, 2), done.output
    assert done.stdout == ""
    message = message_of(done.stderr, kind)
    assert re.search(fill(pattern, world), message), message
    assert not LEAKS.search(message), message
    assert len(message.splitlines()) <= 3, message


def fill(pattern: str, world: World) -> str:
    """The pattern with the names in braces."""
    for name, value in world.names.items():
        pattern = pattern.replace(f"{{{name}}}", re.escape(value))
    return pattern


def message_of(stderr: str, kind: str) -> str:
    """The message without the program's name and the kind, or without the usage above it."""
    if kind == "usage":
        assert stderr.startswith("Usage: ")
        return stderr.partition("\nError: ")[2]
    begin, end = "galileo: ", f" [{kind}]\n"
    assert stderr.startswith(begin), stderr
    assert stderr.endswith(end), stderr
    return stderr[len(begin) : -len(end)]


@pytest.mark.parametrize(
    "words",
    ["query {air} --limt 3", "query {air} --limit many", "ccq spool /nowhere", "reed {air}"],
)
def test_usage_error_with_json_is_json(world: World, words: str) -> None:
    done = world.run(f"{words} --json")
    assert done.exit_code == 2
    error = json.loads(done.stderr)["error"]
    assert error["kind"] == "invalid_input"
    assert re.search("--limt|many|/nowhere|reed", error["message"])


def test_wrong_commands_leave_everything_as_it_was(world: World) -> None:
    assert world.client.count(world.dataset) == 1
    assert world.client.count(world.names["buoys"]) == 1
    assert world.names["ccq"] in {info.id for info in world.client.list_ccqs()}
    assert "new" not in {schema.name for schema in world.client.datasets()}
    left = {path.name for path in Path(world.names["files"]).glob("[!.]*")}
    assert left == set(FILES)
