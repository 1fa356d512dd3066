"""`galileo sampler`: which samplers there are, and the tools to write one."""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click

from galileo.cli.output import failing_well
from galileo.cli.sampler_checks import checks_of
from galileo.cli.sampler_options import option_of, option_option
from galileo.cli.sampler_template import write_template
from galileo.cli.session import Session, json_option
from galileo.samplers import SamplerSpec, installed
from galileo.testing.conformance import verdicts

EXIT_FAILED = 1


@click.group("sampler")
def sampler() -> None:
    """Samplers: which are installed, and the tools to write one.

    \b
    Example:
      galileo sampler list
      galileo sampler new my_sampler
      galileo sampler test my_sampler
    """


@sampler.command("list")
@json_option
@click.pass_obj
@failing_well
def list_samplers(session: Session) -> None:
    """List the samplers that are installed here; nodes have their own.

    \b
    Example:
      galileo sampler list --json
    """
    rows = [_described(point) for _, point in sorted(installed().items())]
    session.output.rows(rows, empty="No samplers; pip install galileo-samplers has some.")


@sampler.command()
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where its own directory goes. [default: here]",
)
@json_option
@click.pass_obj
@failing_well
def new(session: Session, *, name: str, directory: Path) -> None:
    """Write a new sampler: a distribution with ten lines to change, and its test.

    \b
    Example:
      galileo sampler new dry_hours
    """
    files = write_template(name, directory)
    home = directory / name
    session.output.value(
        {"directory": str(home), "files": [str(path) for path in files]},
        words="\n".join(
            [
                *map(str, files),
                f"Change it, then\n  galileo sampler test {home}\n  pip install {home}",
            ]
        ),
    )


@sampler.command()
@click.argument("target")
@option_option
@click.option("--ignores-seed", is_flag=True, help="The seed is to change nothing.")
@json_option
@click.pass_obj
@failing_well
def test(session: Session, *, target: str, options: tuple[str, ...], ignores_seed: bool) -> None:
    """Check that a sampler keeps the rule on which exactly-once rests.

    TARGET is the directory of a distribution with conformance tests, a Python file, or the name
    of an installed sampler. Options are for a sampler without a test of its own; it meets labels
    with the features temperature, level, station and raining. Ends with 1 if a check fails.

    \b
    Example:
      galileo sampler test ./dry_hours
      galileo sampler test my_sampler.py --option fraction=0.2
      galileo sampler test reservoir --option n=20
    """
    spec = SamplerSpec(target, dict(option_of(text) for text in options), 0)
    rows = [
        {
            "sampler": checks.__name__,
            "check": verdict.check,
            "verdict": verdict.outcome,
            "message": verdict.message,
        }
        for checks in checks_of(target, spec=spec, seed_matters=not ignores_seed)
        for verdict in verdicts(checks)
    ]
    session.output.rows(rows)
    failed = sum(row["verdict"] == "failed" for row in rows)
    if not session.output.as_json:
        session.output.value(None, words=f"{failed} of {len(rows)} checks failed")
    if failed:
        click.get_current_context().exit(EXIT_FAILED)


def _described(point: EntryPoint) -> dict[str, Any]:
    """A row of the list; a sampler that cannot be imported says why."""
    try:
        words = (inspect.getdoc(point.load()) or "").partition("\n")[0]
    except Exception as error:
        words = f"cannot be imported: {type(error).__name__}: {error}"
    distribution = point.dist
    return {
        "name": point.name,
        "distribution": distribution.name if distribution else "",
        "version": distribution.version if distribution else "",
        "about": words,
    }
