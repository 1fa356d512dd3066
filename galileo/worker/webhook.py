"""Pushes to URLs: signed as Standard Webhooks 1.0, with the attributes of CloudEvents 1.0."""

from __future__ import annotations

import datetime as dt
import email.utils
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver
from standardwebhooks import Webhook as Signer
from standardwebhooks.webhooks import EmptyWebhookSecretError
from yarl import URL

from galileo.client.ingestion import in_thread
from galileo.client.notification_json import MEDIA_TYPE
from galileo.errors import ConfigError
from galileo.model.broker import Webhook
from galileo.redaction import hide
from galileo.version import VERSION
from galileo.worker.addresses import AddressPolicy
from galileo.worker.endpoints import Chunk, DeliveryError, DisabledError, RefusedError
from galileo.worker.secrets import Secret

TIMEOUT_S = 30.0
RETRY_AFTER_DIGITS_MAX = 9
REASON_BYTES = 200
"""Of an answer that is no success, as a part of the reason."""
_REFUSED = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
}
_DISABLED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.GONE}


class WebhookEndpoint:
    """A URL.

    Args:
        sink: what to call.
        secret: reads the signing secret, base64 with "whsec_" before it, for each request; None:
            requests are not signed.
        policy: which addresses may be called.

    Raises:
        ConfigError: the secret is none, or not for this host, or the URL has an address that may
            not be called.
    """

    pairs_max = 10_000

    def __init__(
        self, sink: Webhook, secret: Callable[[], Secret | None], policy: AddressPolicy
    ) -> None:
        self._url = URL(sink.url, encoded=True)
        host = self._url.host or ""
        self._signer = partial(_signer, secret, host)
        self._signer()
        if host.replace(".", "").isdigit() or ":" in host:
            policy.check(host, [host])
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=_CheckedResolver(policy), limit=1),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            headers={"User-Agent": f"galileo/{VERSION}"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def deliver(self, chunk: Chunk) -> None:
        try:
            body, headers = await in_thread(self._request, chunk)
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as response:
                if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
                    return
                raise _error(response, await response.content.read(REASON_BYTES))
        except ConfigError as error:
            raise DisabledError(error.message) from error
        except TimeoutError as error:
            raise DeliveryError(f"no answer within {TIMEOUT_S:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise DeliveryError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        await self._session.close()

    def _request(self, chunk: Chunk) -> tuple[bytes, dict[str, str]]:
        """The body and the headers."""
        now, body, signer = dt.datetime.now(dt.UTC), chunk.document, self._signer()
        headers = {f"ce-{name}": _ascii(value) for name, value in chunk.attributes.items()}
        headers["ce-id"] = headers["webhook-id"] = key = _ascii(chunk.key)
        headers["Content-Type"] = MEDIA_TYPE
        headers["webhook-timestamp"] = str(int(now.timestamp()))
        if signer is not None:
            headers["webhook-signature"] = signer.sign(key, now, body.decode())
        return body, headers


class _CheckedResolver(AbstractResolver):
    """Finds the addresses of names, and refuses those that are not allowed."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._resolver = DefaultResolver()

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        self._policy.check(host, [one["host"] for one in found])
        return found

    async def close(self) -> None:
        await self._resolver.close()


def _signer(read: Callable[[], Secret | None], host: str) -> Signer | None:
    secret = read()
    if secret is None:
        return None
    text = secret.text_for(host)
    hide(text.removeprefix("whsec_"))
    try:
        return Signer(text)
    except (ValueError, RuntimeError, EmptyWebhookSecretError):  # They may quote the secret.
        raise ConfigError(
            f"expected a signing secret in base64, such as 'whsec_...', in the file of the secret "
            f"{secret.name!r}",
            expected="secrets",
        ) from None


def _ascii(text: str) -> str:
    """A text as a header's value; what is not ASCII is percent-encoded, as in CloudEvents."""
    return "".join(
        sign if " " < sign < "\x7f" and sign not in '"%' else _percent(sign) for sign in text
    )


def _percent(sign: str) -> str:
    return "".join(f"%{byte:02X}" for byte in sign.encode())


def _error(response: aiohttp.ClientResponse, begin: bytes) -> DeliveryError:
    said = " ".join(begin.decode(errors="replace").split())
    reason = f"{response.status} {response.reason or ''}{': ' if said else ''}{said}"
    if response.status in _REFUSED:
        return RefusedError(reason)
    if response.status in _DISABLED:
        return DisabledError(reason)
    return DeliveryError(reason, _after_s(response.headers.get("Retry-After", "")))


def _after_s(value: str) -> float:
    """Seconds of a `Retry-After` header: a number, or a date."""
    if value.strip().isdecimal():
        return float(value.strip()[:RETRY_AFTER_DIGITS_MAX])
    try:
        at = email.utils.parsedate_to_datetime(value)
        return max(0.0, (at - dt.datetime.now(at.tzinfo)).total_seconds())
    except (ValueError, OverflowError):
        return 0.0
