"""A machine that does not exist, for made-up figures."""

from __future__ import annotations

from benchmarks.machine import Machine

MACHINE = Machine(
    cpu="Abacus 3000",
    cores=2,
    memory_bytes=25_000_000_000,
    kernel="Linux 6.1",
    python="CPython 3.11.7",
    disk="ext4 on /dev/vda",
    packages={"numpy": "2.4.6"},
    peers={},
    started_at="2026-01-02T03:04:05+00:00",
    load=(0.12, 1.0, 2.06),
)
