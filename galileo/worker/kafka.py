"""Pushes to Kafka: a message for each notification, by an idempotent producer.

aiokafka connects by names, to the servers of the sink and to those that these name. It runs in an
event loop of its own, in a thread, which connects by the addresses that it has checked, for hosts
that the secret is for. When the endpoint is closed, the loop ends with all that is not sent yet,
which would otherwise come after newer messages.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from aiokafka import AIOKafkaProducer, errors
from aiokafka.helpers import create_ssl_context

from galileo.client.ingestion import in_thread
from galileo.client.notification_json import MEDIA_TYPE, features
from galileo.errors import ConfigError
from galileo.model.broker import Kafka
from galileo.redaction import hide
from galileo.worker.addresses import AddressPolicy
from galileo.worker.endpoints import Chunk, DeliveryError, DisabledError, RefusedError
from galileo.worker.secrets import Secret

TIMEOUT_S = 30.0
CONNECT_S = STOP_S = 5.0
Message: TypeAlias = tuple[bytes, bytes, list[tuple[str, bytes]]]
"""Value, key and headers."""
Result = TypeVar("Result")
SETTINGS = {
    **dict.fromkeys(("security_protocol", "sasl_mechanism", "compression_type"), str),
    **dict.fromkeys(("sasl_plain_username", "sasl_plain_password"), str),
    "max_request_size": int,
}
"""Arguments of a producer that a secret may have, and their types."""
TLS_SETTINGS = ("cafile", "certfile", "keyfile", "password")
_REFUSED = (errors.MessageSizeTooLargeError, errors.CorruptRecordException)
_DISABLED = (
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
    errors.TopicAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.InvalidTopicError,
)


class KafkaEndpoint:
    """A producer of one topic for each channel.

    Args:
        sink: which servers and topic.
        loop: which runs in a thread.
    """

    pairs_max = 1_000

    def __init__(self, sink: Kafka, loop: _CheckedLoop) -> None:
        self._sink = sink
        self._loop = loop
        self._thread = threading.Thread(target=loop.run_forever, name="kafka", daemon=True)
        self._thread.start()
        self._producer: AIOKafkaProducer | None = None

    @classmethod
    async def connect(
        cls, sink: Kafka, secret: Secret | None, policy: AddressPolicy
    ) -> KafkaEndpoint:
        """An endpoint; errors as `open_endpoint`.

        Args:
            sink: which servers and topic.
            secret: `SETTINGS` and `TLS_SETTINGS`, "name=value" on each line.
            policy: which addresses the servers may have.
        """
        endpoint = cls(sink, _CheckedLoop(policy, secret))
        try:
            await endpoint._run(endpoint._start(secret))
        except BaseException:
            await endpoint.close()
            raise
        return endpoint

    async def deliver(self, chunk: Chunk) -> None:
        messages = await in_thread(_messages, chunk)
        topic = self._sink.topic.format(channel=chunk.channel, broker=chunk.broker)
        try:
            refused = await self._run(self._send(topic, messages))
        except ConfigError as error:
            raise DisabledError(error.message) from error
        if refused:
            raise RefusedError(next(iter(refused.values())), sorted(refused))

    async def close(self) -> None:
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
            await in_thread(self._thread.join)
            self._loop.close()

    async def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of something in the loop, which ends it after a while."""
        call = asyncio.run_coroutine_threadsafe(self._loop.bounded(work), self._loop)
        try:
            return await asyncio.wrap_future(call)
        except (errors.KafkaError, OSError) as error:  # TimeoutError is one.
            kind = DisabledError if isinstance(error, _DISABLED) else DeliveryError
            raise kind(_reason(error)) from error

    async def _start(self, secret: Secret | None) -> None:
        servers = self._sink.servers.split(",")
        texts = (
            [] if secret is None else [secret.text_for(one.partition(":")[0]) for one in servers]
        )
        settings = {} if secret is None else _settings(texts[0])
        try:
            self._producer = AIOKafkaProducer(
                bootstrap_servers=servers,
                client_id="galileo",
                enable_idempotence=True,
                retry_backoff_ms=1_000,
                **settings,
            )
        except (RuntimeError, ValueError):
            raise _wrong() from None
        await self._producer.start()

    async def _send(self, topic: str, messages: Sequence[Message]) -> dict[int, str]:
        """Sends messages; which ones are refused, and why."""
        assert self._producer is not None
        sent = []
        for value, key, headers in messages:
            try:
                sent.append(await self._producer.send(topic, value, key=key, headers=headers))
            except _REFUSED as error:
                sent.append(self._loop.create_future())
                sent[-1].set_exception(error)
        results = enumerate(await asyncio.gather(*sent, return_exceptions=True))
        failures = {number: one for number, one in results if isinstance(one, BaseException)}
        for failure in failures.values():
            if not isinstance(failure, _REFUSED):
                raise failure
        return {number: _reason(failure) for number, failure in failures.items()}

    async def _stop(self) -> None:
        try:
            await _cancel_others()
            if self._producer is not None:
                async with asyncio.timeout(STOP_S):
                    await self._producer.stop()  # Sends nothing: its task has ended.
            await _cancel_others()
        finally:
            self._loop.stop()


class _CheckedLoop(asyncio.SelectorEventLoop):
    """An event loop that connects to checked addresses only, of hosts that a secret is for."""

    def __init__(self, policy: AddressPolicy, secret: Secret | None) -> None:
        super().__init__()
        self._policy = policy
        self._secret = secret
        self._refused: asyncio.Future[None] = self.create_future()

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        ssl: Any = None,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """As that of asyncio; certificates are verified for the name, not for the address."""
        failure, name = OSError("the name has no address"), host if ssl else None
        try:
            if self._secret is not None:
                self._secret.text_for(host)
            addresses = await self._policy.resolve(host, port)
        except ConfigError as error:
            if not self._refused.done():
                self._refused.set_exception(error)
                self._refused.exception()  # Perhaps it is not awaited; asyncio would log it.
            raise OSError(error.message) from error  # aiokafka goes on after an OSError.
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await super().create_connection(
                        protocol_factory, address, port, ssl=ssl, server_hostname=name
                    )
            except OSError as error:
                failure = error
        raise failure

    async def bounded(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of something, unless it takes too long, or a server may not be reached.

        Raises:
            ConfigError: a server, perhaps one that another server has named, may not be reached.
            DeliveryError: it takes too long, and was cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            both: set[asyncio.Future[Any]] = {task, self._refused}
            await asyncio.wait(both, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if self._refused.done():
                self._refused.result()
            if not task.done():
                raise DeliveryError(f"no answer within {TIMEOUT_S:g} s")
            return task.result()
        finally:
            task.cancel()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _messages(chunk: Chunk) -> list[Message]:
    common = [(f"ce_{name}", value.encode()) for name, value in chunk.attributes.items()]
    common.append(("content-type", MEDIA_TYPE.encode()))

    def message(subscription: str, text: str, key: str) -> Message:
        return text.encode(), subscription.encode(), [*common, ("ce_id", key.encode())]

    gone = [message("", chunk.document.decode(), chunk.key)] if chunk.notifications.gone else []
    names = chunk.notifications.subscriptions().to_pylist()
    texts = features(chunk.notifications).to_pylist()
    pairs = enumerate(zip(names, texts, strict=True))
    return gone + [message(name, text, chunk.key_of(number)) for number, (name, text) in pairs]


def _settings(text: str) -> dict[str, Any]:
    """Arguments of a producer."""
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    given = {name.strip(): value.strip() for name, _, value in pairs}
    hide(*(value for name, value in given.items() if name.endswith("password")))
    if not all(sign for _, sign, _ in pairs) or not given.keys() <= {*SETTINGS, *TLS_SETTINGS}:
        raise _wrong()
    try:
        settings = {
            name: SETTINGS[name](value) for name, value in given.items() if name in SETTINGS
        }
        # Without a password OpenSSL would ask at the terminal for that of an encrypted key.
        tls = {"password": ""} | {name: given[name] for name in TLS_SETTINGS if name in given}
        is_tls = given.get("security_protocol", "").endswith("SSL")
        return settings | ({"ssl_context": create_ssl_context(**tls)} if is_tls else {})
    except (OSError, ValueError):
        raise _wrong() from None


def _wrong() -> ConfigError:
    """The error about a secret; that of a library may quote it."""
    names = ", ".join([*SETTINGS, *TLS_SETTINGS])
    words = f"expected a secret of lines 'name=value', with names of {names}, and values that fit"
    return ConfigError(words, expected="secrets")


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
