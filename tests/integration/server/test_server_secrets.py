"""Credentials appear in no output of a cluster: logs, errors, metrics, files and calls."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import psutil
import pytest
from click.testing import CliRunner
from expected_errors import raises
from proving import Certified, Tokens, tls_section, token_file

import galileo
from galileo.cli.main import main
from galileo.client import Client, Credentials
from galileo.cluster import free_ports
from galileo.errors import GalileoError, InternalError, SamplerFailed
from galileo.rpc.access import Role
from galileo.rpc.token_store import TOKEN_PREFIX
from galileo.sampler_runtime import unavailable_reason
from galileo.spark.options import EvaluatorOptions
from galileo.wire.tls_credentials import TlsFiles

SCHEMA = galileo.Schema("rain", [galileo.Feature("rain", "mm")], geohash_precision=2)
WITHIN_S = 300.0
ENDLESS = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l }"
PLANTED = TOKEN_PREFIX + "planted-in-the-environment"
UNKNOWN_TOKEN = TOKEN_PREFIX + "planted-of-no-principal"
FORMATS = ("json", "text")
CRASHING = """
'''Runs a node of which one call fails unexpectedly, with secrets in its message.'''
import runpy
import sys
from pathlib import Path

from galileo.node.cluster_analytics import ClusterAnalytics

_, token, key, _, _, module, *given = sys.argv


async def answer(self, query, question):
    raise RuntimeError(f"on purpose: {Path(token).read_text()} and {Path(key).read_text()}")


ClusterAnalytics.answer = answer
sys.argv = [module, *given]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
TELLING = """
import os


class Telling:
    def sample(self, labels, *, seed):
        raise ValueError("on purpose: " + " ".join(f"{k}={v}" for k, v in os.environ.items()))
"""


@dataclass
class Planted:
    """A cluster, the secrets with which it was made, and all outputs since then."""

    cluster: galileo.LocalCluster
    tokens: Tokens
    client: Path
    directory: Path
    metrics: list[str]
    secrets: list[str]
    outputs: dict[str, str] = field(default_factory=dict)

    def connect(self, name: str) -> Client:
        return Client(*self.cluster.addresses, proof=self.tokens.proof(name, tls=self.client))

    def check(self, *places: str) -> None:
        """Each of the places has an output, and no place any secret."""
        for place in places:
            assert self.outputs.get(place), f"nothing was looked at of {place}"
        found = {
            place for place, text in self.outputs.items() for one in self.secrets if one in text
        }
        assert not found


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    directory = tmp_path_factory.mktemp("planted")
    certified, tokens = Certified.made(directory), Tokens.made(directory / "principals.toml")
    node, client = certified.of("node", "node"), certified.of("client", "client")
    tokens.add("root", Role.ADMIN)
    own = token_file(directory / "node.token", tokens.add("nodes", Role.NODE))
    settings = {
        "tls": tls_section(node),
        "auth": {"token_file": str(tokens.path), "node_token_file": str(own)},
        "samplers": {"uploads": "sandboxed"},
        "logging": {"level": "debug"},
        "audit": {"file": "audit.log"},
    }
    program = directory / "crashing.py"
    program.write_text(CRASHING)
    proof = tokens.proof("root", tls=client)
    cluster = galileo.LocalCluster(2, 1, directory / "cluster", settings=settings, proof=proof)
    ports = free_ports(2)
    for one, kind, port in zip(cluster.nodes, FORMATS, ports, strict=True):
        variables = (
            f"GALILEO_LOGGING__FORMAT={kind}",
            f"GALILEO_METRICS__ADDRESS=127.0.0.1:{port}",
        )
        crashing = (sys.executable, str(program), str(own), str(node / "key.pem"))
        one.prefix = ("env", *variables, *crashing)
    keys = [line for path in (node, client) for line in key_lines(path)]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GALILEO_TOKEN", PLANTED)
        cluster.start()
    try:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        secrets = [*tokens.tokens.values(), *keys, PLANTED, UNKNOWN_TOKEN]
        yield Planted(cluster, tokens, client, directory, urls, secrets)
    finally:
        cluster.stop()


def key_lines(directory: Path) -> list[str]:
    return (directory / "key.pem").read_text().splitlines()[1:-1]


@pytest.mark.slow
def test_logs_errors_files_and_processes_never_contain_secrets(planted: Planted) -> None:
    with planted.connect("root") as root:
        root.create_dataset(SCHEMA)
        made = root.submit("rain", "rain > 1", interval="0.2s", expiration="10m")
        root.ingest("rain", rows())
        found, token, deadline = 0, made.token, time.monotonic() + WITHIN_S
        while found < 2 and time.monotonic() < deadline:
            update = root.fetch(made.id, token=token, wait="5s")
            found, token = found + len(update.labels), update.token
        assert found == 2, "the evaluator and its workers are what is looked at"
        planted.outputs["crashes"] = "\n".join(crash_of(planted, node) for node in (0, 1))
        planted.outputs["calls"] = repr(root.status()) + repr(root.whoami()) + repr(root)
        look_at_samplers(planted, root)
    look_at_bad_tokens(planted)
    look_at_commands(planted)
    look_at_metrics(planted)
    with running_query(planted):
        look_at_processes(planted)
    look_at_files(planted)
    planted.check("crashes", "calls", "errors", "commands", "metrics", "processes", "files")


def rows() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "latitude": [40.0, 47.0, -10.0],
            "longitude": [-120.0, 8.0, 20.0],
            "time": pd.to_datetime(["2014-03-01T06:00Z"] * 3),
            "rain": [1.0, 2.0, 3.0],
        }
    )


def crash_of(planted: Planted, node: int) -> str:
    """The error of a caller whose node fails with the secrets in the message."""
    proof = planted.tokens.proof("root", tls=planted.client)
    address = planted.cluster.addresses[node]
    with Client(address, proof=proof, timeout="1s") as client:
        with pytest.raises(InternalError) as caught:
            client.explain("rain")
        assert "on purpose" not in str(caught.value)
        assert caught.value.details["request"] in str(caught.value)
        return "".join(traceback.format_exception(caught.value)) + repr(caught.value.details)


def look_at_samplers(planted: Planted, root: Client) -> None:
    if unavailable_reason() is not None:
        return
    source = planted.directory / "telling.py"
    source.write_text(TELLING)
    with raises(SamplerFailed) as caught:
        root.query("rain", sampler=galileo.sampler(galileo.sampler_archive(source)))
    planted.outputs["samplers"] = str(caught.value) + repr(caught.value.details)


def look_at_bad_tokens(planted: Planted) -> None:
    outputs = []
    for token in (
        UNKNOWN_TOKEN,
        UNKNOWN_TOKEN + "\r\n",
        UNKNOWN_TOKEN + " x",
        UNKNOWN_TOKEN + "ä",
        UNKNOWN_TOKEN * 99,
    ):
        proof = Credentials(token, tls=planted.client)
        with pytest.raises(GalileoError) as caught:
            Client(planted.cluster.addresses[0], proof=proof, timeout="1s").datasets()
        outputs.append("".join(traceback.format_exception(caught.value)) + repr(proof))
    planted.outputs["errors"] = "\n".join(outputs)


def look_at_commands(planted: Planted) -> None:
    token = token_file(planted.directory / "root.token", planted.tokens.tokens["root"])
    nodes = [word for address in planted.cluster.addresses for word in ("--node", address)]
    known = [*nodes, "--tls", str(planted.client)]
    config = str(planted.cluster.directory / "node-1.toml")
    outputs = []
    for words in (["whoami"], ["status"], ["doctor"], ["doctor", "--config", config]):
        for more in ([], ["--json"]):
            done = CliRunner().invoke(main, [*known, "--token-file", str(token), *words, *more])
            assert done.exit_code in (0, 1), done.output
            outputs.append(done.output)
    checked = CliRunner().invoke(main, ["config", "check", config])
    refused = CliRunner().invoke(main, [*known, "whoami"], env={"GALILEO_TOKEN": UNKNOWN_TOKEN})
    assert (checked.exit_code, "unauthenticated" in refused.output) == (0, True)
    planted.outputs["commands"] = "\n".join([*outputs, checked.output, refused.output])


def look_at_metrics(planted: Planted) -> None:
    outputs = []
    for url in planted.metrics:
        for path in ("metrics", "ready", "live", UNKNOWN_TOKEN):
            try:
                with urllib.request.urlopen(f"{url}/{path}", timeout=WITHIN_S) as reply:
                    outputs.append(reply.read())
            except urllib.error.HTTPError as refused:
                refused.close()
    planted.outputs["metrics"] = b"\n".join(outputs).decode()
    assert planted.outputs["metrics"].count("# TYPE galileo_calls_refused") == 2


@contextlib.contextmanager
def running_query(planted: Planted) -> Iterator[None]:
    """While `galileo sparql query` runs."""
    token = str(planted.directory / "root.token")
    node = ["--node", planted.cluster.addresses[0], "--tls", str(planted.client)]
    words = [*node, "--token-file", token, "sparql", "query", "rain", ENDLESS]
    with subprocess.Popen(
        [sys.executable, "-m", "galileo", *words], stdout=subprocess.DEVNULL
    ) as asking:
        try:
            deadline = time.monotonic() + WITHIN_S
            while not psutil.Process(asking.pid).children():  # The graph has a process of its own.
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield
        finally:
            asking.terminate()


def look_at_processes(planted: Planted) -> None:
    lines = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(one.cmdline()))
            lines[-1] += " ".join(["", *one.environ().values()])
    for part in (
        "galileo.server",
        "galileo.spark.evaluator",
        "pyspark.daemon",
        "sparql query",
        "java",
    ):
        assert any(part in line for line in lines), f"no {part} was looked at"
    planted.outputs["processes"] = "\n".join(lines)


def look_at_files(planted: Planted) -> None:
    """Logs, journals, audit logs, the evaluator's and Spark's files."""
    files = [path for path in planted.cluster.directory.rglob("*") if path.is_file()]
    text = {path: path.read_bytes().decode(errors="replace") for path in files}
    logs = [planted.cluster.directory / f"node-{number}.log" for number in (1, 2)]
    for log in logs:
        assert "RuntimeError: on purpose: (a token) and (a key)" in text[log]
        assert "debug" in text[log].lower()
    assert text[logs[0]].startswith('{"time"')
    assert sum(path.name == "audit.log" for path in files) == 2
    assert any("evaluator" in str(path) and path.suffix == ".log" for path in files)
    planted.outputs["files"] = "\n".join(text.values())


@pytest.mark.slow
def test_evaluator_with_invalid_arguments_prints_no_secret(tmp_path: Path) -> None:
    """Neither of its options, which hold secrets and come through standard input."""
    keys = TlsFiles(token=PLANTED, insecure=True)
    whole = EvaluatorOptions(tmp_path, keys=keys, log_format="json", log_level="debug").to_json()
    broken = json.loads(whole)
    broken["spark"]["master"] = f"sc:/host:1/;token={PLANTED.removeprefix(TOKEN_PREFIX)}"
    for options, said in (
        (whole, "ValueError: invalid literal"),
        (json.dumps(broken), "expected spark.master as"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "galileo.spark.evaluator", f"not-a-number {PLANTED}"],
            input=options,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
            env=dict(os.environ),
        )
        assert done.returncode != 0
        assert said in done.stderr
        assert "planted" not in done.stdout + done.stderr
