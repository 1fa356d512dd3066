"""The errors that Galileo raises, in one branch for each way to handle them.

The root is `GalileoError`. Its branches: fix the input (`InputError`), call another node
(`NotOwner`), try again (`TransientError`), give up (`TerminalError`), report it
(`InternalError`). Each class has a stable `kind` that is sent with the error, so that a client
raises the class that the node raised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do about an error: in Python, on the command line, and over HTTP.

    A name in braces stands for the value that the error has in `details`.
    """

    python: str
    command: str
    http: str = ""


NAMED_MAX = 8
"""Values of a list that a message names."""


def listed(
    values: Collection[T], *, most: int = NAMED_MAX, text_of: Callable[[T], str] = str
) -> str:
    """The texts of the first values, and the number of the others."""
    more = f" and {len(values) - most:,} more" if len(values) > most else ""
    return ", ".join(map(text_of, islice(values, most))) + more


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
        "create it first with galileo dataset create or galileo ingest --create",
    ),
    "list_ccqs": Remedy(
        "list_ccqs() returns those that run",
        "galileo ccq list shows those that run",
    ),
    "lost_rows": Remedy("query again", "query again"),
    "lost_cursor": Remedy(
        "go on with error.details['cursor'], or read the table anew",
        "go on with the cursor {token}, or read the table anew",
    ),
    "lost_token": Remedy(
        "go on with error.details['token']",
        "go on with the token {token}",
        "go on with the token in the details",
    ),
    "one_sampler": Remedy(
        "name it as entry='module:Class'",
        "send a file with one such class",
    ),
    "edit_graph": Remedy(
        "change a copy, which to_graph() returns",
        "write a copy with galileo sparql export, and change that",
    ),
    "netcdf_group": Remedy("name it: GridOptions(group=...)", "name it with --group"),
    "csv_encoding": Remedy(
        "name its encoding, such as CsvOptions(encoding='latin-1')",
        "name its encoding by --encoding, such as latin-1",
    ),
    "csv_bad_rows": Remedy(
        "name another separator or quotation mark, or keep such rows aside: "
        "CsvOptions(bad_rows=FILE)",
        "name another separator or quotation mark, or keep such rows aside by --bad-rows FILE",
    ),
    "csv_names": Remedy(
        "name the columns: CsvOptions(names=[...])", "name the columns with --names"
    ),
    "csv_header": Remedy(
        "if the first line has no names, name the columns with CsvOptions(names=[...]), or skip "
        "lines with CsvOptions(skip=N)",
        "if the first line has no names, name the columns with --names, or skip lines with --skip",
    ),
    "csv_times": Remedy(
        "name the format of the times, as of strptime: CsvOptions(time_format=...)",
        "name the format of the times, as of strptime, with --time-format",
    ),
    "csv_units": Remedy(
        "a line of units is skipped by CsvOptions(units=True)",
        "a line of units is skipped by --units",
    ),
    "csv_decimal": Remedy(
        "decimal commas are read by CsvOptions(decimal=',')",
        "decimal commas are read by --decimal ,",
    ),
    "epoch": Remedy(
        "for seconds or milliseconds since 1970, use mapping={{'time': 'epoch_s({column})'}} or "
        "epoch_ms({column})",
        "for seconds or milliseconds since 1970, use --map 'time=epoch_s({column})' or "
        "epoch_ms({column})",
    ),
    "degrees": Remedy(
        "name it with mapping={{{column!r}: 'COLUMN'}}, or give a value for all rows, such as "
        "mapping={{{column!r}: '39.1'}}",
        "name it with --map {column}=COLUMN, or give a value for all rows, such as "
        "--map {column}=39.1",
        "name one column {column!r}",
    ),
    "time": Remedy(
        "name it with mapping={{'time': 'COLUMN'}}, or give the time of all rows, such as "
        "mapping={{'time': '@2012-03-01T06:00Z'}}",
        "name it with --map time=COLUMN, or give the time of all rows, such as "
        "--map time=@2012-03-01T06:00Z",
        "name one column 'time'",
    ),
    "time_of_all": Remedy(
        "give the time of all rows, such as mapping={{'time': '@2012-03-01T06:00Z'}}",
        "give the time of all rows, such as --map time=@2012-03-01T06:00Z",
    ),
    "one_column": Remedy(
        "choose one, such as mapping={{{column!r}: {candidates[0]!r}}}",
        "choose one, such as --map {column}={candidates[0]}",
        "name one column {column!r}",
    ),
    "coordinate_variable": Remedy(
        "name the variable with mapping={{{variable!r}: 'VARIABLE'}}",
        "name the variable with --map {variable}=VARIABLE",
    ),
    "geometries": Remedy(
        "take a point of each in GeoPandas, such as .set_geometry(frame.representative_point()), "
        "or store the rows in a table with upsert",
        "convert each to a point, or store the rows in a table with galileo table upsert",
    ),
    "missing_value": Remedy(
        "if it means a missing value, ingest the file into a new dataset with missing={number}",
        "if it means a missing value, ingest the file into a new dataset with --missing {number}",
    ),
    "cluster_counts": Remedy(
        "start with nodes={expected[nodes]} and groups={expected[groups]}, or name another "
        "directory",
        "start with --nodes {expected[nodes]} --groups {expected[groups]}, or name another "
        "directory",
    ),
    "node_insecure": Remedy(
        "name certificates in [tls], or set security.insecure = true to serve a trusted network "
        "without encryption",
        "name certificates in [tls], or set security.insecure = true (--insecure) to serve a "
        "trusted network without encryption",
    ),
    "gateway_insecure": Remedy(
        "name a certificate and its key, or set insecure if the network is trusted",
        "name a certificate and its key (--certificate, --key), or add --insecure if the network "
        "is trusted",
    ),
    "public": Remedy(
        "to serve a trusted network, set public=True", "to serve a trusted network, add --public"
    ),
    "node_alive": Remedy(
        "remove it without lost=True, or stop it first",
        "remove it without --lost, or stop it first",
    ),
    "send_sampler": Remedy(
        "send it first with send_sampler",
        "send it first with galileo sampler upload",
    ),
}
"""By the names, separated by spaces, that an error carries as `details["remedy"]`."""


class _Advice:
    """A message and its details; `details["remedy"]` names what to do about the error."""

    message: str
    details: dict[str, Any]

    def __str__(self) -> str:
        return self._advise(lambda remedy: remedy.python)

    @property
    def command_message(self) -> str:
        """The message with the remedies for the command line."""
        return self._advise(lambda remedy: remedy.command)

    @property
    def http_message(self) -> str:
        """The message with the remedies for HTTP."""
        return self._advise(lambda remedy: remedy.http)

    def _advise(self, words: Callable[[Remedy], str]) -> str:
        names = str(self.details.get("remedy", "")).split()
        advice = [
            words(REMEDIES[name]).format_map(self.details) for name in names if name in REMEDIES
        ]
        return "; ".join([self.message, *filter(None, advice)])


class GalileoError(_Advice, Exception):
    """Root of all errors of this package.

    Attributes:
        kind: stable name of the error, the same on the wire, in logs and in `--json` output.
        message: what is wrong; `str(error)` adds the remedy for Python.
        details: values that a program can act on (an address, a position, a delay), as in JSON;
            docs/errors.md says what each key means.

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


# --- fix the input ---------------------------------------------------------------------------


class InputError(GalileoError):
    """The request is wrong; sending it again unchanged cannot help."""

    kind = "invalid_input"


class InvalidSchema(InputError):
    kind = "invalid_schema"


class InvalidFlags(InvalidSchema):
    """A value of a flagged feature has no meaning of its own, or the feature is no int."""

    kind = "invalid_flags"


class UnknownUnit(InvalidSchema):
    """A unit that UDUNITS does not know; `details["nearest"]` is the most similar one."""

    kind = "unknown_unit"


class IncompatibleUnits(InputError):
    """A unit of a file that cannot be converted to its feature's; `details` name both."""

    kind = "incompatible_units"


class InvalidObservations(InputError):
    """A table does not match its schema: a missing or unknown column, a wrong type, latitude 91."""

    kind = "invalid_observations"


class QuerySyntaxError(InputError):
    """CQL2 that does not parse; `details["position"]` is the 0-based offset in the text."""

    kind = "query_syntax"


class UnknownProperty(InputError):
    """A property that the schema lacks; `details["nearest"]` is the most similar name."""

    kind = "unknown_property"


class UnsupportedQuery(InputError):
    """Valid CQL2 without a meaning here, such as comparing a text feature with a number."""

    kind = "unsupported_query"


class UnknownFlag(UnsupportedQuery):
    """A meaning that no flag of a feature has; `details["meanings"]` lists those that there are."""

    kind = "unknown_flag"


class UnknownDataset(InputError):
    kind = "unknown_dataset"


class DatasetExists(InputError):
    kind = "dataset_exists"


class UnknownCcq(InputError):
    kind = "unknown_ccq"


class UnknownSampler(InputError):
    kind = "unknown_sampler"


class UnknownBroker(InputError):
    kind = "unknown_broker"


class InvalidArchive(InputError):
    """A sampler archive that is damaged, too large, or has members that are not allowed."""

    kind = "invalid_archive"


class SandboxUnavailable(InputError):
    """Uploaded code is not run, because this machine has no sandbox."""

    kind = "sandbox_unavailable"


class InvalidToken(InputError):
    """A resume token that is damaged, of another CCQ, or ahead of all commits."""

    kind = "invalid_token"


class MessageTooLarge(InputError):
    kind = "message_too_large"


class BatchConflict(InputError):
    """A producer used one batch number for two different batches."""

    kind = "batch_conflict"


class Conflict(InputError):
    """A row was changed after the cursor of a conditional write.

    `details` name its `key`, and the `cursor` of the change, empty before readers see it. Rows of
    the call in other partitions may be stored.
    """

    kind = "conflict"


class DuplicateKey(InputError):
    """A conditional write has several rows with one key; nothing is stored."""

    kind = "duplicate_key"


class SpoolConflict(InputError):
    """Two readers store into one spool; the reader that gets this error has stored nothing."""

    kind = "spool_conflict"


class ConfigError(InputError):
    kind = "config"


class MissingExtra(ConfigError):
    """A package of an extra is not installed; `details` name `extra`, `package` and `command`."""

    kind = "missing_extra"


class NotPermitted(InputError):
    kind = "not_permitted"


class Unauthenticated(NotPermitted):
    """The caller sent no token, or an unknown one."""

    kind = "unauthenticated"


class Forbidden(NotPermitted):
    """The authenticated caller lacks the permission."""

    kind = "forbidden"


class QuotaExceeded(InputError):
    """The request exceeds a quota that does not refill; `details` name quota and bound."""

    kind = "quota_exceeded"


# --- call another node -----------------------------------------------------------------------


class NotOwner(GalileoError):
    """Another node owns the data or query; `details["address"]` is its address, if known."""

    kind = "not_owner"


class RangesChanged(NotOwner):
    """Rows were split by other geohash ranges than the node's; `details` name its `range_epoch`.

    Read the topology and send the whole batch again, split anew.
    """

    kind = "ranges_changed"


# --- try again -------------------------------------------------------------------------------


class TransientError(GalileoError):
    """The same request can succeed later; `details["after_s"]` says when to repeat it."""

    kind = "transient"


class Unavailable(TransientError):
    """No node that can answer is reachable."""

    kind = "unavailable"


class IncompleteAnswer(Unavailable):
    """A complete answer is required; `details["missing"]` lists the unreachable partitions."""

    kind = "incomplete_answer"


class Overloaded(TransientError):
    """A named limit (queue, stream, message count) is reached."""

    kind = "overloaded"


class Throttled(Overloaded):
    """The caller exceeds a rate quota; `details` name quota, bound and `after_s`."""

    kind = "throttled"


class DeadlineExceeded(TransientError):
    kind = "deadline_exceeded"


class PartitionReadOnly(TransientError):
    """A partition refuses writes after a disk error (full, read-only, failed fsync)."""

    kind = "partition_read_only"


class PartitionMoved(TransientError):
    """The partition is moving to or from the node, or has moved away."""

    kind = "partition_moved"


# --- give up ---------------------------------------------------------------------------------


class TerminalError(GalileoError):
    """The query, data or operation existed and has ended; retrying cannot help."""

    kind = "terminal"


class CcqExpired(TerminalError):
    kind = "ccq_expired"


class CcqCancelled(TerminalError):
    kind = "ccq_cancelled"


class CcqDropped(TerminalError):
    """The dataset of a continuous query was dropped, and the query ended with it."""

    kind = "ccq_dropped"


class SamplerFailed(TerminalError):
    """The sampler of a query raised an error; a CCQ does not advance and loses nothing.

    `details["traceback"]` is the beginning of the traceback of an uploaded sampler.
    """

    kind = "sampler_failed"


class SamplerRevoked(TerminalError):
    """The uploaded sampler was revoked; queries that use it have ended."""

    kind = "sampler_revoked"


class DataExpired(TerminalError):
    """Retention deleted the requested commits; `details` name them."""

    kind = "data_expired"


class HistoryChanged(DataExpired):
    """Commits that the reader has read were lost: a backup was restored, or a disk was replaced.

    For each of the `partitions` the details have the reader's position in `sequences`, the last
    commit before it that is still stored in `common`, and in `until` the position behind which the
    reader goes on. The error of a client also has the whole `cursor` or `token` to go on with.
    """

    kind = "history_changed"


class Cancelled(TerminalError):
    """The caller cancelled the operation."""

    kind = "cancelled"


# --- report a bug, or a broken disk ----------------------------------------------------------


class InternalError(GalileoError):
    """A bug of Galileo; report it with the message and the log."""

    kind = "internal"


class CorruptData(InternalError):
    """Stored bytes fail their checksum; the message names file and offset."""

    kind = "corrupt_data"


class GalileoWarning(_Advice, UserWarning):
    """A call that is valid but probably wrong, such as a misspelt feature in SPARQL.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     answer = labels.sparql("ASK { ?label f:temprature ?t }")
        >>> caught[0].category.__name__
        'GalileoWarning'
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


def reason_of(error: Exception) -> str:
    """The text of an error for a message; explains the bare key of a `KeyError`."""
    return f"the key {error} is missing" if isinstance(error, KeyError) else str(error)


def _subclasses(root: type[GalileoError]) -> list[type[GalileoError]]:
    return [root, *(cls for child in root.__subclasses__() for cls in _subclasses(child))]


def by_kind() -> dict[str, type[GalileoError]]:
    """The class of each kind, to rebuild an error that was received."""
    return {cls.kind: cls for cls in _subclasses(GalileoError)}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a value: a `kind`, a message, and details."""

    kind: str
    message: str
    details: tuple[tuple[str, str | int | float | tuple[int, ...]], ...] = ()

    def to_error(self) -> GalileoError:
        return by_kind().get(self.kind, InternalError)(self.message, **dict(self.details))
