"""`--sampler`, `--option` and `--seed` of the commands that ask a query."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from galileo.errors import InputError
from galileo.samplers import SamplerSpec, sampler

F = TypeVar("F", bound=Callable[..., Any])


def option_option(command: F) -> F:
    """Only `--option`, as the parameter `options`."""
    chosen = click.option(
        "--option", "options", multiple=True, metavar="KEY=JSON", help="Of the sampler."
    )
    return chosen(command)


def sampler_options(command: F) -> F:
    """All three, as the parameters `sampler_name`, `options` and `seed`."""
    name = click.option(
        "--sampler", "sampler_name", help="Name of a sampler that thins the results."
    )
    seed = click.option("--seed", type=int, help="Of the sampler, for a reproducible choice.")
    return name(option_option(seed(command)))


def sampler_of(
    name: str | None, options: tuple[str, ...], *, seed: int | None
) -> SamplerSpec | None:
    """The sampler that the options name; None where they name none.

    Raises:
        InputError: an option is not KEY=JSON, or stands without a sampler.
    """
    if name is None:
        if options or seed is not None:
            raise InputError("expected --sampler beside --option and --seed; add it")
        return None
    return sampler(name, seed=seed, **dict(option_of(text) for text in options))


def option_of(text: str) -> tuple[str, Any]:
    """`KEY=JSON`, taken apart; what is no JSON is a text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"expected a sampler option as KEY=JSON, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
