"""`galileo gateway`: the HTTP gateway."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import click

from galileo.cli.options import EXISTING_FILE
from galileo.cli.output import Output
from galileo.cli.session import Session, in_session
from galileo.cli.stopping import await_stop
from galileo.gateway.options import CONNECTIONS_MAX, PORT, GatewayOptions
from galileo.gateway.serving import GatewayServer
from galileo.model.times import seconds
from galileo.server.malloc_tuning import configure_malloc, freeze_modules, trim_when_idle
from galileo.wire.tls_credentials import TlsFiles


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=PORT, show_default=True, help="Port to listen on; 0 for a free one."
)
@click.option(
    "--metrics",
    default="",
    metavar="HOST:PORT",
    help="Address of /metrics, /ready and /live; none by default.",
)
@click.option("--certificate", type=EXISTING_FILE, help="Certificate that clients see, PEM.")
@click.option("--key", type=EXISTING_FILE, help="Its private key.")
@click.option(
    "--host-name",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Accept this name in URLs; without it, any name unless the address is loopback.",
)
@click.option(
    "--root-path",
    default="",
    metavar="PATH",
    help="Path below which a proxy serves the gateway, such as /geo; see docs/proxies.md.",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Address or network of a proxy whose Forwarded or X-Forwarded-* headers count.",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Origin of web pages that may read answers, such as https://maps.example.",
)
@click.option(
    "--anonymous",
    is_flag=True,
    help="Let in callers without a token although the nodes know the gateway by its certificate.",
)
@click.option(
    "--anonymous-token-file", type=EXISTING_FILE, help="File of the token of callers without one."
)
@click.option(
    "--connections",
    default=CONNECTIONS_MAX,
    show_default=True,
    help="Max concurrent connections; idle ones are closed first.",
)
@click.option("--parent", default=0, hidden=True, help="Stop when this process is not the parent.")
@in_session
def gateway(
    session: Session,
    *,
    host: str,
    port: int,
    metrics: str,
    certificate: Path | None,
    key: Path | None,
    hosts: tuple[str, ...],
    root_path: str,
    proxies: tuple[str, ...],
    origins: tuple[str, ...],
    anonymous: bool,
    anonymous_token_file: Path | None,
    connections: int,
    parent: int,
) -> None:
    """Serve the cluster over HTTP: a map, OGC API, files and SPARQL, until SIGTERM or SIGINT.

    The gateway has no state and no rights of its own: it passes the token of each request on to the
    nodes. Run as many as you like. See docs/http.md.

    \b
    Example:
      galileo gateway --node 10.0.0.11 --port 7790
      galileo gateway --host 0.0.0.0 --certificate gateway.pem --key gateway.key
    """
    configure_malloc()
    profile = session.profile
    token = TlsFiles(token_file=str(anonymous_token_file or "")).read_token()
    options = GatewayOptions(
        nodes=profile.node,
        cluster_keys=TlsFiles.of(tls=profile.tls, insecure=profile.insecure),
        patience_s=seconds(session.timeout),
        host=host,
        port=port,
        metrics=metrics,
        certificate=str(certificate or ""),
        key=str(key or ""),
        insecure=profile.insecure,
        hosts=hosts,
        root_path=root_path,
        proxies=proxies,
        origins=origins,
        anonymous=anonymous,
        anonymous_token=token,
        connections_max=connections,
    )
    freeze_modules()
    asyncio.run(_serve(options, session.output, parent=parent))


async def _serve(options: GatewayOptions, output: Output, *, parent: int) -> None:
    watching = asyncio.create_task(await_stop(parent))
    await asyncio.sleep(0)  # Signals count from here on.
    server = GatewayServer(options)
    words = f"serving the cluster at {server.url}, its map at {server.url}/map"
    output.value({"url": server.url}, words=words)
    sys.stdout.flush()
    serving = asyncio.create_task(server.serve())
    trimming = asyncio.create_task(trim_when_idle())
    await asyncio.wait([serving, watching], return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, watching, trimming):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
