"""What every test may ask for."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rota
from hypothesis import HealthCheck, settings

import galileo
from galileo.cluster import stop_evaluator
from galileo.spark.runtime_dir import RuntimeDir

EXAMPLES = {"quick": 6, "all": 100}
for profile, examples in EXAMPLES.items():
    settings.register_profile(
        profile,
        deadline=None,
        max_examples=examples,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("quick")

_NUMBERS = itertools.count(1)

EVALUATOR = pytest.StashKey[str]()
"""Directory of the evaluator that tests share."""

STDERR = pytest.StashKey[int]()
"""A descriptor of the standard error of the process, which pytest captures."""

TEARDOWN_S = 300.0
"""A teardown that takes longer hangs."""

JAVA_OPTIONS = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"

TOGETHER = {
    "tests/integration/spark": ("tests/integration/spark",),
    "clients": (
        "tests/e2e/client",
        "tests/e2e/cluster/test_cluster_moves",
        "tests/e2e/cluster/test_cluster_sent_samplers",
    ),
    "commands": (
        "tests/e2e/cli",
        "tests/e2e/docs",
        "tests/e2e/gateway",
        "tests/e2e/test_",
        "tests/integration/server/test_server_process",
    ),
}
"""Directories and files whose tests share a session of Spark, or `cluster`."""
LONG = (
    "commands",
    "clients",
    "tests/integration/spark",
    "tests/e2e/cluster",
    "tests/integration/server",
    "tests/simulation",
    "tests/integration/node",
)
"""What takes longest, longest first."""


APART = {
    Path(__file__).parent / name
    for name in ("unit/benchmarks", "unit/kit", "property/fuzzing", "e2e/faults")
}
"""Directories of long tests, which run with --all and where a call names them or other marks."""


def group_of(nodeid: str) -> str:
    """Tests of one group stay in one process, where several run them; else each file does."""
    file = nodeid.partition("::")[0]
    return next((name for name, begins in TOGETHER.items() if file.startswith(begins)), file)


TURN = pytest.StashKey[rota.Turn]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turn", type=int, help="run the tests of this turn, of those that take long")


def pytest_configure(config: pytest.Config) -> None:
    """Generates more examples where the slow tests run too (`scripts/test --all`).

    Nothing is garbage until all tests are collected; to look for some takes a tenth of that time.
    """
    is_turn = config.option.turn is not None
    if is_turn:
        config.stash[TURN] = rota.Turn()
    settings.load_profile("all" if config.option.markexpr == "" and not is_turn else "quick")
    config.pluginmanager.register(Failures(config))
    config.stash[STDERR] = os.dup(2)
    gc.disable()
    inherited = getattr(config, "workerinput", {}).get("evaluator")
    config.stash[EVALUATOR] = inherited or tempfile.mkdtemp(prefix="galileo-test-evaluator-")


class Failures:
    """Names each failure at once: a run that is ended from outside prints no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None and not hasattr(self._config, "workerinput"):
            terminal.write_line(f"\n{report.nodeid} failed in its {report.when}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Gives processes that share the tests the evaluator of the process that shares them out."""
    node.workerinput["evaluator"] = node.config.stash[EVALUATOR]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the directories of `APART` where no slow tests run and no argument names them."""
    if collection_path not in APART:
        return None
    named = (Path(argument.partition("::")[0]).resolve() for argument in config.args)
    quick = config.option.markexpr == "not slow"
    return True if quick and not any(p.is_relative_to(collection_path) for p in named) else None


class TurnedDir(pytest.Dir):
    """A directory of which each process that shares the tests collects another part first.

    The first one that imports a file stores it with its assertions rewritten, which takes twice as
    long as all else that is done to collect it.
    """

    def collect(self) -> Iterator[pytest.Collector]:
        nodes, worker = list(super().collect()), self.config.workerinput  # type: ignore[attr-defined]
        begin = len(nodes) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        yield from (*nodes[begin:], *nodes[:begin])  # type: ignore[misc]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    if not hasattr(parent.config, "workerinput"):
        return None
    made: TurnedDir = TurnedDir.from_parent(parent, path=path)
    return made


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Shares the groups between processes (`--numprocesses=4`, as `scripts/test` has it)."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False  # keeps the order of the next function
    return Groups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no process is left with it at the end.

    All processes have the same order.
    """

    def turn(item: pytest.Item) -> tuple[int, Path]:
        group = group_of(item.nodeid)
        turns = (n for n, name in enumerate(LONG) if group.startswith(name))
        return next(turns, len(LONG)), item.path

    if hasattr(config, "workerinput"):
        items.sort(key=turn)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Puts the tests of a turn in order: those that `scripts/test` leaves out."""
    turn = session.config.option.turn
    if turn is not None:
        left_out = [item for item in session.items if _is_long(item) and _has_end(item)]
        session.items = rota.in_turn(left_out, turn, file_of=lambda item: item.path)
        session.testscollected = len(left_out)
    return (yield)


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None or any(
        item.path.is_relative_to(directory) for directory in APART
    )


def _has_end(item: pytest.Item) -> bool:
    """Whether a test is bounded; faults take minutes each, and `scripts/chaos` runs them."""
    limit = item.get_closest_marker("timeout")
    return item.get_closest_marker("fault") is None and (limit is None or limit.args[0] > 0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Passes over a test for which a turn has no time; bounds others that have no bound."""
    turn = item.config.stash.get(TURN, None)
    if turn is None:
        return None
    slow, limit = item.get_closest_marker("slow"), item.get_closest_marker("timeout")
    expected_s = rota.EXPECTED_S
    if limit is None:
        item.add_marker(pytest.mark.timeout(rota.TIMEOUT_S))
    elif limit.args[0] > rota.TIMEOUT_S:
        expected_s = rota.LONG_EXPECTED_S
    if slow is not None and slow.args:
        expected_s = slow.args[0]
    if turn.has_time(expected_s):
        return None
    rota.pass_over(item, nextitem)
    return True


def pytest_collection_finish() -> None:
    """Has collections of garbage pass over all that was imported and collected until here.

    At exit libraries that report leaks find what is frozen.
    """
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stops the evaluator."""
    if not hasattr(config, "workerinput"):
        stop_evaluator(Path(config.stash[EVALUATOR]))
        shutil.rmtree(config.stash[EVALUATOR], ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Ends the shared cluster with the group of tests that share it.

    Processes that are idle take a tenth of a processor, which other groups of tests need.

    A teardown that hangs ends the process, with the stacks of its threads: pytest-timeout bounds
    none after a failure.
    """
    faulthandler.dump_traceback_later(TEARDOWN_S, exit=True, file=item.config.stash[STDERR])
    try:
        yield
        if nextitem is not None and group_of(item.nodeid) != group_of(nextitem.nodeid):
            for name in ("client", "cluster"):
                for fixture in item.session._fixturemanager.getfixturedefs(name, item) or ():
                    fixture.finish(item._request)  # type: ignore[attr-defined]
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session", autouse=True)
def no_user_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hides the profiles and positions of the user who runs the tests, from subprocesses too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("GALILEO_NODE", raising=False)
        patch.delenv("GALILEO_PROFILE", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> Iterator[None]:
    """Has every JVM trust the classes of PySpark, whose verification is a third of its start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
        yield


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """Directory of real sample files; the test is skipped where there is none."""
    named = os.environ.get("GALILEO_SAMPLE_DATA")
    path = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no sample files: set GALILEO_SAMPLE_DATA to a directory that holds them")
    return path


@pytest.fixture(scope="session")
def evaluator(pytestconfig: pytest.Config) -> dict[str, Any]:
    """The section `evaluator` of clusters that share one evaluator process, of all tests.

    The start of one takes some ten seconds of processor time, so a test has one of its own only
    if it stops it, counts its jobs or protects it with tokens.
    """
    return {"directory": pytestconfig.stash[EVALUATOR], "idle_timeout_s": 900.0}


@pytest.fixture(scope="session")
def no_evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The section `evaluator` of clusters that evaluate nothing, so that they start no JVM.

    Its lock is taken, as by an evaluator that is starting; nodes wait for that one. Continuous
    queries are accepted and have their initial results, which nodes find themselves.
    """
    directory = tmp_path_factory.mktemp("no-evaluator")
    lock = RuntimeDir(directory).try_lock()
    assert lock is not None
    yield {"directory": str(directory)}
    os.close(lock)


@pytest.fixture(scope="session")
def cluster(evaluator: dict[str, Any]) -> Iterator[galileo.LocalCluster]:
    """Three node processes in two groups, for all tests that leave every node running.

    They take samplers that are sent, where this machine can contain them.

    A test uses datasets of its own (`fresh_name`) and cancels the continuous queries it submits.
    """
    # However busy this machine is, no node holds another one dead. Heartbeats cost processor time
    # for each dataset, of which the tests make hundreds.
    settings = {
        "samplers": {"uploads": "sandboxed"},
        "membership": {"heartbeat_interval_s": 2.0, "failure_timeout_s": 60.0},
        "evaluator": evaluator,
    }
    with galileo.LocalCluster(nodes=3, groups=2, settings=settings) as running:
        yield running


@pytest.fixture(scope="session")
def client(cluster: galileo.LocalCluster) -> galileo.Client:
    """A blocking client of `cluster`; closed with it."""
    return cluster.client()


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[str], str]:
    """`fresh_name("nam")`: a dataset name that no other test of this session has."""
    return lambda stem: f"{stem}-{next(_NUMBERS)}"
