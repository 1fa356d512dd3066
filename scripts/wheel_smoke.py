"""Uses an installation of everything and one of the client alone; scripts/wheel_check makes both.

`cluster` runs in the first: it starts a cluster, runs `client` in the second, and then uses what
only the first has. Nothing but the installed packages is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

import galileo
from galileo.cli.main import main as galileo_command
from galileo.errors import MissingExtra

COMMAND_TIMEOUT_S = 300
SCHEMA = galileo.Schema("reports", [galileo.Feature("temperature"), galileo.Feature("humidity")])
ROWS: dict[str, list[Any]] = {
    "latitude": [40.1, 41.2],
    "longitude": [-105.2, -95.9],
    "time": ["2014-03-01T06:00:00Z", "2014-03-01T06:20:00Z"],
    "temperature": [291.4, 279.3],
    "humidity": [41.0, 77.0],
}
CSV = """latitude,longitude,time,temperature,humidity
39.7,-104.9,2014-03-01T07:10:00Z,293.0,35
"""
WARM = "temperature > 290"

COMMANDS = {
    "status": "",
    "topology": "",
    "whoami": "",
    "top": "--once",
    "doctor": "",
    "dataset create": "made --feature temperature:K --feature station::text --key station",
    "dataset add-feature": "made gust:m/s",
    "ingest": "csv reports.csv --create",
    "topology suggest": "--dataset csv --groups 1",
    "topology cut": "--undo",
    "dataset list": "",
    "dataset show": "made",
    "dataset changes": "made --after {cursor}",
    "dataset clean": "made",
    "delete": "made --all --yes",
    "query": f"reports '{WARM}' --output labels.parquet",
    "read": f"reports '{WARM}' --output -  --format csv",
    "page": "reports --limit 2",
    "count": f"reports '{WARM}'",
    "aggregate": "reports --by cell:3 --mean temperature",
    "latest": "reports --by cell:3",
    "stats": "reports --feature temperature --bins 4",
    "graph children": "reports",
    "nearest": "reports --latitude 40 --longitude -105",
    "estimate": "reports",
    "explain": f"reports '{WARM}'",
    "retention set": "csv --age 9000d",
    "retention show": "csv",
    "retention apply": "csv",
    "retention drop-reader": "csv nightly --help",
    "ccq submit": f"reports '{WARM}' --expiration 1h --quiet",
    "ccq list": "",
    "ccq watch": "{ccq} --from start --updates 1 --spool watched.spool",
    "ccq spool": "watched.spool --output watched.parquet",
    "ccq fetch": "{ccq}",
    "ccq cancel": "{ccq}",
    "sampler list": "",
    "sampler new": "dry_hours",
    "sampler test": "dry_hours",
    "sampler uploads": "",
    "token create": "ann --role reader --principals principals.toml",
    "token list": "--principals principals.toml",
    "token revoke": "ann --principals principals.toml",
    "sparql ontology": "",
    "config check": "{cluster}/node-1.toml",
    "completion": "bash",
    "verify": "{cluster}/node-1",
    "backup": "{cluster}/node-1 saved",
    "restore": "saved restored",
    "recover": "{cluster}/node-1 --lost node-2 --help",
    "partition move": "0 --to node-1 --dry-run",
    "node list": "",
    "node scrub": "",
    "node add": "node-9 127.0.0.1:1 --help",
    "node replace": "node-1 node-2 --help",
    "node remove": "node-1 --undo",
    "node forget": "node-1 --help",
    "dataset drop": "made --yes",
    "table create": "sites --column id:text --column height:float --key id",
    "table list": "",
    "table upsert": "sites sites.csv",
    "table show": "sites",
    "table changes": "sites --after {cursor}",
    "table delete": "sites a",
    "table drop": "sites --yes",
    "channel create": "hot reports 'temperature > :least' --period 1s",
    "channel list": "",
    "channel subscribe": "hot --id ann --set least=290 --broker me",
    "channel show": "hot",
    "channel follow": "hot me --wait 1s",
    "channel unsubscribe": "hot ann",
    "broker create": "me --into sites --channel hot",
    "broker list": "",
    "broker pause": "me",
    "broker resume": "me",
    "broker replay": "hot me",
    "broker status": "hot",
    "broker drop": "me",
    "channel drop": "hot --yes",
    "drain": "node-1",
    "topology replicas": "2",
}
"""Those that need no extra, in the order in which they run."""
WITH_EXTRA = {
    "up": ("server", ""),
    "serve": ("server", "--config {cluster}/node-1.toml"),
    "evaluator": ("server", "--config {cluster}/node-1.toml"),
    "gateway": ("gateway", ""),
    "worker": ("worker", ""),
    "ca create": ("server", "authority --cluster c"),
    "cert issue": ("server", "client authority ann"),
    "sparql query": ("rdf", "reports 'ASK {{}}'"),
    "sparql export": ("rdf", "reports labels.ttl"),
    "ingest": ("formats", "grib forecast.grib2 --create"),
}
NODES_REFUSE = {"sampler upload", "sampler revoke"}
"""Unless they are configured to take samplers from users."""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    roles = parser.add_subparsers(dest="role", required=True)
    cluster = roles.add_parser("cluster")
    cluster.add_argument("client", help="the Python of the client's installation")
    cluster.add_argument("--grib", type=Path)
    client = roles.add_parser("client")
    client.add_argument("address")
    client.add_argument("cluster", help="the directory of the cluster")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        Path("reports.csv").write_text(CSV)
        if given.role == "client":
            use_client(given.address)
            use_commands(given.address, given.cluster)
        else:
            use_everything(given.client, given.grib)


def use_client(address: str) -> None:
    """Every kind of call, and the error of each missing extra."""
    with galileo.connect(address) as client:
        client.create_dataset(SCHEMA)
        expect("ingest a dict", client.ingest("reports", ROWS).rows, 2)
        table = pa.table({**ROWS, "latitude": [10.0, 11.0]})
        expect("ingest Arrow", client.ingest("reports", table).rows, 2)
        expect("ingest a CSV file", client.ingest("reports", "reports.csv").rows, 1)
        labels = client.query("reports", WARM)
        expect("query", (len(labels), labels.complete), (3, True))
        expect("read", client.read(labels).num_rows, 3)
        expect("select", client.select("reports", WARM, columns=["time"]).num_rows, 3)
        expect("count", client.count("reports", WARM), 3)
        expect("describe", client.describe("reports").observations, 5)
        ccq = client.submit("reports", WARM, interval="1s", expiration="1h")
        expect("submit", len(ccq.initial), 3)
        client.ingest("reports", {**ROWS, "latitude": [20.0, 21.0]})
        update = next(one for one in client.watch(ccq, token=ccq.token) if len(one.labels))
        expect("watch", len(update.labels), 1)
        expect("fetch", len(client.fetch(ccq, token=update.token).labels), 0)
        client.cancel(ccq)
        expect("cancel", [one.id for one in client.list_ccqs() if one.state == "running"], [])
        Path("forecast.grib2").write_bytes(b"GRIB")
        missing("formats", "GRIB", lambda: client.ingest("reports", "forecast.grib2"))
    missing("pandas", "to_pandas", labels.to_pandas)
    missing("rdf", "rdf", labels.rdf)
    missing("rdf", "sparql", lambda: labels.sparql("ASK {}"))
    missing("plots", "plot", labels.plot)
    missing("plots", "to_geopandas", labels.to_geopandas)
    missing("formats", "to_xarray", lambda: galileo.to_xarray(labels))
    missing("server", "LocalCluster", galileo.LocalCluster)


def use_commands(address: str, cluster: str) -> None:
    """Every command: those that need no extra, and the error of the others."""
    values = {"cluster": cluster, "ccq": "", "cursor": ""}
    Path("sites.csv").write_text("id,height\na,1656\n")
    for name, arguments in COMMANDS.items():
        done = run(address, name, arguments.format(**values))
        expect(f"galileo {name}", (done.returncode, done.stderr), (0, done.stderr))
        if name == "ccq submit":
            values["ccq"] = done.stdout.strip()
        elif name in ("dataset show", "table show"):
            values["cursor"] = done.stdout.rpartition("cursor: ")[2].strip()
    expect("read labels.parquet", pq.read_table("labels.parquet").num_rows, 4)
    for name, (extra, arguments) in WITH_EXTRA.items():
        done = run(address, name, arguments.format(**values))
        words = f"pip install 'galileo-store[{extra}]' [missing_extra]\n"
        expect(f"galileo {name}", (done.returncode, done.stderr[-len(words) :]), (2, words))


def use_everything(client_python: str, grib: Path | None) -> None:
    """A cluster for the client, and then what needs extras."""
    tried = {*COMMANDS, *WITH_EXTRA, *NODES_REFUSE}
    expect("list all commands", sorted(tried ^ set(commands(galileo_command))), [])
    with galileo.LocalCluster(nodes=2, groups=1, directory="cluster") as cluster:
        address = cluster.addresses[0]
        arguments = ["client", address, str(cluster.directory)]
        if status := subprocess.call([client_python, "-I", __file__, *arguments]):
            sys.exit(status)
        client = cluster.client()
        labels = client.query("reports")
        expect("to_pandas", len(labels.to_pandas()), len(labels))
        expect("sparql", len(labels.sparql("SELECT ?p WHERE { ?p a g:Path }")), len(labels))
        expect("to_geopandas", len(labels.to_geopandas()), len(labels))
        expect("to_xarray", "temperature" in galileo.to_xarray(labels), True)
        if grib is None:
            print("skipped galileo ingest GRIB: --grib names no file")
        else:
            done = run(address, "ingest", f"grib '{grib}' --create")
            expect("galileo ingest GRIB", (done.returncode, done.stderr), (0, done.stderr))
        done = run(address, "sampler list", "--json")
        names = [row["name"] for row in json.loads(done.stdout)]
        expect("galileo sampler list", "reservoir" in names, True)
        with cluster.gateway() as gateway:
            use_map(gateway.url)


def use_map(url: str) -> None:
    """The map page and the files that it names."""
    with urllib.request.urlopen(f"{url}/map", timeout=COMMAND_TIMEOUT_S) as answer:
        names = re.findall(r'(?:href|src)="(web/[^"]+)"', answer.read().decode())
    for name in names:
        with urllib.request.urlopen(f"{url}/{name}", timeout=COMMAND_TIMEOUT_S) as answer:
            expect(f"GET {name}", (answer.status, bool(answer.read())), (200, True))
    expect("the map names its scripts", any(name.endswith(".js") for name in names), True)


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of all commands below one, such as "ccq list", and of groups that do something."""
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    if path and command.invoke_without_command:
        yield " ".join(path)
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from commands(below, (*path, name))


def run(address: str, name: str, arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of this installation."""
    galileo_path = Path(sys.executable).with_name("galileo")
    return subprocess.run(
        f"{galileo_path} --node {address} {name} {arguments}",
        shell=True,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
    )


def missing(extra: str, what: str, use: Callable[[], object]) -> None:
    """Checks that a use raises the error that names the extra."""
    try:
        use()
    except MissingExtra as error:
        expect(f"{what} without {extra}", error.details["extra"], extra)
    else:
        sys.exit(f"FAILED  {what}: expected MissingExtra, got no error")


def expect(what: str, got: object, expected: object) -> None:
    """Prints what was done, or ends with what it gave."""
    if got != expected:
        sys.exit(f"FAILED  {what}: expected {expected!r}, got {got!r}")
    print(f"ok      {what}", flush=True)


if __name__ == "__main__":
    main()
