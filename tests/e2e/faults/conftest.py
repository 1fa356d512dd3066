"""The fault scenarios: tests with the mark `fault`, which `scripts/chaos` runs.

The mark has the scenario's name, the row of the table of faults that it belongs to, and:

- `needs`: of the machine, if anything; the test is skipped where one is missing.
- `rounds`: how often the fault occurs where `--rounds` does not say.
- `holds`: what happens and what must hold, in a sentence.
- `lasting`: whether its rounds go on for a share of `--minutes`.
- `quick`: rounds in `scripts/test`, which leaves out scenarios without it.
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from fault_injection.requirements import first_missing
from fault_injection.trial import Trial
from fault_injection.verdicts import Outcome, table, update_page

OUTCOMES = pytest.StashKey[dict[str, Outcome]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults")
    group.addoption("--rounds", type=int, help="of each scenario, in place of its own number")
    group.addoption("--seed", type=int, default=1, help="of everything random (default: 1)")
    group.addoption("--seeds", type=int, default=1, help="run each scenario with so many seeds")
    group.addoption(
        "--minutes", type=float, default=0.0, help="shared by the scenarios that are lasting"
    )
    group.addoption("--faults-page", type=Path, help="page whose tables of verdicts to renew")


def is_chaos(config: pytest.Config) -> bool:
    """Whether `scripts/chaos` runs, and not `scripts/test`."""
    return bool(config.option.markexpr == "fault")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[OUTCOMES] = {}
    if is_chaos(config):  # Errors of calls that a fault cuts off are expected.
        logging.getLogger("galileo").setLevel(logging.ERROR)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seeds = metafunc.config.getoption("--seeds", 1)
    if "trial" in metafunc.fixturenames and seeds > 1:
        first = metafunc.config.getoption("--seed")
        metafunc.parametrize("seed", range(first, first + seeds))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves only the quick scenarios to `scripts/test`."""
    if is_chaos(config):
        return
    marks = [item.get_closest_marker("fault") for item in items]
    long = [mark is not None and "quick" not in mark.kwargs for mark in marks]
    config.hook.pytest_deselected(items=[i for i, out in zip(items, long, strict=True) if out])
    items[:] = [item for item, out in zip(items, long, strict=True) if not out]


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--seed", 1))


@pytest.fixture
def trial(request: pytest.FixtureRequest, seed: int) -> Iterator[Trial]:
    scenario = request.node.get_closest_marker("fault").kwargs
    if (missing := first_missing(scenario.get("needs", ()))) is not None:
        pytest.skip(missing)
    rounds, lasts_s = scenario.get("quick", 0), 0.0
    if is_chaos(request.config):
        rounds = request.config.getoption("--rounds") or scenario["rounds"]
        lasts_s = _share_s(request) if scenario.get("lasting") else 0.0
    with tempfile.TemporaryDirectory(
        prefix="galileo-chaos-", ignore_cleanup_errors=True
    ) as directory:
        trial = Trial(Path(directory), rounds, random.Random(seed), lasts_s)
        trial.say(scenario["holds"])
        yield trial


def _share_s(request: pytest.FixtureRequest) -> float:
    """Seconds of `--minutes` for each lasting scenario of the run."""
    marks = [item.get_closest_marker("fault") for item in request.session.items]
    lasting = sum(mark is not None and mark.kwargs.get("lasting", False) for mark in marks)
    return 60.0 * float(request.config.getoption("--minutes")) / lasting


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fails a scenario that has complaints."""
    trial = pyfuncitem.funcargs.get("trial")
    complaints = trial.complaints if isinstance(trial, Trial) else []
    try:
        result = yield
    except Exception as error:
        for complaint in complaints:
            error.add_note(complaint)
        raise
    if complaints:
        pytest.fail("\n".join(complaints), pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    mark = item.get_closest_marker("fault")
    if mark is not None and (call.when == "call" or report.outcome != "passed"):
        outcome = _outcome(item, report, mark)
        known = item.config.stash[OUTCOMES].setdefault(outcome.name, outcome)
        if known is not outcome:
            known.add(outcome)
    return report


def _outcome(item: pytest.Function, report: pytest.TestReport, mark: pytest.Mark) -> Outcome:
    verdict = {"passed": "held", "failed": "broken", "skipped": "skipped"}[report.outcome]
    name, row = mark.args
    outcome = Outcome(name, row, mark.kwargs["holds"], verdict, item.funcargs["seed"])
    outcome.took_s, outcome.load = report.duration, round(os.getloadavg()[1])
    if report.skipped and isinstance(report.longrepr, tuple):
        outcome.reason = report.longrepr[2].removeprefix("Skipped: ")
    if isinstance(trial := item.funcargs.get("trial"), Trial):
        outcome.counts, outcome.figures = trial.counts, trial.figures
        facts = {"seed": outcome.seed, **trial.counts, **trial.figures}
        report.user_properties += list(facts.items())
    return outcome


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    outcomes = list(config.stash[OUTCOMES].values())
    if is_chaos(config) and outcomes:
        terminalreporter.write_line(table(outcomes))
    if outcomes and (page := config.getoption("--faults-page", None)) is not None:
        update_page(page, outcomes)
