"""Uploaded samplers that mean well: they answer as they would outside, whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from expected_errors import raises
from galileo_sandbox import channel, probe, process
from galileo_sandbox.probe import unavailable_reason
from galileo_sandbox.sampler import SandboxedSampler
from processes import ended, is_alive

from galileo import samplers
from galileo.errors import InputError, InternalError, SamplerFailed, SandboxUnavailable
from galileo.labels import LabelSet
from galileo.sampler_package import SamplerArchive, archive_of
from galileo.sampler_runtime import SandboxLimits
from galileo.samplers import MergingSampler, SamplerSpec
from galileo.testing.conformance import SamplerConformance, sample_labels

SOURCE = '''
import threading
import time

import numpy as np

from galileo.errors import InputError
from galileo.samplers import label_hashes, label_uniforms


class Tenth:
    """Keeps a fraction."""

    def __init__(self, *, fraction):
        if not 0 < fraction <= 1:
            raise InputError(f"expected a fraction, got {fraction}")
        self.fraction = fraction

    def sample(self, labels, *, seed):
        return label_uniforms(labels, seed=seed) < self.fraction


class Lottery:
    """Draws one label of everything."""

    scope = "global"
    regroups = True

    def sample(self, labels, *, seed):
        commits = np.stack([labels.partitions, labels.sequences])
        _, commit = np.unique(commits, axis=1, return_inverse=True)
        hashes = label_hashes(labels, seed=seed)
        least = np.full(commit.max() + 1, np.iinfo(np.uint64).max, dtype=np.uint64)
        np.minimum.at(least, commit.reshape(-1), hashes)
        return hashes == least[commit.reshape(-1)]

    def merge(self, labels, *, seed):
        hashes = label_hashes(labels, seed=seed)
        return hashes == hashes.min()


class Observing:
    needs_observations = True

    def sample(self, labels, *, observations, seed):
        wanted = observations.column("label").to_numpy()
        return np.isin(np.arange(len(labels)), wanted)


class Narrow:
    """Looks at what it says that it looks at."""

    def __init__(self, *, columns=("cell",)):
        self.needs_columns = columns

    def sample(self, labels, *, seed):
        print(",".join(labels.table.column_names))
        return labels.cells % 2 == 0


class Busy:
    """Leaves a thread behind that never rests."""

    def __init__(self):
        def spin():
            while True:
                pass

        threading.Thread(target=spin, daemon=True).start()

    def sample(self, labels, *, seed):
        time.sleep(0.05)
        return np.ones(len(labels), dtype=bool)


class Pandas:
    """Looks at labels as a frame, and at what pandas is."""

    def sample(self, labels, *, seed):
        import pandas as pd
        frame = labels.to_pandas()
        assert isinstance(frame, pd.DataFrame)
        return (frame["partition"] % 2 == 0).to_numpy()


class Talking:
    def sample(self, labels, *, seed):
        print("looking at", len(labels))
        raise ValueError("not today")


class Fragile:
    def __init__(self):
        raise KeyError("gone")
'''
LABELS = sample_labels()


@pytest.fixture(scope="module", autouse=True)
def _require_sandbox() -> None:
    if (reason := unavailable_reason()) is not None:
        pytest.skip(reason)


def archive(name: str, source: str = SOURCE) -> SamplerArchive:
    return archive_of({"kind.py": source.encode()}, name=name.lower(), entry=f"kind:{name}")


@pytest.fixture
def make() -> Iterator[Callable[..., SandboxedSampler]]:
    made: list[SandboxedSampler] = []

    def start(
        name: str, *, limits: SandboxLimits | None = None, **options: Any
    ) -> SandboxedSampler:
        spec = samplers.sampler(name.lower(), seed=1, **options)
        one = SandboxedSampler(archive(name), spec, limits=limits or SandboxLimits())
        made.append(one)
        return one

    yield start
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def tenth() -> Iterator[SandboxedSampler]:
    spec = samplers.sampler("tenth", seed=1, fraction=0.3)
    contained = SandboxedSampler(archive("Tenth"), spec)
    yield contained
    contained.close()


def uncontained(name: str, **options: Any) -> Any:
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    return names[name](**options)


class TestContainedTenth(SamplerConformance):
    """The rule that every sampler keeps, in there too."""

    contained: SandboxedSampler

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _started(cls) -> Iterator[None]:
        cls.contained = SandboxedSampler(archive("Lottery"), samplers.sampler("lottery", seed=1))
        yield
        cls.contained.close()

    def make(self) -> MergingSampler:
        return self.contained


def test_sandboxed_sampler_mask_equals_plain_one(tenth: SandboxedSampler) -> None:
    contained, plain = tenth, uncontained("Tenth", fraction=0.3)
    for seed in (0, 7, 2**63 - 1, 2**64 - 1, -5, 10**30):
        kept = contained.sample(LABELS, seed=seed)
        assert kept.dtype == np.bool_
        assert 0 < kept.sum() < len(LABELS)
        assert np.array_equal(kept, plain.sample(LABELS, seed=seed))
    for count in (0, 1, 7, 8, 9, 500):
        few = LABELS.slice(0, count)
        assert np.array_equal(contained.sample(few, seed=3), plain.sample(few, seed=3))
    assert contained.pid is not None


@pytest.mark.slow
def test_sandboxed_sampler_traits_are_known(
    tenth: SandboxedSampler, make: Callable[..., SandboxedSampler]
) -> None:
    lottery = make("Lottery")
    assert (tenth.scope, tenth.regroups, tenth.needs_observations) == ("commit", False, False)
    assert (lottery.scope, lottery.regroups, lottery.needs_observations) == ("global", True, False)
    assert isinstance(lottery, MergingSampler)
    kept = samplers.apply(lottery, LABELS, seed=9)
    assert len(samplers.merge(lottery, kept, seed=9)) == 1


def test_sandboxed_sampler_gets_observations(make: Callable[..., SandboxedSampler]) -> None:
    observing = make("Observing")
    assert samplers.needs_observations(observing)
    observations = pa.table({"label": pa.array([0, 2, 2, 5], pa.int32()), "t": [1.0, 2, 3, 4]})
    kept = samplers.apply(observing, LABELS, seed=1, observations=observations)
    assert kept.texts().to_pylist() == LABELS.texts().take([0, 2, 5]).to_pylist()


def test_sandboxed_sampler_gets_needed_columns_only(make: Callable[..., SandboxedSampler]) -> None:
    narrow = make("Narrow", columns=["cell", "absent", "station"])
    assert narrow.needs_columns == ("cell", "absent", "station")
    kept = narrow.sample(LABELS, seed=1)
    assert np.array_equal(kept, LABELS.cells % 2 == 0)
    assert narrow._process is not None
    assert narrow._process.printed() == "cell,station,row,partition,sequence\n"
    assert len(samplers.apply(narrow, LABELS, seed=1)) == kept.sum()
    with raises(SamplerFailed, sampler="narrow", limit=""):
        make("Narrow", columns=[]).sample(LABELS, seed=1)


@pytest.mark.slow
def test_sandboxed_sampler_input_bytes_count_needed_columns(
    make: Callable[..., SandboxedSampler],
) -> None:
    limits = SandboxLimits(input_bytes=LABELS.table.nbytes - 1)
    with raises(SamplerFailed, sampler="tenth", limit="input_bytes"):
        make("Tenth", fraction=0.3, limits=limits).sample(LABELS, seed=1)
    assert make("Narrow", limits=limits).sample(LABELS, seed=1).any()


@pytest.mark.parametrize("columns", ["cell", [1], ["x"] * 1_025, ["x" * 70_000]])
def test_sandboxed_sampler_invalid_columns_raises(
    make: Callable[..., SandboxedSampler], columns: Any
) -> None:
    with raises(InputError, expected="options", sampler="narrow"):
        make("Narrow", columns=columns)


def test_sandboxed_sampler_calls_of_any_size_follow(
    tenth: SandboxedSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("galileo_sandbox.channel.KEPT_BYTES", 2**20)
    contained, plain = tenth, uncontained("Tenth", fraction=0.3)
    large = LabelSet.concat(LABELS.schema, [LABELS] * 60)
    for labels in (LABELS, large, LABELS, large.slice(0, 20_000), large):
        assert np.array_equal(contained.sample(labels, seed=5), plain.sample(labels, seed=5))


@pytest.mark.slow
def test_sandboxed_sampler_can_use_pandas(make: Callable[..., SandboxedSampler]) -> None:
    assert np.array_equal(make("Pandas").sample(LABELS, seed=1), LABELS.partitions % 2 == 0)


def test_sandboxed_sampler_invalid_option_raises_input_error(
    make: Callable[..., SandboxedSampler],
) -> None:
    with raises(InputError, expected="options", sampler="tenth"):
        make("Tenth", fraction=3)
    with raises(InputError, expected="options", sampler="tenth"):
        make("Tenth", part=3)


def test_sandboxed_sampler_failing_code_raises_with_traceback(
    make: Callable[..., SandboxedSampler],
) -> None:
    with raises(SamplerFailed, sampler="fragile") as failed:
        make("Fragile")
    assert "/sent/sampler.zip/kind.py" in failed.value.details["traceback"]
    with raises(SamplerFailed, sampler="absent") as failed:
        make("Absent")
    assert "has no attribute 'Absent'" in failed.value.details["traceback"]
    talking = make("Talking")
    with raises(SamplerFailed, sampler="talking", limit="") as failed:
        talking.sample(LABELS, seed=1)
    assert 'raise ValueError("not today")' in failed.value.details["traceback"]
    assert "worker.py" not in failed.value.details["traceback"]
    assert failed.value.details["printed"] == f"looking at {len(LABELS)}\n"


def test_sandboxed_sampler_killed_process_is_replaced(tenth: SandboxedSampler) -> None:
    contained = tenth
    before = contained.sample(LABELS, seed=2)
    first = contained.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert ended(first)
    while contained._process is not None and contained._process.alive():
        time.sleep(0.01)
    assert np.array_equal(contained.sample(LABELS, seed=2), before)
    assert contained.pid not in (None, first)


def test_sandboxed_sampler_interrupted_call_leaves_no_answer(
    tenth: SandboxedSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    contained, plain = tenth, uncontained("Tenth", fraction=0.3)

    class TookTooLong(BaseException):
        pass

    def interrupted(*_: Any, **__: Any) -> None:
        raise TookTooLong

    with monkeypatch.context() as patched:
        patched.setattr(process.SandboxedProcess, "_next", interrupted)
        with pytest.raises(TookTooLong):
            contained.sample(LABELS, seed=1)
    assert contained.pid is None
    few = LABELS.slice(0, 100)
    assert np.array_equal(contained.sample(few, seed=2), plain.sample(few, seed=2))


def thread_states(pid: int) -> set[str]:
    """Of all threads of a process, as in the file `stat` of each."""
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    return {stat.read_text().rpartition(") ")[2][0] for stat in stats}


@pytest.mark.slow
def test_sandboxed_sampler_between_calls_is_stopped(make: Callable[..., SandboxedSampler]) -> None:
    busy = make("Busy")
    busy.sample(LABELS, seed=1)
    assert busy.pid is not None
    contained = psutil.Process(busy.pid)
    deadline = time.monotonic() + 60
    while thread_states(busy.pid) != {"T"}:  # each thread stops when it is next scheduled
        assert time.monotonic() < deadline
        time.sleep(0.01)
    spent = contained.cpu_times()
    time.sleep(0.3)
    assert thread_states(busy.pid) == {"T"}
    assert contained.cpu_times() == spent
    assert busy.sample(LABELS, seed=1).all()


def test_sandboxed_sampler_concurrent_calls_are_right(tenth: SandboxedSampler) -> None:
    contained, plain = tenth, uncontained("Tenth", fraction=0.3)
    wrong: list[int] = []

    def ask(seed: int) -> None:
        few = LABELS.slice(seed, 800)
        for _ in range(5):
            kept = contained.sample(few, seed=seed)
            if not np.array_equal(kept, plain.sample(few, seed=seed)):
                wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.slow
def test_sandboxed_sampler_too_many_labels_raises(make: Callable[..., SandboxedSampler]) -> None:
    contained = make("Tenth", fraction=0.3, limits=SandboxLimits(input_bytes=10_000))
    with raises(SamplerFailed, sampler="tenth", limit="input_bytes"):
        contained.sample(LABELS, seed=1)
    assert len(contained.sample(LABELS.slice(0, 50), seed=1)) == 50


def test_sandboxed_sampler_closed_raises_internal_error(
    make: Callable[..., SandboxedSampler],
) -> None:
    contained = make("Tenth", fraction=0.3)
    pid = contained.pid
    contained.close()
    contained.close()
    assert pid is not None
    assert not is_alive(pid)
    with raises(InternalError, expected="open", sampler="tenth"):
        contained.sample(LABELS, seed=1)


@pytest.mark.slow
def test_sandboxed_sampler_failures_leak_nothing(make: Callable[..., SandboxedSampler]) -> None:
    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    before = held()
    contained = make("Talking")
    with pytest.raises(SamplerFailed):
        contained.sample(LABELS, seed=1)
    contained.close()
    with pytest.raises(SamplerFailed):
        make("Fragile")
    assert held() == before


def test_sandboxed_sampler_without_bubblewrap_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("galileo_sandbox.bubblewrap.PROGRAM", "no-such-bubblewrap")
    monkeypatch.setattr("galileo_sandbox.probe.PROGRAM", "no-such-bubblewrap")
    reason = probe.probe_sandbox()
    assert reason == "'no-such-bubblewrap' is not installed; install bubblewrap"
    monkeypatch.setattr("galileo_sandbox.sampler.unavailable_reason", lambda: reason)
    with raises(SandboxUnavailable, sampler="tenth"):
        SandboxedSampler(archive("Tenth"), SamplerSpec("tenth", {"fraction": 0.5}))


def test_unavailable_reason_after_failure_is_probed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    probe._check_once.cache_clear()
    answers = iter(["the machine is busy", None])
    monkeypatch.setattr(probe, "probe_sandbox", lambda: next(answers))
    assert [unavailable_reason(), unavailable_reason(), unavailable_reason()] == [
        "the machine is busy",
        None,
        None,
    ]


def test_unavailable_reason_broken_bubblewrap_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    reason = probe.probe_sandbox()
    assert reason is not None
    assert "No permissions to create new namespace" in reason


@pytest.mark.parametrize("as_root", [False, True])
def test_probe_sandbox_as_root_or_user_succeeds(as_root: bool) -> None:
    if as_root and os.geteuid() != 0:
        pytest.skip("this is not root")
    assert probe.probe_sandbox(as_root=as_root) is None


PARENT = """
import sys
from galileo.sampler_package import SamplerArchive
from galileo.samplers import SamplerSpec
from galileo.testing.conformance import sample_labels
from galileo_sandbox.sampler import SandboxedSampler

archive = SamplerArchive.from_bytes(open(sys.argv[1], "rb").read())
contained = SandboxedSampler(archive, SamplerSpec("slow"))
print(contained.pid, flush=True)
contained.sample(sample_labels(), seed=1)
"""
SLOW = """
import time


class Slow:
    def sample(self, labels, *, seed):
        time.sleep(1000)
"""


@pytest.mark.slow
def test_sandboxed_sampler_dies_with_node(tmp_path: Path) -> None:
    file = tmp_path / "slow.zip"
    file.write_bytes(archive("Slow", SLOW).data)
    words = [sys.executable, "-c", PARENT, str(file)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        contained = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    gone, alive = psutil.wait_procs([contained], timeout=60)
    assert gone
    assert not alive


def test_sandboxed_process_is_confined(tenth: SandboxedSampler) -> None:
    home = Path(f"/proc/{tenth.pid}")
    lines = (home / "status").read_text().splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == ["0" * 16] * 4
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert int(status["Seccomp_filters"]) == 2
    assert "0" not in status["Uid"].split() or os.geteuid() != 0
    for namespace in ("ipc", "mnt", "net", "pid", "uts"):
        assert (home / "ns" / namespace).readlink() != Path(f"/proc/self/ns/{namespace}").readlink()
    limits = (home / "limits").read_text()
    for name, value in (("open files", 64), ("processes", 16), ("file size", 0), ("core file", 1)):
        assert f"Max {name}" in limits
        [line] = [one for one in limits.splitlines() if one.startswith(f"Max {name}")]
        assert line.removeprefix(f"Max {name}").replace("size", "").split()[:2] == [str(value)] * 2


@pytest.mark.parametrize(
    "data", [b"\x03\0\0\0", b"\0\0\0\1\xff", b"\xff\1\1\1cell"], ids=["scope", "text", "both"]
)
def test_traits_from_bytes_invalid_raises(data: bytes) -> None:
    with pytest.raises(channel.SandboxTerminated, match=channel.INVALID_RESPONSE):
        process.Traits.from_bytes(data)


def test_traits_from_bytes_valid_are_read() -> None:
    said = process.Traits.from_bytes(b"\2\1\0\1cell\0station")
    assert said == process.Traits("global", True, False, ("cell", "station"))
    assert process.Traits.from_bytes(b"\0\0\1\0").needs_columns is None
    assert process.Traits.from_bytes(b"\0\0\1\1").needs_columns == ("",)


BURNING = """
import time


class Burning:
    def sample(self, labels, *, seed):
        until = time.process_time() + 0.4
        while time.process_time() < until:
            pass
        return labels.rows >= 0
"""


def test_sandboxed_sampler_cpu_time_counts_anew_with_each_call() -> None:
    limits = SandboxLimits(cpu_s=1.0)
    with contextlib.closing(
        SandboxedSampler(archive("Burning", BURNING), SamplerSpec("x"), limits=limits)
    ) as one:
        for _ in range(3):
            assert one.sample(LABELS, seed=1).all()
        assert one.cpu_s() > limits.cpu_s
