"""`galileo worker`: pushes the notifications of channels for brokers with a sink."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import click

from galileo.cli.output import Output
from galileo.cli.session import Session, in_session
from galileo.cli.stopping import await_stop
from galileo.client import AsyncClient
from galileo.logging_setup import start_logging
from galileo.optional_imports import require
from galileo.worker.options import WorkerOptions
from galileo.worker.worker import Worker


@click.command()
@click.option(
    "--secrets",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Rules, in TOML, that say which sinks may use which secrets.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="HOST|NETWORK",
    help="Sinks may reach this host or network although its address is not public.",
)
@click.option(
    "--metrics",
    default="",
    metavar="HOST:PORT",
    help="Address of /metrics, /ready and /live; none by default.",
)
@click.option("--parent", default=0, hidden=True, help="Stop when this process is not the parent.")
@in_session
def worker(
    session: Session, *, secrets: Path | None, allow: tuple[str, ...], metrics: str, parent: int
) -> None:
    """Push the notifications of channels for brokers with a sink, until SIGTERM or SIGINT.

    Workers share the brokers between them, and take over from one that dies. A worker needs a token
    that may read the channels and write their tables of positions and dead letters. See
    docs/channels.md.

    \b
    Example:
      galileo worker --node 10.0.0.11 --secrets /etc/galileo/secrets.toml
      galileo worker --allow 10.0.0.0/8 --metrics 127.0.0.1:9090
    """
    start_logging()
    require("worker", purpose="galileo worker")
    options = WorkerOptions(secrets=secrets, allow=allow)
    asyncio.run(_run(session, options, metrics=metrics, parent=parent))


async def _run(session: Session, options: WorkerOptions, *, metrics: str, parent: int) -> None:
    async with AsyncClient(
        *session.addresses, timeout=session.timeout, proof=session.proof
    ) as client:
        running = Worker(client, options)

        async def is_ready() -> bool:
            return running.is_connected

        tasks = [asyncio.create_task(await_stop(parent))]
        await asyncio.sleep(0)  # Signals count from here on.
        tasks.append(asyncio.create_task(running.run()))
        if metrics:
            from galileo.http_serving.monitoring import MonitoringServer

            server = MonitoringServer(metrics, exposed=running.metrics.exposed, is_ready=is_ready)
            tasks.append(asyncio.create_task(server.serve()))
        _announce(session.output, running)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _announce(output: Output, running: Worker) -> None:
    output.value({"worker": running.name}, words=f"worker {running.name} is running")
    sys.stdout.flush()
