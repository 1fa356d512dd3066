"""Events of the audit log: administrative acts, uploads and runs of sampler code, refusals.

A line has `time`, `node`, `request` (see `galileo.request_id`), `principal`, `roles`, `peer`,
`action`, `object` and `outcome` ("done" or the kind of the error). Equal refusals are aggregated:
the first is written at once, the others as one line with their number in `times`, so that a
persistent caller cannot fill the log. Of a request, lines contain only names and ids.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from galileo import request_id
from galileo.clock import Clock
from galileo.errors import GalileoError
from galileo.model.schema import name_of_key
from galileo.model.stored_schema import stored_schema_from_json
from galileo.redaction import redacted_start
from galileo.rpc.access import Principal
from galileo.rpc.call_log import REFUSALS, CallRecord
from galileo.rpc.identity import CALLER
from galileo.samplers import SamplerSpec
from galileo.server.audit_log import AuditLog

DONE = "done"
TOGETHER_S = 10.0
"""Equal refusals within this time become one more line."""
KINDS_MAX = 10_000
"""Aggregated kinds of refusals; beyond it the oldest is written early."""
NAME_MAX = 200
"""Characters of a name or id from a request."""
NO_PRINCIPAL = Principal("", frozenset())

_Act = tuple[str, str]
"""Action and object."""


@dataclass(slots=True)
class _Refused:
    """Equal refusals since the last line about them."""

    event: dict[str, Any]
    since: float
    times: int = 0


class Audit:
    """Writes events to the audit log.

    Args:
        written: the log.
        node: the name of the node.
        owner_of: the owner of a continuous query; None if it is unknown.
        clock: wall and monotonic clock.
    """

    def __init__(
        self,
        written: AuditLog,
        *,
        node: str,
        owner_of: Callable[[str], str | None],
        clock: Clock,
    ) -> None:
        self._log = written
        self._node = node
        self._owner_of = owner_of
        self._clock = clock
        self._refused: OrderedDict[tuple[str, ...], _Refused] = OrderedDict()

    @property
    def failed(self) -> int:
        return self._log.failed

    def call_ended(self, ended: CallRecord) -> None:
        """Records a finished call, if it is an event."""
        kind = ended.error.kind if ended.error is not None else ""
        if kind in REFUSALS:
            self._refuse(ended, _caller(), action=ended.name, kind=kind)
            return
        acts = list(self._acts(ended))
        if acts:
            outcome = kind or (DONE if ended.code is None else ended.code.name.lower())
            caller = _caller()
            for action, what in acts:
                self._write(self._event(ended, caller, action, what) | {"outcome": outcome})

    def note(self, action: str, what: str, *, error: GalileoError | None = None) -> None:
        """Records an act of the node itself."""
        event = {**self._when(), "principal": "", "roles": [], "peer": "", "action": action}
        self._write({**event, "object": what, "outcome": error.kind if error else DONE})

    def flush(self, *, is_last: bool = False) -> None:
        """Writes the aggregated refusals that are due, or all if `is_last`."""
        now = self._clock.monotonic()
        for key, one in list(self._refused.items()):
            if not is_last and now < one.since + TOGETHER_S:
                return
            del self._refused[key]
            self._write_repeated(one)

    def close(self) -> None:
        self.flush(is_last=True)
        self._log.close()

    # --- refusals --------------------------------------------------------------------------------

    def _refuse(self, ended: CallRecord, caller: Principal, *, action: str, kind: str) -> None:
        self.flush()
        host = ended.peer.rpartition(":")[0]
        key = (caller.name, host, action, kind)
        known = self._refused.get(key)
        if known is not None:
            known.times += 1
            return
        if len(self._refused) >= KINDS_MAX:
            self._write_repeated(self._refused.popitem(last=False)[1])
        what = _quota(ended) or _object(ended)
        event = self._event(ended, caller, action, what) | {"outcome": kind}
        self._refused[key] = _Refused(event, self._clock.monotonic())
        self._write(event)

    def _write_repeated(self, refused: _Refused) -> None:
        """Writes the refusals after the first as one line."""
        if refused.times:
            self._write(refused.event | self._when() | {"times": refused.times})

    # --- acts ------------------------------------------------------------------------------------

    def _acts(self, ended: CallRecord) -> Iterator[_Act]:
        if ended.name == "Continuous/Cancel":
            owner = self._owner_of(ended.request.ccq_id)
            if owner is not None and owner != _caller().name:
                yield "cancel-ccq", ended.request.ccq_id
            return
        find = _ACTS.get(ended.name)
        if find is None:
            return
        yield from find(ended.request)

    def _event(
        self, ended: CallRecord, caller: Principal, action: str, what: str
    ) -> dict[str, Any]:
        return {
            **self._when(),
            "principal": caller.name,
            "roles": sorted(caller.roles),
            "peer": ended.peer,
            "action": action,
            "object": redacted_start(what, NAME_MAX),
        }

    def _when(self) -> dict[str, Any]:
        at = dt.datetime.fromtimestamp(self._clock.wall(), tz=dt.UTC)
        time = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {"time": time, "node": self._node, "request": request_id.current()}

    def _write(self, event: Mapping[str, Any]) -> None:
        self._log.write(event)


def _caller() -> Principal:
    """The caller of the call that has just ended; its context may be gone."""
    return CALLER.get() or NO_PRINCIPAL


def _object(ended: CallRecord) -> str:
    """The query, dataset or node of a refused call."""
    request = getattr(ended.request, "head", ended.request)
    return next((v for n in ("ccq_id", "dataset", "node") if (v := getattr(request, n, ""))), "")


def _quota(ended: CallRecord) -> str:
    if ended.error is None:
        return ""
    return str(json.loads(ended.error.details_json or "{}").get("quota", ""))


def _created(request: Any) -> Iterator[_Act]:
    try:
        yield "create-dataset", stored_schema_from_json(request.schema_json).name
    except GalileoError:
        yield "create-dataset", ""


def _digest(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()


def _run(text: str) -> Iterator[_Act]:
    """The run of an uploaded sampler; installed samplers are trusted code."""
    try:
        spec = SamplerSpec.from_json(text) if text else None
    except GalileoError:
        return
    if spec is not None and spec.archive:
        yield "run-sampler", spec.archive


def _run_many(requests: Iterable[Any]) -> Iterator[_Act]:
    for text in dict.fromkeys(one.sampler_json for one in requests):
        yield from _run(text)


_ACTS: Mapping[str, Callable[[Any], Iterator[_Act]]] = {
    "Cluster/CreateDataset": _created,
    "Cluster/AddFeatures": lambda request: iter([("add-features", name_of_key(request.dataset))]),
    "Cluster/DropDataset": lambda request: iter([("drop-dataset", name_of_key(request.dataset))]),
    "Cluster/SetRetention": lambda request: iter([("set-retention", request.dataset)]),
    "Cluster/ApplyRetention": lambda request: iter([("apply-retention", request.dataset)]),
    "Cluster/CleanDataset": lambda request: iter([("clean-dataset", name_of_key(request.dataset))]),
    "Cluster/ForgetNode": lambda request: iter([("forget-node", request.node)]),
    "Cluster/Drain": lambda request: iter([("undrain" if request.undo else "drain", request.node)]),
    "Cluster/Scrub": lambda request: iter([("scrub", "")] if request.begin else []),
    "Samplers/Upload": lambda request: iter([("send-sampler", _digest(request.archive))]),
    "Samplers/Revoke": lambda request: iter([("revoke-sampler", request.digest)]),
    "Continuous/Submit": lambda request: _run(request.sampler_json),
    "Query/Run": lambda request: _run(request.sampler_json),
    "Storage/Scan": lambda request: _run_many(request.items),
    "Partitions/Move": lambda request: iter(
        [("move-partition", f"{request.partition} {request.to}")]
    ),
}
