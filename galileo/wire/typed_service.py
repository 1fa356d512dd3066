"""A gRPC service whose calls are the methods of a class, with messages by their annotations.

Each public method of the class is a call: its parameters are the request, what it returns is the
answer, and a sequence among them arrives as a tuple. An asynchronous generator answers with a
stream of what it yields. A method that is added to the class is a call of the service, with nothing
else to write but its policy. All messages carry one digest of all types of the service; see
`galileo.wire.messages`.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from galileo.wire.messages import HEAD_BYTES_MAX, Forms, MessageCodec

P = ParamSpec("P")
Answer = TypeVar("Answer")
Method = TypeVar("Method", bound=Callable[..., Any])


def bounded_head(bytes_max: int) -> Callable[[Method], Method]:
    """Bounds the heads of the requests of a method; decoding one keeps the event loop."""

    def bounded(method: Method) -> Method:
        method.head_bytes_max = bytes_max  # type: ignore[attr-defined]
        return method

    return bounded


class TypedCall(Generic[P, Answer]):
    """A call of a service.

    Attributes:
        name: of the method.
        path: what gRPC calls it, "/service/method".
        is_stream: whether the answer is a stream of messages.
    """

    def __init__(
        self,
        path: str,
        *,
        request: type,
        requests: MessageCodec[Any],
        answers: MessageCodec[Answer],
        is_stream: bool,
    ) -> None:
        self.path = path
        self.is_stream = is_stream
        self.name = path.rpartition("/")[2]
        self._request = request
        self._names = [field.name for field in dataclasses.fields(request)]
        self._requests = requests
        self._answers = answers

    def encode(self, *arguments: P.args, **named: P.kwargs) -> bytes:
        """The request of a call with these arguments; errors as `MessageCodec.encode`."""
        return self._requests.encode(self._request(*arguments, **named))

    def decode(self, request: bytes) -> list[Any]:
        """The arguments of a request; errors as `MessageCodec.decode`."""
        arguments = self._requests.decode(request)
        return [getattr(arguments, name) for name in self._names]

    def encode_answer(self, answer: Answer) -> bytes:
        return self._answers.encode(answer)

    def decode_answer(self, answer: bytes) -> Answer:
        return self._answers.decode(answer)


class TypedService:
    """A service and its calls.

    Args:
        name: the full name of the service.
        contract: the class.
        version: of what else has to be equal on both sides.
        shared: calls of the service that also those make who do not know all of its types; their
            messages carry the digest of `shared`.

    Attributes:
        full_name: the name.
        calls: by the name of the method.
        digest: of all types.

    Raises:
        TypeError: a method has a parameter or result that does not travel.
    """

    def __init__(
        self, name: str, contract: type, *, version: int = 0, shared: TypedService | None = None
    ) -> None:
        self.full_name = name
        shared_calls = shared.calls if shared else {}
        forms = Forms()
        functions = {
            name: function
            for name, function in inspect.getmembers(contract, _is_call)
            if not name.startswith("_") and name not in shared_calls
        }
        methods = {
            name: (_request_of(function), forms.of(_hints_of(function)["return"]))
            for name, function in functions.items()
        }
        requests = {name: forms.of(request) for name, (request, _) in methods.items()}
        answers = ", ".join(f"{name} -> {answer.text}" for name, (_, answer) in methods.items())
        others = shared.digest.hex() if shared else ""
        self.digest: bytes = forms.digest(f"{version}, {answers} {others}")
        self.calls: Mapping[str, TypedCall[..., Any]] = MappingProxyType(
            {
                called: TypedCall(
                    f"/{name}/{called}",
                    request=request,
                    requests=MessageCodec(
                        requests[called],
                        digest=self.digest,
                        name=called,
                        head_bytes_max=getattr(functions[called], "head_bytes_max", HEAD_BYTES_MAX),
                    ),
                    answers=MessageCodec(answer, digest=self.digest, name=f"{called}'s answer"),
                    is_stream=inspect.isasyncgenfunction(functions[called]),
                )
                for called, (request, answer) in methods.items()
            }
            | {**shared_calls}
        )

    def call(
        self,
        method: Callable[
            Concatenate[Any, P], Coroutine[Any, Any, Answer] | AsyncGenerator[Answer, None]
        ],
    ) -> TypedCall[P, Answer]:
        """The call that is a method of the class."""
        call: TypedCall[P, Answer] = self.calls[method.__name__]  # type: ignore[assignment]
        return call


def _is_call(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _request_of(function: Callable[..., Any]) -> type:
    """A dataclass of the parameters of a method."""
    hints = _hints_of(function)
    parameters = [(name, hint) for name, hint in hints.items() if name != "return"]
    return dataclasses.make_dataclass(function.__name__, parameters, frozen=True, slots=True)


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters of a method, and of its result or of the parts of it."""
    hints = typing.get_type_hints(function, include_extras=True)
    if inspect.isasyncgenfunction(function):
        hints["return"] = typing.get_args(hints["return"])[0]
    return {name: _as_sent(hint) for name, hint in hints.items()}


def _as_sent(hint: Any) -> Any:
    """A hint with a tuple in place of a sequence."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return typing.Annotated[_as_sent(arguments[0]), arguments[1]]
    return types.GenericAlias(tuple, (*arguments, ...)) if origin is Sequence else hint
