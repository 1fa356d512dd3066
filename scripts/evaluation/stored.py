"""Raw results on disk: one JSON file for each part, so that the page can be written again."""

from __future__ import annotations

import json
import types
import typing
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.machine import Machine

Result = TypeVar("Result")
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of one part, and the circumstances in which it was taken.

    Attributes:
        part: its name.
        quick: whether its sizes were the small ones.
        took_s: all of it, preparations included.
        machine: as it was when the part began.
        load_at_end: load averages over 1, 5 and 15 minutes.
        result: what the part measured, as its own class.
    """

    part: str
    quick: bool
    took_s: float
    machine: Machine
    load_at_end: tuple[float, float, float]
    result: Any


def path_of(directory: Path, part: str) -> Path:
    return directory / f"{part}.json"


def save(directory: Path, taken: Taken) -> None:
    """Writes the file of a part whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    path = path_of(directory, taken.part)
    unfinished = path.with_suffix(".part")
    raw = {"format": FORMAT, **asdict(taken)}
    unfinished.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def load(directory: Path, part: str, kind: type[Any]) -> Taken | None:
    """What was stored of a part; None where nothing was.

    Raises:
        ValueError: the file has another format.
    """
    path = path_of(directory, part)
    if not path.exists():
        return None
    raw = json.loads(path.read_text(encoding="utf-8"))
    if raw.pop("format", None) != FORMAT:
        raise ValueError(f"{path} was written by another version: run the part {part} again")
    try:
        result = decoded(kind, raw.pop("result"))
        circumstances = {**raw, "result": None}
        taken = decoded(Taken, circumstances)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} lacks {error}: run the part {part} again") from error
    return Taken(taken.part, taken.quick, taken.took_s, taken.machine, taken.load_at_end, result)


def decoded(kind: Any, raw: Any) -> Any:
    """A value of a class, a tuple, a list or a dictionary out of what JSON made of it."""
    if kind is Any:
        return raw
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{one.name: decoded(hints[one.name], raw[one.name]) for one in fields(kind)})  # type: ignore[operator]
    origin, words = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and words[-1] is Ellipsis:
        return tuple(decoded(words[0], one) for one in raw)
    if origin is tuple:
        return tuple(decoded(word, one) for word, one in zip(words, raw, strict=True))
    if origin is list:
        return [decoded(words[0], one) for one in raw]
    if origin is dict:
        return {words[0](key): decoded(words[1], value) for key, value in raw.items()}
    if origin in (typing.Union, types.UnionType):
        (inner,) = [word for word in words if word is not type(None)]
        return None if raw is None else decoded(inner, raw)
    return kind(raw)
