"""Case files: questions and their answers, asked through each door of a cluster.

docs/dev/cases.md describes the format.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

Row = Mapping[str, Any]
CELL = re.compile(r"'[^']*'|\S+")
UNQUOTED = re.compile(r"(?!(?:null|true|false)$|[-+]?[.\d]+(?:e[-+]?\d+)?$)[^\s']+")
"""A text that is written without quotation marks."""
UNORDERED = ("select", "read", "labels", "page", "rows", "notifications")
"""Verbs whose rows come in any order, unless `order_by` is asked for."""
DETAIL = re.compile(r"[a-z_]+=\S+")
LEAKS = re.compile(
    r"Traceback|__init__|object at 0x|NoneType|base64|\$\.|at \$|\[['\"]|_pb2|Errno|Error\(|=None"
)
"""What belongs to Python or to the wire, and to no message."""
CREATING = ("dataset", "table", "channel")
STORING = ("ingest", "upsert", "subscribe")
AWAITED = ("notifications",)
"""Verbs that are asked again until the answer is right."""
NOTIFIED_S = 20.0
NAME = re.compile(r"[a-z]\w*")
REFERENCE = re.compile(r"\$([a-z]\w*)")


class Refused(Exception):
    """The error of a door: its kind, message and details, as in `GalileoError`."""

    def __init__(self, kind: str, message: str, details: Mapping[str, Any]) -> None:
        super().__init__(f"{kind} {message} {details}")
        self.kind = kind
        self.message = message
        self.details = details


class NotOffered(Exception):
    """A door has no way to ask a question."""


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        verb: what to do.
        name: of the dataset, table or channel.
        words: further arguments.
        options: values by name, as written.
        where: a condition, or "".
        table: rows to store, as written, after the names of their columns.
    """

    verb: str
    name: str
    words: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    table: tuple[tuple[str, ...], ...] = ()


Answer = Sequence[Row] | Refused


@dataclass(frozen=True)
class Refusal:
    """An expected error: its kind, details among others, and what its message matches."""

    kind: str
    details: Mapping[str, str]
    pattern: str

    @classmethod
    def parse(cls, text: str) -> Refusal:
        """Of "KIND NAME=VALUE... PATTERN"."""
        kind, *words = text.split()
        pattern, details = text.removeprefix(kind).strip(), dict[str, str]()
        for word in words:
            if not DETAIL.fullmatch(word):
                break
            name, _, details[name] = word.partition("=")
            pattern = pattern.removeprefix(word).strip()
        return cls(kind, details, pattern)

    def agrees(self, answer: Refused) -> bool:
        return (
            answer.kind == self.kind
            and all(written(answer.details.get(key)) == self.details[key] for key in self.details)
            and re.search(self.pattern, answer.message) is not None
            and LEAKS.search(answer.message) is None
            and len(answer.message.splitlines()) <= 3
        )


@dataclass(frozen=True)
class Step:
    """A question, and the table or the error that has to answer it."""

    line: int
    question: Question
    table: tuple[tuple[str, ...], ...] = ()
    error: Refusal | None = None

    def difference(self, answer: Answer) -> str:
        """What was expected and what came; "" if they agree."""
        if isinstance(answer, Refused):
            is_right = self.error is not None and self.error.agrees(answer)
            return "" if is_right else f"expected {self.error or 'no error'}, got {answer}"
        if self.error:
            return f"expected {self.error}, got {[*answer][:3]}"
        if not self.table:
            return ""
        columns, *rows = self.table
        if "columns" in self.question.options and answer and [*answer[0]] != [*columns]:
            return f"expected the columns {columns}, got {[*answer[0]]}"
        actual = [tuple(_cell(row, name) for name in columns) for row in answer]
        is_ordered = self.question.verb not in UNORDERED or "order_by" in self.question.options
        if actual == rows or (not is_ordered and sorted(actual) == sorted(rows)):
            return ""
        return "\n  ".join(("expected", *map(" ".join, rows), "got", *map(" ".join, actual)))


class Door(Protocol):
    """A way to use a cluster."""

    name: str

    def ask(self, question: Question) -> Sequence[Row]:
        """The rows that answer a question. Raises Refused or NotOffered."""


def _cell(row: Row, name: str) -> str:
    return written(row[name]) if name in row else "absent"


def written(value: Any) -> str:
    """A value as case files have it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:.7g}"
        case str():
            return value if UNQUOTED.fullmatch(value) else f"'{value}'"
        case list() | tuple():
            return ",".join(map(written, value)) or "''"
    return str(value.isoformat()).replace("+00:00", "Z")


def parse(path: Path) -> Iterator[Step]:
    """The steps of a file. Raises ValueError, with the line that is wrong."""
    for block in _blocks(path.read_text(encoding="utf-8")):
        (line, head), *lines = block
        if head.startswith(("match ", "refuse ")):
            for number, text in lines:
                yield from _line_steps(number, head, text)
        else:
            yield _block_step(line, head, [text for _, text in lines])


def _blocks(text: str) -> Iterator[list[tuple[int, str]]]:
    """Lines with their numbers, up to an empty one each; an indented line continues the last."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith(" ") and block:
            block[-1] = (block[-1][0], f"{block[-1][1]} {line.strip()}")
        elif line and not line.startswith("#"):
            block.append((number, line))
        elif not line and block:
            yield block
            block = []


def _line_steps(number: int, head: str, text: str) -> Iterator[Step]:
    before, arrow, after = f" {text} ".rpartition(" => ")
    if not arrow:
        raise ValueError(f"line {number}: expected a question => its answer, got {text!r}")
    if head.startswith("refuse "):
        _, verbs, *names = head.split(" ", 2)
        for verb in verbs.split(","):
            asked = _question(" ".join((verb, *names, before)))
            yield Step(number, asked, error=Refusal.parse(after))
        return
    _, name, column = head.split()
    values, where = CELL.findall(after), before.strip() if before != " all" else ""
    expected = ((column,), *((value,) for value in values))
    yield Step(number, Question("select", name, where=where), expected)
    counted = (("count",), (str(len(values)),))
    yield Step(number, Question("count", name, where=where), counted)


def _block_step(line: int, head: str, texts: list[str]) -> Step:
    question, error = _question(head), None
    end = texts.index("----") if "----" in texts else len(texts) * (question.verb in STORING)
    if texts and texts[-1].startswith("error "):
        error = Refusal.parse(texts.pop().removeprefix("error "))
    table = [tuple(CELL.findall(text)) for text in texts]
    stored, expected = table[:end], [row for row in table[end:] if row != ("----",)]
    return Step(line, replace(question, table=tuple(stored)), tuple(expected), error)


def _question(text: str) -> Question:
    head, _, where = f"{text} ".partition(" where ")
    verb, name, *words = shlex.split(head)
    options = dict(word.split("=", 1) for word in words if "=" in word)
    return Question(
        verb, name, tuple(word for word in words if "=" not in word), options, where.strip()
    )


def run(path: Path, door: Door, fresh_name: Callable[[str], str]) -> list[str]:
    """Asks all questions of a file through a door; what differs, with the line and the door."""
    names = Names()
    differences = list[str]()
    for step in parse(path):
        if step.question.verb in CREATING and not step.error:
            names.fresh[step.question.name] = fresh_name(step.question.name)
        question, deadline = names.in_question(step.question), time.monotonic() + NOTIFIED_S
        try:
            difference = step.difference(names.answer(door, question))
            while difference and step.question.verb in AWAITED and time.monotonic() < deadline:
                time.sleep(0.02)
                difference = step.difference(names.answer(door, question))
        except NotOffered:
            continue
        if difference:
            differences.append(f"{path.name}:{step.line} through {door.name}: {difference}")
    return differences


@dataclass
class Names:
    """The names that datasets, tables and channels of a file have in the cluster."""

    fresh: dict[str, str] = field(default_factory=dict)

    def in_question(self, question: Question) -> Question:
        return replace(
            question,
            name=NAME.sub(lambda match: self.fresh.get(match[0], match[0]), question.name),
            options={name: self._in_text(text) for name, text in question.options.items()},
            where=self._in_text(question.where),
        )

    def _in_text(self, text: str) -> str:
        """A text with the names of what it refers to as "$name"."""
        return REFERENCE.sub(lambda match: self.fresh.get(match[1], match[1]), text)

    def answer(self, door: Door, question: Question) -> Answer:
        """An answer whose messages and columns have names as the file does."""
        try:
            rows = door.ask(question)
            return [{self._as_written(key): value for key, value in row.items()} for row in rows]
        except Refused as refused:
            return Refused(refused.kind, self._as_written(refused.message), refused.details)

    def _as_written(self, text: str) -> str:
        for name, fresh in self.fresh.items():
            text = text.replace(fresh, name)
        return text
