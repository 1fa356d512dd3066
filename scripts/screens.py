"""Takes the pictures of docs/img, of a cluster that is started for them and filled by a generator.

What the command line shows is what it wrote to a terminal, drawn as SVG. The map page is shown by a
browser (Chromium).
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from map_screens import take_map
from notebook_runner import picture
from rich.console import Console
from rich.text import Text

import galileo
from galileo.generate import StationsLike

TARGET = Path(__file__).parents[1] / "docs" / "img"
LINES, COLUMNS = 40, 80
HOURS = 8
WARM = "temperature > 303 AND humidity < 35"

_FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)
_REDRAWN = re.compile(r"(?:\x1b\[1A\x1b\[2K)+")
"""What precedes a table that replaces the last one."""
_CCQ_ID = re.compile(r"ccq-[0-9a-f]{32}")
_NOT_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]|\r")


@dataclass(frozen=True, slots=True)
class Screen:
    """A command, as it is typed, the name of its picture, and its exit status."""

    name: str
    words: tuple[str, ...]
    status: int = 0

    @property
    def title(self) -> str:
        quoted = (f'"{word}"' if " " in word else word for word in self.words)
        return _CCQ_ID.sub("$ID", " ".join(["galileo", *quoted]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/screens", description=__doc__)
    parser.add_argument("--directory", type=Path, default=TARGET, help="default: docs/img")
    parser.add_argument("--map", action="store_true", help="only those of the map page")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    if not given.map:
        take_terminal(given.directory)
    take_map(given.directory)
    for path in sorted(given.directory.iterdir()):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
    return 0


def take_terminal(directory: Path) -> None:
    """The pictures of the command line, and the plots."""
    with galileo.LocalCluster(nodes=3, groups=1) as cluster:
        client = cluster.client()
        ccq = fill(client)
        for screen in screens(ccq.id):
            take(screen, cluster, directory)
        tree = galileo.TreeView(client.tree("stations", depth=2), limit=18)
        title = 'print(galileo.TreeView(client.tree("stations", depth=2), limit=18))'
        (directory / "tree.svg").write_text(drawn(str(tree), title=title))
        take_plots(client, directory)
        cluster.node("node-2").kill()
        wait_until_unreachable(client, "node-2")
        for screen in screens_without_a_node():
            take(screen, cluster, directory)


def fill(client: galileo.Client) -> galileo.Ccq:
    """Some hours of stations, and a continuous query that has found something."""
    stations = StationsLike(seed=3)
    client.create_dataset(stations.schema(geohash_precision=3))
    hours = pd.date_range("2014-07-01T14:00Z", periods=HOURS, freq="1h")
    client.ingest("stations", (stations.reports(hour) for hour in hours))
    return client.submit("stations", WARM, interval="1s", expiration="7d")


def screens(ccq_id: str) -> Iterator[Screen]:
    yield Screen("status", ("status",))
    yield Screen("top", ("top", "--once"))
    yield Screen("doctor", ("doctor",))
    yield Screen("datasets", ("dataset", "list"))
    yield Screen("dataset", ("dataset", "show", "stations"))
    yield Screen("query", ("query", "stations", WARM, "--limit", "8"))
    yield Screen("read", ("read", "stations", WARM, "--limit", "8"))
    yield Screen("count", ("count", "stations", WARM))
    yield Screen("stats", ("stats", "stations", "--feature", "temperature", "--bins", "6"))
    yield Screen("watch", ("ccq", "watch", ccq_id, "--from", "start", "--updates", "1"))


def screens_without_a_node() -> Iterator[Screen]:
    yield Screen("doctor-problem", ("doctor",), status=1)
    yield Screen("partial", ("query", "stations", WARM, "--limit", "5"))


def wait_until_unreachable(client: galileo.Client, name: str) -> None:
    while all(node.state != "unreachable" for node in client.status().nodes if node.name == name):
        time.sleep(0.5)


def take(screen: Screen, cluster: galileo.LocalCluster, directory: Path) -> None:
    text = captured(screen, cluster.addresses)
    (directory / f"{screen.name}.svg").write_text(drawn(text, title=screen.title))


def captured(screen: Screen, addresses: list[str]) -> str:
    """What a terminal shows when a command has ended."""
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    command = [sys.executable, "-m", "galileo", "--node", addresses[0], *screen.words]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment["TERM"] = "xterm-256color"
    with subprocess.Popen(
        command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as it:
        os.close(theirs)
        output = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    if it.returncode != screen.status:
        raise RuntimeError(f"{screen.title} ended with {it.returncode}: {output.decode()}")
    return _NOT_COLOURS.sub("", _REDRAWN.split(output.decode())[-1]).strip("\n")


def _read(terminal: int) -> bytes:
    """The next of it; nothing at its end, which is an error on Linux."""
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""


def drawn(text: str, *, title: str) -> str:
    """Text with its colours as SVG, in whatever font of equal widths the reader has."""
    lines = Text.from_ansi(text)
    width = max(COLUMNS, *map(len, lines.plain.splitlines()))
    console = Console(record=True, width=width, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    with console.file:
        console.print(lines, soft_wrap=True)
        svg = console.export_svg(title=title, unique_id="screen")
    return _FONTS.sub("", svg)


def take_plots(client: galileo.Client, directory: Path) -> None:
    labels = client.query("stations")
    for name, plot in (("map", labels.plot), ("time", labels.plot_time)):
        figure, axes = plt.subplots(figsize=(6, 3.6))
        plot("temperature", ax=axes)
        (directory / f"{name}.png").write_bytes(picture(figure))
        plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
