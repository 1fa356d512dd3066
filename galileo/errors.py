"""Every error that Galileo raises, sorted by what a handler would do with it.

One root, `GalileoError`; five branches: fix the input (`InputError`), ask elsewhere
(`AskElsewhere`), try again (`TryAgain`), give up (`Gone`), report a bug (`Bug`). Each class has
a stable `kind` that crosses the wire, so a client raises the class that the node raised.
A message says what was expected, what came, and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do about an error, in the words of each way to call a cluster."""

    python: str
    command: str


REMEDIES = {
    "token": Remedy(
        "pass token= or token_file= to galileo.connect, or set GALILEO_TOKEN_FILE or GALILEO_TOKEN",
        "name a file of it by --token-file, or set GALILEO_TOKEN_FILE or GALILEO_TOKEN",
    ),
    "tls": Remedy(
        "pass the directory of your certificates to galileo.connect as tls=, or set GALILEO_TLS",
        "name the directory of your certificates by --tls, or set GALILEO_TLS",
    ),
    "no_tls": Remedy(
        "connect without tls= and GALILEO_TLS, or correct the address",
        "leave out --tls and GALILEO_TLS, or correct the address",
    ),
    "insecure": Remedy(
        "pass tls= to galileo.connect, or insecure=True if the network is trusted",
        "name the certificates by --tls, or add --insecure if the network is trusted",
    ),
    "create_dataset": Remedy(
        "create it first with create_dataset",
        "create it first with galileo create or galileo ingest --create",
    ),
    "list_ccqs": Remedy(
        "list_ccqs() returns those that run",
        "galileo ccq list shows those that run",
    ),
    "one_sampler": Remedy(
        "name it as entry='module:Class'",
        "send a file with one such class",
    ),
    "send_sampler": Remedy(
        "send it first with send_sampler",
        "send it first with galileo sampler send",
    ),
}
"""By the name that an error carries as `details["remedy"]`."""


class GalileoError(Exception):
    """Root of all errors of this package.

    Attributes:
        kind: stable name of the error, the same on the wire, in logs and in `--json` output.
        message: what is wrong, in words for every caller; `str` adds the remedy as for Python.
        details: facts a program can act on (an address, a position, a delay), JSON-like.

    Example:
        >>> try:
        ...     client.count("wether")
        ... except galileo.GalileoError as error:
        ...     print(error.kind, error.details["nearest"])
        unknown_dataset weather
    """

    kind: ClassVar[str] = "error"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details

    def __str__(self) -> str:
        return self._worded(self.remedy.python if self.remedy else "")

    @property
    def remedy(self) -> Remedy | None:
        """What to do, where it differs between Python and the command line."""
        return REMEDIES.get(str(self.details.get("remedy")))

    @property
    def command_message(self) -> str:
        """The message, and the remedy as for the command line."""
        return self._worded(self.remedy.command if self.remedy else "")

    def _worded(self, remedy: str) -> str:
        return f"{self.message}; {remedy}" if remedy else self.message


# --- fix the input ---------------------------------------------------------------------------


class InputError(GalileoError):
    """The request is wrong; sending it again unchanged cannot help."""

    kind = "invalid_input"


class InvalidSchema(InputError):
    kind = "invalid_schema"


class InvalidObservations(InputError):
    """A table does not fit its schema: a missing or unknown column, a wrong type, latitude 91."""

    kind = "invalid_observations"


class QuerySyntaxError(InputError):
    """CQL2 that does not parse; `details["position"]` is the 0-based offset in the text."""

    kind = "query_syntax"


class UnknownProperty(InputError):
    """A property that the schema lacks; `details["nearest"]` names the likeliest one meant."""

    kind = "unknown_property"


class UnsupportedQuery(InputError):
    """Valid CQL2 that means nothing here, such as comparing a text feature with a number."""

    kind = "unsupported_query"


class UnknownDataset(InputError):
    kind = "unknown_dataset"


class DatasetExists(InputError):
    kind = "dataset_exists"


class UnknownCcq(InputError):
    kind = "unknown_ccq"


class UnknownSampler(InputError):
    kind = "unknown_sampler"


class InvalidArchive(InputError):
    """An archive of a sampler that is damaged, too large, or contains what it may not."""

    kind = "invalid_archive"


class NotContained(InputError):
    """Code that was sent is not run, since this machine cannot contain it."""

    kind = "not_contained"


class InvalidToken(InputError):
    """A resume token that is damaged, of another CCQ, or ahead of everything ever committed."""

    kind = "invalid_token"


class MessageTooLarge(InputError):
    kind = "message_too_large"


class BatchConflict(InputError):
    """A producer used one batch number for two different batches."""

    kind = "batch_conflict"


class SpoolConflict(InputError):
    """Two readers store into one spool; the one that is told has stored nothing."""

    kind = "spool_conflict"


class ConfigError(InputError):
    kind = "config"


class MissingExtra(ConfigError):
    """A package of an extra is not installed; `details` name `extra`, `package` and `command`."""

    kind = "missing_extra"


class NotPermitted(InputError):
    kind = "not_permitted"


class Unauthenticated(NotPermitted):
    """The caller did not prove who it is: no token, or one that nobody has."""

    kind = "unauthenticated"


class Forbidden(NotPermitted):
    """Who the caller is, is known, and it may not do this."""

    kind = "forbidden"


class QuotaExceeded(InputError):
    """More than the caller may have, however long it waits; `details` name quota and bound."""

    kind = "quota_exceeded"


# --- ask elsewhere ---------------------------------------------------------------------------


class AskElsewhere(GalileoError):
    """Another node is the one to ask; `details["address"]` says which, if it is known."""

    kind = "ask_elsewhere"


# --- try again -------------------------------------------------------------------------------


class TryAgain(GalileoError):
    """Nothing is wrong with the request; `details["after_s"]` says when to repeat it."""

    kind = "try_again"


class Unavailable(TryAgain):
    """No node that could answer was reachable."""

    kind = "unavailable"


class IncompleteAnswer(Unavailable):
    """A whole answer was asked for, and nodes are away; `details["missing"]` lists partitions."""

    kind = "incomplete_answer"


class Overloaded(TryAgain):
    """A named limit (queue, stream, message count) is reached."""

    kind = "overloaded"


class Throttled(Overloaded):
    """More at a time than the caller may have; `details` name quota, bound and `after_s`."""

    kind = "throttled"


class DeadlineExceeded(TryAgain):
    kind = "deadline_exceeded"


class PartitionStopped(TryAgain):
    """A partition refuses writes after a disk error (full, read-only, failed fsync)."""

    kind = "partition_stopped"


class PartitionMoved(TryAgain):
    """The node does not have the partition any more, or not yet, or is about to give it away."""

    kind = "partition_moved"


# --- give up ---------------------------------------------------------------------------------


class Gone(GalileoError):
    """What was asked for existed and is over."""

    kind = "gone"


class CcqExpired(Gone):
    kind = "ccq_expired"


class CcqCancelled(Gone):
    kind = "ccq_cancelled"


class CcqDropped(Gone):
    """The dataset of a continuous query was dropped, and the query ended with it."""

    kind = "ccq_dropped"


class SamplerFailed(Gone):
    """The query's own sampler raised; a CCQ stands still and loses nothing.

    `details["traceback"]` is the beginning of what a sent sampler's Python said of it, if anything.
    """

    kind = "sampler_failed"


class SamplerRevoked(Gone):
    """The sampler's code was sent and has been revoked; nothing that uses it goes on."""

    kind = "sampler_revoked"


class DataDropped(Gone):
    """Retention dropped the commits that were asked for; `details` name them."""

    kind = "data_dropped"


class Cancelled(Gone):
    """The caller cancelled the operation."""

    kind = "cancelled"


# --- report a bug, or a broken disk ----------------------------------------------------------


class Bug(GalileoError):
    """Something that must not happen did; worth a report with the message and the log."""

    kind = "internal"


class DataDamaged(Bug):
    """Stored bytes fail their checksum; names file and offset. Never served, never cut."""

    kind = "data_damaged"


class GalileoWarning(UserWarning):
    """A call that works, but probably not as it was meant, such as a misspelt feature in SPARQL.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     answer = labels.sparql("ASK { ?label f:temprature ?t }")
        >>> caught[0].category.__name__
        'GalileoWarning'
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


def reason_of(error: Exception) -> str:
    """The words of an error for a message; of a `KeyError` not the key alone."""
    return f"the key {error} is missing" if isinstance(error, KeyError) else str(error)


def _leaves(root: type[GalileoError]) -> list[type[GalileoError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _leaves(child))]


def by_kind() -> dict[str, type[GalileoError]]:
    """Maps every kind to its class, for rebuilding an error that crossed the wire."""
    return {cls.kind: cls for cls in _leaves(GalileoError)}
