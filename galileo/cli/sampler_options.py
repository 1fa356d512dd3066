"""`--sampler`, `--sampler-file`, `--option` and `--seed` of the commands that ask a query."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from galileo.errors import InputError
from galileo.sampler_package import sampler_archive
from galileo.samplers import SamplerSpec, sampler

F = TypeVar("F", bound=Callable[..., Any])


def option_option(command: F) -> F:
    """Only `--option`, as the parameter `options`."""
    chosen = click.option(
        "--option",
        "options",
        multiple=True,
        metavar="KEY=JSON",
        help="Sampler option; repeat it for others.",
    )
    return chosen(command)


@dataclass(frozen=True, slots=True)
class SamplerChoice:
    """What `--sampler`, `--sampler-file`, `--option` and `--seed` say."""

    name: str | None
    file: Path | None
    options: tuple[str, ...]
    seed: int | None

    def spec(self) -> SamplerSpec | None:
        """The sampler; None where none is named.

        Raises:
            InputError: an option is not KEY=JSON, or stands without a sampler; or there are two.
            InvalidArchive: the file cannot be sent.
        """
        if self.name is not None and self.file is not None:
            raise InputError("expected --sampler or --sampler-file, got both; leave one out")
        if self.name is None and self.file is None:
            if self.options or self.seed is not None:
                raise InputError("--option and --seed need --sampler or --sampler-file; add one")
            return None
        chosen = sampler_archive(self.file) if self.file is not None else str(self.name)
        return sampler(chosen, seed=self.seed, **dict(option_of(text) for text in self.options))


def sampler_options(command: F) -> F:
    """All four, as the parameter `sampler`, a `SamplerChoice`."""

    @functools.wraps(command)
    def choosing(*args: Any, **words: Any) -> Any:
        names = ("sampler_name", "sampler_file", "options", "seed")
        return command(*args, sampler=SamplerChoice(*(words.pop(name) for name in names)), **words)

    name = click.option(
        "--sampler", "sampler_name", help="Name of an installed sampler of the nodes."
    )
    file = click.option(
        "--sampler-file",
        type=click.Path(exists=True, path_type=Path),
        help="A sampler to upload: a Python file, a directory or a zip.",
    )
    seed = click.option("--seed", type=int, help="Seed of the sampler, for a reproducible sample.")
    return cast(F, name(file(option_option(seed(choosing)))))


def option_of(text: str) -> tuple[str, Any]:
    """`KEY=JSON`, taken apart; what is no JSON is a text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"expected a sampler option as KEY=JSON, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
