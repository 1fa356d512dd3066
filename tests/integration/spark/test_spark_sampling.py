from __future__ import annotations

import signal
import threading
import time

import pytest
from expected_errors import raises

from galileo.errors import SamplerFailed, SamplerRevoked, UnknownSampler
from galileo.samplers import SamplerSpec
from galileo.spark.sampling import sample


@pytest.fixture
def installed(sampler_path, monkeypatch):
    monkeypatch.syspath_prepend(str(sampler_path))


def run(labels, name, timeout_s=5.0, **options):
    return sample(
        labels,
        SamplerSpec(name, options, 1),
        timeout_s=timeout_s,
        observe=lambda part: pytest.fail("it looks at labels alone"),
        load_uploaded=lambda spec: pytest.fail("it is installed"),
    )


@pytest.mark.usefixtures("installed")
def test_sample_keeps_the_mask(make_labels):
    labels = make_labels(0, range(1, 3))
    kept = run(labels, "everyother")
    assert kept.rows.tolist() == [1, 3, 5, 7, 9] * 2


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["raises", "exits", "nomask", "sleeps"])
def test_sample_with_a_failing_sampler_is_sampler_failed(make_labels, name):
    with raises(SamplerFailed):
        run(make_labels(0, range(1, 3)), name)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_sample_above_its_time_limit_is_stopped(make_labels):
    before = signal.getsignal(signal.SIGALRM)
    timer = signal.getitimer(signal.ITIMER_REAL)
    started = time.monotonic()
    with raises(SamplerFailed):
        run(make_labels(0, range(1, 3)), "hangs", timeout_s=0.2)
    assert time.monotonic() - started < 60, "it never ends by itself"
    assert signal.getitimer(signal.ITIMER_REAL) == pytest.approx(timer, abs=5)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.usefixtures("installed")
def test_sample_outside_the_main_thread_has_no_time_limit(make_labels):
    kept = []
    labels = make_labels(0, range(1, 3))
    thread = threading.Thread(
        target=lambda: kept.append(run(labels, "sleeps", timeout_s=0.01, seconds=0.1))
    )
    thread.start()
    thread.join(60)
    assert len(kept[0]) == 20


def test_sample_with_an_unknown_sampler_is_refused(make_labels):
    with raises(UnknownSampler, sampler="unheard-of"):
        run(make_labels(0, range(1, 2)), "unheard-of")


class Revoked:
    """A sampler whose code is revoked while it is called."""

    scope = "commit"

    def sample(self, labels, *, seed):
        raise SamplerRevoked("the sampler 'sent' was revoked", digest="0" * 64)


def test_sample_revoked_within_a_call_is_sampler_revoked(make_labels):
    spec = SamplerSpec("sent", {}, 1, archive="0" * 64)
    with raises(SamplerRevoked, digest="0" * 64):
        sample(
            make_labels(0, range(1, 3)),
            spec,
            timeout_s=60.0,
            observe=lambda part: pytest.fail("it looks at labels alone"),
            load_uploaded=lambda spec: Revoked(),
        )
