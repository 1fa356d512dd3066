"""Files of continuous queries that are submitted together: one JSON object on each line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from galileo.client import Submission
from galileo.errors import InputError
from galileo.model.windows import Window
from galileo.samplers import SamplerSpec

KEYS = ("dataset", "query", "interval", "expiration", "sampler", "compression", "window", "id")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a line need not say.

    Attributes:
        key: lines without an id get this and their number, so that a file that is submitted again
            makes nothing twice. None: ids are drawn at random.
    """

    dataset: str | None = None
    interval: str = "1s"
    expiration: str = "30d"
    key: str | None = None


def read_submissions(path: Path, defaults: Defaults) -> list[Submission]:
    """What the lines of a file say; empty lines are passed over.

    Raises:
        InputError: a line is no such object, and is named; or the file is no text.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"expected UTF-8 in {path}: {error}", file=str(path)) from error
    # Not `splitlines`: it also ends lines at characters that JSON allows within texts.
    lines = enumerate(text.split("\n"), start=1)
    return [_submission(line, number, defaults) for number, line in lines if line.strip()]


def _submission(line: str, number: int, defaults: Defaults) -> Submission:
    try:
        fields = _json_object(line)
        unknown = [key for key in fields if key not in KEYS]
        if unknown:
            raise InputError(
                f"expected keys of {', '.join(KEYS)}, got {', '.join(unknown)}", key=unknown[0]
            )
        return _parse(fields, number, defaults)
    except (ValueError, InputError) as error:
        raise InputError(f"line {number} of the file: {error}", line=number) from error


def _json_object(line: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        value = json.loads(line)
        if isinstance(value, dict):
            return value
    raise InputError(f"expected a JSON object, got {line.strip()[:60]!r}")


def _parse(fields: Mapping[str, Any], number: int, defaults: Defaults) -> Submission:
    dataset = fields.get("dataset", defaults.dataset)
    if not isinstance(dataset, str):
        raise InputError("expected the key dataset, or --dataset for all lines")
    sampler, window = fields.get("sampler"), fields.get("window")
    compression = fields.get("compression", "none")
    if not isinstance(compression, str):
        raise InputError(f"expected a text as compression, got {compression!r}")
    named: dict[str, Any] = {"id": f"{defaults.key}-{number}"} if defaults.key is not None else {}
    if "id" in fields:
        named["id"] = str(fields["id"])
    query = fields.get("query", "")
    return Submission(
        dataset,
        query if isinstance(query, str) else json.dumps(query),
        interval=fields.get("interval", defaults.interval),
        expiration=fields.get("expiration", defaults.expiration),
        sampler=None if sampler is None else SamplerSpec.from_json(json.dumps(sampler)),
        compression=compression,
        window=None if window is None else Window.from_json(json.dumps(window)),
        **named,
    )
