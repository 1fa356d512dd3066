"""Webhooks, with a real HTTP server."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable

import aiohttp.web
import pytest
import pytest_asyncio
from made_up_notifications import chunk, nothing_but_gone
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

import galileo
from galileo.errors import ConfigError
from galileo.worker.addresses import AddressPolicy
from galileo.worker.endpoints import DeliveryError, DisabledError, RefusedError
from galileo.worker.secrets import Secret
from galileo.worker.webhook import WebhookEndpoint

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes long").decode()
HERE = AddressPolicy(["127.0.0.1"])
Answer = Callable[[aiohttp.web.Request], aiohttp.web.Response]


class Receiver:
    """An HTTP server that keeps what it gets, and gives the answers that a test has set."""

    def __init__(self) -> None:
        self.url = ""
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answer = lambda: aiohttp.web.Response(status=204)

    async def handle(self, request: aiohttp.web.Request) -> aiohttp.web.Response:
        self.got.append((dict(request.headers), await request.read()))
        return self.answer()


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = aiohttp.web.Application()
    app.router.add_post("/{path:.*}", found.handle)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/alerts"
    yield found
    await runner.cleanup()


def signing(text: str, *hosts: str) -> Secret | None:
    return Secret("ops", hosts or ("*",), insecure=False, _text=text) if text else None


async def deliver(
    url: str, *, secret: str = "", policy: AddressPolicy = HERE, broker: str = "ops"
) -> None:
    endpoint = WebhookEndpoint(galileo.Webhook(url), lambda: signing(secret), policy)
    try:
        await endpoint.deliver(chunk(broker=broker, offset=20))
    finally:
        await endpoint.close()


async def test_a_request_has_the_document_and_is_signed(receiver: Receiver) -> None:
    await deliver(receiver.url, secret=SECRET)
    [(headers, body)] = receiver.got
    document = Verifier(SECRET).verify(body, headers)
    assert document["notifications"] == 4
    assert (document["channel"], document["broker"], document["offset"]) == ("smog", "ops", 20)
    with pytest.raises(WebhookVerificationError):
        Verifier(SECRET).verify(body.replace(b"anna", b"anne"), headers)
    assert headers["webhook-id"] == headers["ce-id"] == "smog/ops/2/7/20-23"
    assert headers["ce-specversion"] == "1.0"
    assert headers["ce-source"] == "/channels/smog"
    assert headers["Content-Type"] == "application/geo+json"


async def test_a_request_without_a_secret_has_no_signature(receiver: Receiver) -> None:
    await deliver(receiver.url)
    [(headers, body)] = receiver.got
    assert "webhook-signature" not in headers
    assert json.loads(body)["type"] == "FeatureCollection"


async def test_names_beyond_ascii_are_encoded_in_headers(receiver: Receiver) -> None:
    await deliver(receiver.url, broker='Öl "1"%\n')
    [(headers, body)] = receiver.got
    assert headers["ce-subject"] == "%C3%96l%20%221%22%25%0A"
    assert json.loads(body)["broker"] == 'Öl "1"%\n'


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (200, None),
        (202, None),
        (301, DeliveryError),
        (400, RefusedError),
        (401, DisabledError),
        (403, DisabledError),
        (404, DeliveryError),
        (410, DisabledError),
        (413, RefusedError),
        (422, RefusedError),
        (429, DeliveryError),
        (500, DeliveryError),
        (503, DeliveryError),
    ],
)
async def test_an_answer_says_what_becomes_of_the_chunk(
    receiver: Receiver, status: int, error: type[DeliveryError] | None
) -> None:
    receiver.answer = lambda: aiohttp.web.Response(
        status=status, text="said so", headers={"Location": receiver.url} if status == 301 else {}
    )
    if error is None:
        await deliver(receiver.url)
        return
    with pytest.raises(DeliveryError) as failed:
        await deliver(receiver.url)
    assert type(failed.value) is error
    assert str(status) in failed.value.reason
    assert "said so" in failed.value.reason
    assert len(receiver.got) == 1, "no redirect is followed"


@pytest.mark.parametrize(
    ("header", "least_s", "most_s"),
    [
        ("7", 7, 7),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 1e9, 1e10),
        ("soon", 0, 0),
        ("-3", 0, 0),
        ("9" * 400, 1e8, 1e10),
        ("Fri, 01 Jan 9999 00:00:00 -9999", 0, 1e12),
    ],
)
async def test_retry_after_is_obeyed(
    receiver: Receiver, header: str, least_s: float, most_s: float
) -> None:
    receiver.answer = lambda: aiohttp.web.Response(status=503, headers={"Retry-After": header})
    with pytest.raises(DeliveryError) as failed:
        await deliver(receiver.url)
    assert least_s <= failed.value.after_s <= most_s


async def test_an_endpoint_that_is_away_is_tried_again_later(unused_tcp_port: int) -> None:
    with pytest.raises(DeliveryError) as failed:
        await deliver(f"http://127.0.0.1:{unused_tcp_port}/")
    assert type(failed.value) is DeliveryError


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254"])
async def test_addresses_that_are_not_public_need_permission(receiver: Receiver, host: str) -> None:
    url = receiver.url.replace("127.0.0.1", host)
    with pytest.raises((ConfigError, DisabledError), match="allow the host or its network"):
        await deliver(url, policy=AddressPolicy(["10.0.0.0/8"]))
    assert not receiver.got


@pytest.mark.parametrize("host", ["127.1", "2130706433", "1.2.3.4.5"])
async def test_addresses_in_other_forms_are_refused(receiver: Receiver, host: str) -> None:
    with pytest.raises(ConfigError):
        await deliver(receiver.url.replace("127.0.0.1", host))
    assert not receiver.got


async def test_a_secret_has_to_be_base64() -> None:
    with pytest.raises(ConfigError):
        WebhookEndpoint(galileo.Webhook("https://example.org"), lambda: signing("whsec_$"), HERE)


async def test_each_request_is_signed_with_the_secret_that_is_there_then(
    receiver: Receiver,
) -> None:
    secrets = [SECRET, "whsec_" + base64.b64encode(b"another secret of 24 byte").decode()]
    current = secrets[0]
    endpoint = WebhookEndpoint(galileo.Webhook(receiver.url), lambda: signing(current), HERE)
    await endpoint.deliver(chunk())
    current = secrets[1]
    await endpoint.deliver(chunk())
    await endpoint.close()
    for secret, (headers, body) in zip(secrets, receiver.got, strict=True):
        assert Verifier(secret).verify(body, headers)


async def test_what_is_gone_is_a_document_without_features(receiver: Receiver) -> None:
    endpoint = WebhookEndpoint(galileo.Webhook(receiver.url), lambda: None, HERE)
    await endpoint.deliver(nothing_but_gone())
    await endpoint.close()
    [(headers, body)] = receiver.got
    assert headers["webhook-id"] == "smog/ops/2/gone/3-7"
    assert headers["ce-type"] == "galileo.gone"
    document = json.loads(body)
    assert (document["features"], document["notifications"]) == ([], 0)
    assert document["gone"] == [{"partition": 2, "first": 3, "last": 7, "commits": 5}]
