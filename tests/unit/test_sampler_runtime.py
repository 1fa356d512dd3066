"""The runtime of uploaded samplers: found by its entry point, or refused with what to install."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import metadata
from types import SimpleNamespace

import pytest
from expected_errors import raises

from galileo import sampler_runtime
from galileo.errors import InputError, SandboxUnavailable
from galileo.sampler_package import archive_of
from galileo.sampler_runtime import SandboxLimits, open_runtime, unavailable_reason
from galileo.samplers import SamplerSpec

CODE = b"class Every:\n    def sample(self, labels, *, seed): return labels.rows >= 0\n"
EVERY = archive_of({"every.py": CODE}, name="every", entry="every:Every")

Install = Callable[..., None]


class Runtime(sampler_runtime.NoRuntime):
    """A runtime of another distribution."""

    def __init__(self, limits: SandboxLimits) -> None:
        self.limits = limits

    @staticmethod
    def unavailable_reason() -> str | None:
        return "it is Sunday"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install(Class)`: only these runtimes are installed."""

    def put(*classes: type[sampler_runtime.SamplerRuntime]) -> None:
        points = [SimpleNamespace(load=lambda cls=cls: cls) for cls in classes]
        monkeypatch.setattr(metadata, "entry_points", lambda *, group: points)
        sampler_runtime._runtime_class.cache_clear()

    yield put
    sampler_runtime._runtime_class.cache_clear()


def test_open_runtime_none_installed_raises_sandbox_unavailable(install: Install) -> None:
    install()
    reason = unavailable_reason()
    assert reason is not None
    assert "pip install galileo-sandbox" in reason
    runtime = open_runtime()
    with raises(SandboxUnavailable, sampler="every"):
        runtime.load(EVERY, SamplerSpec("every"), owner="nam")
    runtime.evict(EVERY.digest)
    runtime.revoke(EVERY.digest)
    runtime.close()


def test_open_runtime_installed_one_gets_limits(install: Install) -> None:
    install(Runtime)
    limits = SandboxLimits(cpu_s=2.0)
    runtime = open_runtime(limits)
    assert isinstance(runtime, Runtime)
    assert runtime.limits is limits
    assert unavailable_reason() == "it is Sunday"


@pytest.mark.parametrize("name", SandboxLimits.__slots__)
def test_sandbox_limits_zero_raises(name: str) -> None:
    with raises(InputError, option=name):
        SandboxLimits(**{name: 0})
