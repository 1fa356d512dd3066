"""The spool: a file in which a reader keeps its labels and its token, always both or neither.

It is an SQLite database. An update is one transaction of it: the labels, and the token that says
that they are there. So a reader that dies at any point goes on from what its spool holds, without a
gap and without a repetition. SQLite runs with a rollback journal, not a write-ahead log, and syncs
before a transaction counts.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from galileo.client.results import Labels, Update
from galileo.cursor import CommitRange
from galileo.errors import CorruptData, GalileoError, InputError, SpoolConflict, TransientError
from galileo.labels import LabelSet, from_ipc, to_ipc
from galileo.model import keyed
from galileo.model.schema import Schema
from galileo.model.times import Instant, iso, micros
from galileo.model.windows import WindowChange, instant

APPLICATION_ID = 0x47414C53  # "GALS"
FORMAT = 4
BUSY_TIMEOUT_S = 10.0
UPDATE_BYTES_MAX = 4 << 30
"""Of the labels of one update, unpacked; they were written here."""
_NEXT = "SELECT number, arrow, withdrawn, reset, schema, query FROM updates, reader"

_TABLES = """
CREATE TABLE reader (
    one INTEGER PRIMARY KEY CHECK (one = 1), ccq TEXT NOT NULL, token TEXT NOT NULL,
    schema TEXT NOT NULL, query TEXT NOT NULL
);
CREATE TABLE updates (
    number INTEGER PRIMARY KEY AUTOINCREMENT, labels INTEGER NOT NULL, arrow BLOB NOT NULL,
    withdrawn BLOB, first_us INTEGER, last_us INTEGER, reset INTEGER NOT NULL
);
CREATE TABLE gone (
    partition INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (partition, first)
);
CREATE TABLE windows (
    start INTEGER PRIMARY KEY, end INTEGER NOT NULL, closed INTEGER NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class SpooledWindow:
    """The state of a window of a continuous query, from the updates of a spool.

    Attributes:
        start_us, end_us: microseconds since 1970-01-01 UTC; it contains its start and not its end.
        labels: of the updates held that belong to it, without those that later updates withdraw.
        is_closed: whether it is over; what comes or is withdrawn all the same opens it again and
            closes it.
    """

    start_us: int
    end_us: int
    labels: int
    is_closed: bool

    @property
    def start(self) -> dt.datetime:
        """As a time in UTC."""
        return instant(self.start_us)

    @property
    def end(self) -> dt.datetime:
        """As a time in UTC; the window does not contain it."""
        return instant(self.end_us)


@dataclass(frozen=True, slots=True)
class SpooledUpdate:
    """What one update brought.

    Attributes:
        number: 1, 2, 3 … in the order of arrival, never used twice; a reader of a
            spool continues after the last number that it read.
        labels: of this update; no other update has one of them, unless a reset comes in between.
        withdrawn: as of an `Update`.
        reset: whether the labels of earlier updates count no more, as of an `Update`.
    """

    number: int
    labels: Labels
    withdrawn: Labels
    reset: bool


class Spool:
    """The spool of one reader of one CCQ; made where there is none.

    Pass it to `watch`, which stores each update before it yields it and resumes after the last
    one. Other processes may read it meanwhile. If two watches use one spool, the
    second one to store an update fails, and nothing is stored twice.

    Args:
        path: of the file.

    Raises:
        InputError: the file is something else, or was written by a later version.

    Example:
        >>> with galileo.Spool("warm.spool") as spool:
        ...     update = next(client.watch(ccq, spool=spool))
        ...     print(len(spool))
        2
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        if not self.path.parent.is_dir():
            raise InputError(
                f"the directory of the spool {self.path} does not exist; create it",
                file=str(self.path),
            )
        with self._speaking():
            self._database = sqlite3.connect(
                self.path,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self._open()
            except BaseException:
                self._database.close()
                raise
        self._known = self.token

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; what is stored stays.

        Example:
            >>> spool = galileo.Spool("warm.spool")
            >>> spool.close()
        """
        with self._lock:
            self._database.close()

    def __len__(self) -> int:
        """Labels of the updates held, withdrawn ones included."""
        return int(self._one("SELECT coalesce(sum(labels), 0) FROM updates")[0])

    def __repr__(self) -> str:
        return f"<Spool {self.path}: {len(self):,} labels of {self.ccq_id or 'no query yet'}>"

    @property
    def ccq_id(self) -> str:
        """Of the CCQ whose updates it holds; empty while it never held any."""
        return str(self._one("SELECT coalesce(max(ccq), '') FROM reader")[0])

    @property
    def token(self) -> str:
        """Says what it holds; empty while it never held anything."""
        return str(self._one("SELECT coalesce(max(token), '') FROM reader")[0])

    @property
    def last_number(self) -> int:
        """Of the last update that was stored, even if it is forgotten by now; 0 for none."""
        rows = self._all("SELECT seq FROM sqlite_sequence WHERE name = 'updates'")
        return int(rows[0][0]) if rows else 0

    def store(self, ccq_id: str, update: Update, *, after: str | None = None) -> None:
        """Stores an update that follows what is stored; durable when it returns.

        Args:
            ccq_id: of the CCQ.
            update: to store.
            after: the spool's token when this reader last looked; else, when this object did.

        Raises:
            InputError: the spool is of another CCQ.
            SpoolConflict: another reader has stored something since this one looked.
            TransientError: the disk refused; the spool is as it was.

        Example:
            >>> spool.store(ccq.id, client.fetch(ccq, token=spool.token))
        """
        labels = update.labels
        with self._transaction() as database:
            held = database.execute("SELECT ccq, token FROM reader").fetchone()
            self._check(held, ccq_id, after=self._known if after is None else after)
            database.execute(
                "INSERT OR REPLACE INTO reader VALUES (1, ?, ?, ?, ?)",
                (ccq_id, update.token, labels.schema.to_json(), labels.query),
            )
            withdrawn = update.withdrawn if update.withdrawn is not None else labels.slice(0, 0)
            if len(labels) or len(withdrawn) or update.reset:
                buckets = np.concatenate([labels.buckets, withdrawn.buckets])
                span = (int(buckets.min()), int(buckets.max())) if len(buckets) else (None, None)
                database.execute(
                    "INSERT INTO updates (labels, arrow, withdrawn, first_us, last_us, reset) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        *(len(labels), to_ipc(labels.table, compression="lz4")),
                        to_ipc(withdrawn.table, compression="lz4") if len(withdrawn) else None,
                        *(*span, update.reset),
                    ),
                )
            database.executemany(
                "INSERT INTO gone VALUES (?, ?, ?)",
                [(dropped.partition, dropped.first, dropped.last) for dropped in update.gone],
            )
            if update.reset:
                database.execute("DELETE FROM windows")
            database.executemany(
                "INSERT OR REPLACE INTO windows VALUES (?, ?, ?)",
                [(window.start_us, window.end_us, window.is_closed) for window in update.windows],
            )
        self._known = update.token

    def go_on(self, ccq_id: str, token: str, *, after: str) -> None:
        """Stores the token of `HistoryChanged` in place of the token `after`; errors as `store`.

        Example:
            >>> spool.go_on(ccq.id, spool.token, after=spool.token)
        """
        with self._transaction() as database:
            held = database.execute("SELECT ccq, token FROM reader").fetchone()
            self._check(held, ccq_id, after=after)
            database.execute("UPDATE reader SET token = ?", (token,))
        self._known = token

    @property
    def gone(self) -> tuple[CommitRange, ...]:
        """All that the updates named as dropped by retention before it was looked at."""
        rows = self._all("SELECT partition, first, last FROM gone ORDER BY partition, first")
        return tuple(CommitRange(*row) for row in rows)

    def windows(self) -> tuple[SpooledWindow, ...]:
        """All windows of the updates, ascending by start; reads all labels to count them.

        Example:
            >>> spool.windows()
            ()
        """
        rows = self._all("SELECT start, end, closed FROM windows ORDER BY start")
        if not rows:
            return ()
        spans, buckets = np.array(rows)[:, :2], np.sort(self.labels().buckets)
        counts = np.diff(np.searchsorted(buckets, spans))[:, 0].tolist()
        return tuple(
            SpooledWindow(start_us, end_us, count, bool(closed))
            for (start_us, end_us, closed), count in zip(rows, counts, strict=True)
        )

    def window(self, start: Instant) -> SpooledWindow:
        """The window that begins at a time; `labels` gives its labels.

        Raises:
            InputError: no update has such a window.

        Example:
            >>> hourly = client.submit("weather", window=galileo.Window.tumbling("1h"))
            >>> with galileo.Spool("hourly.spool") as spool:
            ...     spool.store(hourly.id, client.fetch(hourly))
            ...     print(spool.window("2014-03-01T06:00:00Z").labels)
            1
        """
        start_us = micros(start)
        rows = self._all("SELECT start, end, closed FROM windows WHERE start = ?", start_us)
        if not rows:
            raise InputError(
                f"{self.path} has no window that starts at {iso(start_us)}; windows() lists those "
                "that it has",
                file=str(self.path),
                start=iso(start_us),
            )
        ((_, end_us, closed),) = rows
        window = SpooledWindow(start_us, end_us, 0, bool(closed))
        return replace(window, labels=len(self.labels(window)))

    def check(self, ccq_id: str) -> None:
        """Raises `InputError` where the spool holds another CCQ's updates.

        Example:
            >>> spool.check(ccq.id)
        """
        held = self.ccq_id
        if held and held != ccq_id:
            raise InputError(
                f"expected a spool of {ccq_id!r}, got {self.path}, which holds updates of "
                f"{held!r}; use another file",
                file=str(self.path),
                ccq_id=held,
            )

    def updates(self, *, after: int = 0) -> Iterator[SpooledUpdate]:
        """The updates held whose number lies past `after`, one at a time.

        Example:
            >>> [len(update.labels) for update in spool.updates()]
            [2]
        """
        while rows := self._all(f"{_NEXT} WHERE number > ? ORDER BY number LIMIT 1", after):
            after = rows[0][0]
            yield self._update(*rows[0])

    def labels(self, window: SpooledWindow | WindowChange | None = None) -> Labels:
        """All labels held, or those that belong to a window, as one set.

        What later updates withdraw is left out, so these are the ones that match and count at the
        token.

        Raises:
            InputError: it never held any, so their schema is unknown.

        Example:
            >>> client.read(spool.labels()).num_rows
            2
        """
        held = self._all("SELECT schema, query FROM reader")
        if not held:
            raise InputError(
                f"{self.path} holds nothing yet; watch a continuous query into it",
                file=str(self.path),
            )
        schema = Schema.from_json(held[0][0])
        begin = self._one("SELECT coalesce(max(number), 1) FROM updates WHERE reset")[0] - 1
        if window is None:
            updates = self.updates(after=begin)
        else:
            updates = self._updates_around(window, after=begin)
        nothing = schema.label_schema.empty_table()
        parts = [(nothing, nothing), *((one.withdrawn.table, one.labels.table) for one in updates)]
        labels = LabelSet(schema, keyed.folded(schema, parts))
        if window is not None:
            buckets = labels.buckets
            labels = labels.where((buckets >= window.start_us) & (buckets < window.end_us))
        return Labels(schema, labels.table, query=held[0][1])

    def _updates_around(
        self, window: SpooledWindow | WindowChange, *, after: int
    ) -> Iterator[SpooledUpdate]:
        """The updates whose number lies past `after` and that may have labels of a window."""
        while rows := self._all(
            f"{_NEXT} WHERE number > ? AND first_us < ? AND last_us >= ? ORDER BY number LIMIT 1",
            *(after, window.end_us, window.start_us),
        ):
            after = rows[0][0]
            yield self._update(*rows[0])

    def _update(
        self,
        number: int,
        data: bytes,
        withdrawn: bytes | None,
        reset: int,
        schema_json: str,
        query: str,
    ) -> SpooledUpdate:
        schema = Schema.from_json(schema_json)
        try:
            table, gone = (
                from_ipc(part, schema.label_schema, bytes_max=UPDATE_BYTES_MAX)
                if part
                else schema.label_schema.empty_table()
                for part in (data, withdrawn)
            )
        except InputError as error:
            raise CorruptData(
                f"update {number} of {self.path} is damaged: {error.message}",
                file=str(self.path),
                update=number,
            ) from error
        labels, old = (Labels(schema, each, query=query) for each in (table, gone))
        return SpooledUpdate(number, labels, old, bool(reset))

    def forget(self, *, until: int) -> None:
        """Drops the updates up to a number; the token stays, so they do not come again.

        Their windows stay, without the labels.

        Example:
            >>> spool.forget(until=spool.last_number)
            >>> len(spool)
            0
        """
        with self._transaction() as database:
            database.execute("DELETE FROM updates WHERE number <= ?", (until,))

    def _check(self, held: tuple[str, str] | None, ccq_id: str, *, after: str) -> None:
        ccq, token = held or ("", "")
        if ccq and ccq != ccq_id:
            raise InputError(
                f"expected an update of {ccq!r} for {self.path}, got one of {ccq_id!r}",
                file=str(self.path),
                ccq_id=ccq,
            )
        if token != after:
            raise SpoolConflict(
                f"another reader stores into {self.path}; nothing was stored by this one. "
                "Let one of them watch, or give each a file of its own",
                file=str(self.path),
            )

    def _open(self) -> None:
        database = self._database
        for pragma in ("journal_mode = DELETE", "synchronous = EXTRA"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("BEGIN IMMEDIATE")
        try:
            (application,) = database.execute("PRAGMA application_id").fetchone()
            (version,) = database.execute("PRAGMA user_version").fetchone()
            (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if not tables and not application:
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                for statement in filter(str.strip, _TABLES.split(";")):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {FORMAT}")
            elif (application, version) != (APPLICATION_ID, FORMAT):
                raise self._foreign()
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")

    def _foreign(self) -> InputError:
        return InputError(
            f"expected a spool of format {FORMAT}, got {self.path}, which is another file or "
            "was written by a later version; name a new file",
            file=str(self.path),
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._speaking():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def _one(self, statement: str) -> tuple[Any, ...]:
        return self._all(statement)[0]

    def _all(self, statement: str, *values: int) -> list[tuple[Any, ...]]:
        with self._lock, self._speaking():
            return self._database.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        """SQLite's errors, as ours."""
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise InputError(
                f"the spool {self.path} is closed; open it again", file=str(self.path)
            ) from error
        except sqlite3.OperationalError as error:
            raise TransientError(
                f"the spool {self.path} cannot be used now: {error}. It is as it was; mend that "
                "and start again",
                file=str(self.path),
            ) from error
        except sqlite3.DatabaseError as error:
            raise self._broken(error) from error

    def _broken(self, error: sqlite3.DatabaseError) -> GalileoError:
        if error.sqlite_errorname == "SQLITE_NOTADB":
            return self._foreign()
        return CorruptData(f"the spool {self.path} is damaged: {error}", file=str(self.path))
