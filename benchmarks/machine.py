"""The machine that figures belong to: without it they mean nothing."""

from __future__ import annotations

import contextlib
import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from benchmarks import postgis
from benchmarks.figures import quantity

PACKAGES = ("galileo-store", "numpy", "pyarrow", "grpcio", "pyspark")
PEERS = ("duckdb",)


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of one machine at one moment; memory in bytes, `load` over 1, 5 and 15 minutes.

    `peers` are the versions of what Galileo is compared with, as far as it is installed.
    """

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    disk: str
    packages: dict[str, str]
    peers: dict[str, str]
    started_at: str
    load: tuple[float, float, float]

    @classmethod
    def here(cls, directory: Path) -> Machine:
        """This machine now.

        Args:
            directory: names the disk.
        """
        return cls(
            cpu=_cpu(),
            cores=psutil.cpu_count() or 0,
            memory_bytes=psutil.virtual_memory().total,
            kernel=f"{platform.system()} {platform.release()}",
            python=f"{platform.python_implementation()} {platform.python_version()}",
            disk=_disk(directory),
            packages={name: version(name) for name in PACKAGES},
            peers=_peers(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            load=os.getloadavg(),
        )

    @property
    def description(self) -> str:
        """Hardware, operating system and software."""
        packages = ", ".join(f"{name} {number}" for name, number in self.packages.items())
        return (
            f"{self.cpu}, {self.cores} cores, {quantity(self.memory_bytes, 'B')} memory, "
            f"{self.kernel}, {self.disk}; {self.python}, {packages}"
        )


def _cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _peers() -> dict[str, str]:
    found = {}
    for name in PEERS:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    with contextlib.suppress(postgis.NoServer):
        found |= postgis.versions()
    return found


def _disk(directory: Path) -> str:
    """The file system and device that hold a directory."""
    place = directory.resolve()
    holding = [p for p in psutil.disk_partitions(all=True) if place.is_relative_to(p.mountpoint)]
    if not holding:
        return "unknown"
    found = max(holding, key=lambda partition: len(partition.mountpoint))
    return f"{found.fstype} on {found.device}"
