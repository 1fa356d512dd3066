"""Options, fixtures and the report of the benchmarks, which `scripts/bench` runs with pytest."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from benchmarks import test_areas
from benchmarks.machine import Machine
from benchmarks.report import Report, Section
from benchmarks.sizes import FULL, QUICK, Bench
from benchmarks.test_areas import Area

REPORT = pytest.StashKey[Report]()


def pytest_addoption(parser: pytest.Parser) -> None:
    names = [area.name for area in (*test_areas.AREAS, *test_areas.COMPARISONS)]
    group = parser.getgroup("benchmarks")
    group.addoption(
        "--only", nargs="+", choices=names, metavar="NAME", help=f"areas: {', '.join(names)}"
    )
    group.addoption("--all", action="store_true", help="the comparisons with other software too")
    group.addoption("--quick", action="store_true", help="small sizes, to see that it works")
    group.addoption("--json-file", type=Path, help="write every value to this file")
    group.addoption("--markdown-file", type=Path, help="write the report to this file")


def pytest_configure(config: pytest.Config) -> None:
    # Clusters are stopped when the program is ended, too; a shell's background has SIGINT ignored.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    quick = config.getoption("--quick")
    config.stash[REPORT] = Report(Machine.here(Path(tempfile.gettempdir())), quick)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only, everything = metafunc.config.getoption("--only"), metafunc.config.getoption("--all")
    known = (*test_areas.AREAS, *test_areas.COMPARISONS)
    chosen = [area for area in known if area.name in (only or ())]
    areas = chosen or (known if everything else test_areas.AREAS)
    metafunc.parametrize("area", areas, ids=[area.name for area in areas])


@pytest.fixture(scope="session")
def bench(pytestconfig: pytest.Config) -> Iterator[Bench]:
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="galileo-bench-") as scratch:
        # A database's own user reads what is written here for it.
        Path(scratch).chmod(0o755)
        yield Bench(QUICK if pytestconfig.getoption("--quick") else FULL, Path(scratch), say)


@pytest.fixture
def section(area: Area, pytestconfig: pytest.Config) -> Section:
    section = Section(area.name, area.title)
    pytestconfig.stash[REPORT].sections.append(section)
    return section


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    section = item.funcargs.get("section")
    if call.when == "call" and isinstance(section, Section):
        section.took_s, section.failure = report.duration, report.longreprtext * report.failed
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
    report = config.stash[REPORT]
    if exitstatus == pytest.ExitCode.INTERRUPTED or not report.sections:
        return
    report.load_at_end = os.getloadavg()
    if (file := config.getoption("--json-file")) is not None:
        file.write_text(report.to_json() + "\n", encoding="utf-8")
    if (file := config.getoption("--markdown-file")) is not None:
        file.write_text(report.to_markdown(), encoding="utf-8")
    else:
        terminalreporter.write_line(report.to_markdown())
