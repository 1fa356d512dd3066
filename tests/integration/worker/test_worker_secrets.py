"""Which sinks may use which secrets, and that no output has the text of one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp.web
import pytest
import pytest_asyncio
from expected_errors import raises
from made_up_notifications import chunk
from mosquitto import MosquittoServer, needs_mosquitto
from proving import Certified

import galileo
from galileo.errors import ConfigError, GalileoError
from galileo.logging_setup import JsonFormatter, TextFormatter
from galileo.model.broker import Kafka, Mqtt, Webhook
from galileo.worker.addresses import AddressPolicy
from galileo.worker.endpoints import DeliveryError, open_endpoint
from galileo.worker.options import WorkerOptions
from galileo.worker.secrets import SECRET_BYTES_MAX, read_secret

HERE = AddressPolicy(["127.0.0.0/8", "localhost"])
PLANTED = "planted"
SIGNING = "whsec_" + base64.b64encode(b"planted in a webhook, here").decode()
FILES = {
    "webhook": SIGNING,
    "webhook-broken": "whsec_planted$%&",
    "mqtt": "planted-user:planted-password-of-mqtt",
    "mqtt-alone": "planted-password-without-a-user",
    "kafka": "sasl_mechanism=PLAIN\nsecurity_protocol=SASL_PLAINTEXT\n"
    "sasl_plain_username=planted-user-of-kafka\nsasl_plain_password=planted-password-of-kafka",
    "kafka-no-names": "planted-line-of-kafka",
    "kafka-unknown": "planted.setting=planted-value",
    "kafka-broken": "max_request_size=planted-size",
    "kafka-invalid": "compression_type=planted-compression",
    "kafka-tls": "security_protocol=SSL\ncertfile={pem}\n"
    "keyfile={pem}\npassword=planted-passphrase",
    "no-text": "\udcff planted",
}
SECRETS = ["planted", SIGNING, SIGNING.removeprefix("whsec_"), "AHBsYW50ZW"]
"""What no output may have; the last one begins a plain authentication in base64."""


def rule(kind: str, *hosts: str, insecure: bool = False, file: str = "ops") -> str:
    lines = [f'file = "{file}"', f'kind = "{kind}"', f"hosts = {list(hosts)}"]
    return "\n".join(["[ops]", *lines, *(["insecure = true"] if insecure else [])])


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    (tmp_path / "ops").write_text(" whsec_abc\n")
    return tmp_path / "secrets.toml"


# --- rules ---------------------------------------------------------------------------------------


def test_a_secret_is_for_a_kind_and_hosts(rules: Path) -> None:
    rules.write_text(rule("webhook", "Example.org", "*.example.com"))
    secret = read_secret(rules, Webhook("https://example.org", secret="ops"))
    assert secret is not None
    for host in ("example.org", "EXAMPLE.ORG", "a.example.com"):
        assert secret.text_for(host) == "whsec_abc"
    for host in ("example.com", "evil-example.org", "example.org.evil.net"):
        with raises(ConfigError, expected="secrets"):
            secret.text_for(host)
    for sink in (Mqtt("mqtts://example.org", secret="ops"), Kafka("example.org:1", secret="ops")):
        with raises(ConfigError, expected="secrets"):
            read_secret(rules, sink)
    assert read_secret(rules, Webhook("https://example.org")) is None
    assert "abc" not in repr(secret)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[ops",
        "ops = 1",
        "[other]\nfile = 'ops'\nkind = 'webhook'\nhosts = []",
        "[ops]\nkind = 'webhook'\nhosts = []",
        "[ops]\nfile = 'ops'\nkind = 'webhook'\nhosts = 'example.org'",
        "[ops]\nfile = 'ops'\nkind = 'webhook'\nhosts = [1]",
        "[ops]\nfile = 'ops'\nkind = 'webhook'\nhosts = ['*']\nhost = 'x'",
        "[ops]\nfile = 'ops'\nkind = 'webhook'\nhosts = ['*']\ninsecure = 1",
        "[ops]\nfile = 'absent'\nkind = 'webhook'\nhosts = ['*']",
        "[ops]\nfile = 'empty'\nkind = 'webhook'\nhosts = ['*']",
        "[ops]\nfile = 'large'\nkind = 'webhook'\nhosts = ['*']",
    ],
)
def test_rules_and_files_that_are_none_are_refused(rules: Path, text: str) -> None:
    rules.write_text(text)
    (rules.parent / "empty").write_text("\n")
    (rules.parent / "large").write_text("x" * (SECRET_BYTES_MAX + 1))
    with raises(ConfigError, expected="secrets"):
        read_secret(rules, Webhook("https://example.org", secret="ops"))


def test_without_rules_there_are_no_secrets() -> None:
    with raises(ConfigError, expected="secrets"):
        read_secret(None, Webhook("https://example.org", secret="ops"))


# --- outputs -------------------------------------------------------------------------------------


class Outputs(logging.Handler):
    """All that a worker says: errors with their tracebacks, and logs at every level."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []
        self._formatters = [TextFormatter(), JsonFormatter("n")]

    def emit(self, record: logging.LogRecord) -> None:
        record.exc_text = None
        self.texts += [one.format(record) for one in self._formatters]

    def add(self, error: Exception) -> None:
        """An error as it is stored, shown and logged."""
        assert isinstance(error, GalileoError | DeliveryError)
        reason = error.reason if isinstance(error, DeliveryError) else error.message
        self.texts += [str(error), repr(error), reason]
        logging.getLogger("test").error("%s", reason, exc_info=error)

    def check(self) -> None:
        assert self.texts
        for text in self.texts:
            assert not [one for one in SECRETS if one in text], text


@pytest.fixture
def outputs() -> Iterator[Outputs]:
    handler, root = Outputs(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.setLevel(level)
    root.removeHandler(handler)


@pytest_asyncio.fixture
async def servers(tmp_path: Path, unused_tcp_port_factory) -> AsyncIterator[dict[str, str]]:
    """A webhook that answers with secrets, a Kafka server that answers nonsense, and mosquitto."""

    async def answer(request: aiohttp.web.Request) -> aiohttp.web.Response:
        await request.read()
        return aiohttp.web.Response(status=400, text=f"I know\x1b[2J {SIGNING}")

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    app = aiohttp.web.Application()
    app.router.add_post("/", answer)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    echoing = await asyncio.start_server(echo, "127.0.0.1", 0)
    mosquitto = MosquittoServer(tmp_path, unused_tcp_port_factory(), "allow_anonymous false")
    mosquitto.start()
    yield {
        "webhook": f"http://localhost:{runner.addresses[0][1]}/",
        "kafka": f"localhost:{echoing.sockets[0].getsockname()[1]}",
        "mqtt": mosquitto.url.replace("127.0.0.1", "localhost"),
    }
    mosquitto.stop()
    echoing.close()
    await runner.cleanup()


def plant(directory: Path, *, hosts: str) -> Path:
    """A file of rules, in which each secret is of each kind, and files of the secrets."""
    pem = Certified.made(directory).of("client", "planted") / "key.pem"
    (directory / "encrypted.pem").write_text(pem.read_text())
    lines = []
    for name, text in FILES.items():
        text = text.replace("{pem}", str(directory / "encrypted.pem"))
        (directory / name).write_bytes(text.encode(errors="surrogateescape"))
        for kind in ("webhook", "mqtt", "kafka"):
            lines.append(f'["{name}.{kind}"]\nfile = "{name}"\nkind = "{kind}"')
            lines.append(f'hosts = ["{hosts}"]\ninsecure = true')
    (directory / "secrets.toml").write_text("\n".join(lines))
    return directory / "secrets.toml"


@needs_mosquitto
@pytest.mark.parametrize("hosts", ["localhost", "elsewhere"])
async def test_no_output_has_the_text_of_a_secret(
    servers: dict[str, str],
    outputs: Outputs,
    tmp_path: Path,
    hosts: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each secret is used for each kind of sink, also where it does not fit, at hostile servers."""
    monkeypatch.setattr("galileo.worker.kafka.TIMEOUT_S", 1.0)
    options = WorkerOptions(secrets=plant(tmp_path, hosts=hosts))
    outputs.texts.append(repr(options))
    failed = 0
    for name in FILES:
        sinks = (
            Webhook(servers["webhook"], secret=f"{name}.webhook"),
            Mqtt(servers["mqtt"], secret=f"{name}.mqtt"),
            Kafka(servers["kafka"], secret=f"{name}.kafka"),
            Mqtt(servers["mqtt"], secret=f"{name}.webhook"),
        )
        for sink in sinks:
            with contextlib.suppress(ConfigError):
                outputs.texts.append(repr(read_secret(options.secrets, sink)))
            try:
                endpoint = await open_endpoint(sink, None, options, HERE)  # type: ignore[arg-type]
                try:
                    await endpoint.deliver(chunk())
                finally:
                    await endpoint.close()
            except (GalileoError, DeliveryError) as error:
                failed += 1
                outputs.add(error)
    assert failed == 4 * len(FILES), "no server accepts anything"
    outputs.check()


async def test_words_of_an_endpoint_are_kept_without_secrets_and_control_characters(
    servers: dict[str, str], outputs: Outputs, tmp_path: Path
) -> None:
    options = WorkerOptions(secrets=plant(tmp_path, hosts="localhost"))
    sink = Webhook(servers["webhook"], secret="webhook.webhook")
    endpoint = await open_endpoint(sink, None, options, HERE)  # type: ignore[arg-type]
    with pytest.raises(DeliveryError) as refused:
        await endpoint.deliver(chunk())
    await endpoint.close()
    assert "I know\\x1b[2J (a secret)" in refused.value.reason
    outputs.add(refused.value)
    outputs.check()


def test_repr_of_sinks_and_brokers_has_the_name_of_the_secret_alone() -> None:
    broker = galileo.Broker("ops", Webhook("https://example.org", secret="ops"))
    assert "secret='ops'" in repr(broker)
