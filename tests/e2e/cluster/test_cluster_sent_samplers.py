"""Samplers sent to a real cluster: good ones, ones that fail or never end, revoked ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from expected_errors import raises

import galileo
from galileo import samplers
from galileo.errors import NotPermitted, SamplerFailed, SamplerRevoked
from galileo.sampler_runtime import unavailable_reason
from galileo.testing.conformance import identities

Fresh = Callable[[str], str]

PATIENCE_S = 600.0
ROWS = 400

SHARE = """
from galileo.samplers import label_uniforms

class Share:
    def __init__(self, *, fraction):
        self.fraction = fraction

    def sample(self, labels, *, seed):
        return label_uniforms(labels, seed=seed) < self.fraction
"""
NORTHERN = """
import numpy as np

class Northern:
    needs_observations = True

    def sample(self, labels, *, observations, seed):
        label = observations.column("label").to_numpy()
        is_north = observations.column("latitude").to_numpy() > 20
        return np.bincount(label[is_north], minlength=len(labels)) > 0
"""
LATE = """
import numpy as np

class Late:
    \"\"\"All is well with the first hour.\"\"\"

    def __init__(self, *, ends):
        self.ends = ends

    def sample(self, labels, *, seed):
        if (labels.buckets % 86_400_000_000 > 0).any():
            while not self.ends:
                pass
            raise ValueError("no luck in the second hour")
        return np.ones(len(labels), dtype=bool)
"""

pytestmark = pytest.mark.skipif(
    unavailable_reason() is not None,
    reason=f"sent code cannot be contained here: {unavailable_reason()}",
)


def frame(*, hour: int) -> pd.DataFrame:
    rng = np.random.default_rng(hour)
    return pd.DataFrame(
        {
            "latitude": rng.uniform(-60, 60, ROWS),
            "longitude": rng.uniform(-180, 180, ROWS),
            "time": pd.Timestamp("2014-06-01", tz="UTC") + pd.Timedelta(hours=hour),
            "temperature": rng.normal(285, 9, ROWS).round(1),
        }
    )


@pytest.fixture
def dataset(client: galileo.Client, fresh_name: Fresh) -> Iterator[str]:
    name = fresh_name("sent")
    schema = galileo.Schema(name, [galileo.Feature("temperature", "K")], geohash_precision=2)
    client.create_dataset(schema)
    client.ingest(name, frame(hour=0))
    yield name
    for one in client.list_ccqs():
        if one.dataset == name:
            client.cancel(one.id)


@pytest.fixture
def archive(tmp_path: Path) -> Callable[[str, str], galileo.SamplerArchive]:
    """`archive("share", SHARE)`; of this test alone."""

    def made(name: str, code: str) -> galileo.SamplerArchive:
        path = tmp_path / f"{name}.py"
        path.write_text(f"# {tmp_path}\n{code}")
        return galileo.sampler_archive(path)

    return made


def delivered(client: galileo.Client, ccq: galileo.Ccq) -> set[tuple[int, int, int]]:
    """What is new for a CCQ, once something is."""
    deadline = time.monotonic() + PATIENCE_S
    token, found = ccq.token, set[tuple[int, int, int]]()
    while not found:
        assert time.monotonic() < deadline, f"nothing comes of {ccq.id}"
        update = client.fetch(ccq.id, token=token, wait="5s")
        token = update.token
        found |= set(identities(update.labels))
    while update.frontier != client.query(ccq.info.dataset).frontier:
        assert time.monotonic() < deadline, f"not all comes of {ccq.id}"
        update = client.fetch(ccq.id, token=token, wait="5s")
        token = update.token
        found |= set(identities(update.labels))
    return found


def failure(client: galileo.Client, ccq: galileo.Ccq) -> SamplerFailed:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            client.fetch(ccq.id, token=ccq.token, wait="5s")
        except SamplerFailed as error:
            return error
    raise AssertionError(f"{ccq.id} does not fail")


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_S)  # many processes that take seconds of CPU time each
def test_ccqs_with_failing_samplers_leave_others_running(
    client: galileo.Client,
    dataset: str,
    archive: Callable[[str, str], galileo.SamplerArchive],
) -> None:
    """Five CCQs of one job: without a sampler, three good ones, one that raises, one endless."""
    share, late = archive("share", SHARE), archive("late", LATE)
    specs = {
        "plain": None,
        "share": galileo.sampler(share, fraction=0.3, seed=7),
        "northern": galileo.sampler(archive("northern", NORTHERN)),
        "raising": galileo.sampler(late, ends=True),
        "endless": galileo.sampler(late, ends=False),
    }
    ccqs = {
        name: client.submit(dataset, interval="1s", expiration="1h", sampler=spec)
        for name, spec in specs.items()
    }
    first = client.query(dataset)
    assert {len(ccqs[name].initial) for name in ("plain", "raising", "endless")} == {len(first)}
    client.ingest(dataset, frame(hour=1))

    new = client.query(dataset).after(first.frontier)
    assert delivered(client, ccqs["plain"]) == set(identities(new))
    uniform = samplers.load(samplers.SamplerSpec("uniform", {"fraction": 0.3}))
    expected = set(identities(samplers.apply(uniform, new, seed=7)))
    assert 0 < len(expected) < len(new)
    assert delivered(client, ccqs["share"]) == expected
    spec = specs["northern"]
    found = set(identities(client.query(dataset, sampler=spec)))
    assert delivered(client, ccqs["northern"]) == found & set(identities(new))
    assert 0 < len(found & set(identities(new))) < len(new)
    anew = replace(ccqs["northern"], token="")
    assert delivered(client, anew) == found, "all of it is found again, by reading it again"

    raised, endless = failure(client, ccqs["raising"]), failure(client, ccqs["endless"])
    assert "no luck in the second hour" in raised.message
    assert 'raise ValueError("no luck in the second hour")' in raised.details["traceback"]
    assert "took" in endless.message

    client.ingest(dataset, frame(hour=2))
    after = client.query(dataset).after(new.frontier or first.frontier)
    assert set(identities(after)) & delivered(client, ccqs["plain"])

    gone = client.revoke_sampler(late.digest[:12])
    assert gone.away == ()
    assert set(gone.sampler.ccq_ids) == {ccqs["raising"].id, ccqs["endless"].id}
    for name in ("raising", "endless"):
        # A node that it had not reached when it was revoked knows its digest alone.
        with raises(SamplerRevoked, digest=late.digest):
            client.fetch(ccqs[name].id, token=ccqs[name].token)
    with pytest.raises(SamplerRevoked):
        client.submit(dataset, interval="1s", expiration="1h", sampler=late)
    client.fetch(ccqs["share"].id, token=ccqs["share"].token)


@pytest.mark.slow
def test_fetch_waiting_with_a_revoked_sampler_returns(
    client: galileo.Client,
    cluster: galileo.LocalCluster,
    dataset: str,
    archive: Callable[[str, str], galileo.SamplerArchive],
) -> None:
    share = archive("share", SHARE)
    spec = galileo.sampler(share, fraction=0.5)
    ccq = client.submit(dataset, interval="1h", expiration="1d", sampler=spec)
    for address in cluster.addresses:
        with galileo.connect(address) as there:
            [row] = [one for one in there.sent_samplers() if one.digest == share.digest]
            assert (row.ccq_ids, row.revoked_at) == ((ccq.id,), None)
    errors: list[Exception] = []

    def read(address: str) -> None:
        with galileo.connect(address) as reader:
            try:
                reader.fetch(ccq.id, token=ccq.token, wait="60s")
            except SamplerRevoked as error:
                errors.append(error)

    started = time.monotonic()
    readers = [threading.Thread(target=read, args=(one,)) for one in cluster.addresses]
    for thread in readers:
        thread.start()
    while client.status().nodes and sum(waiting(client)) < len(readers):
        assert time.monotonic() - started < PATIENCE_S
    client.revoke_sampler(share.digest)
    for thread in readers:
        thread.join(PATIENCE_S)
    assert len(errors) == len(readers), "who waits in vain gets an update, and no error"


def waiting(client: galileo.Client) -> list[int]:
    """How many fetches each node has under way."""
    return [node.calls.get("Continuous/Fetch", 0) for node in client.status().nodes]


@pytest.mark.slow
def test_sent_sampler_without_permission_is_refused(
    tmp_path: Path, archive: Callable[[str, str], galileo.SamplerArchive]
) -> None:
    with galileo.LocalCluster(nodes=1, groups=1) as closed:
        client = closed.client()
        client.create_dataset(galileo.Schema("air", [galileo.Feature("temperature", "K")]))
        with raises(NotPermitted, key="samplers.uploads"):
            client.query("air", sampler=archive("share", SHARE))
        share = archive("share", SHARE)
        for sampler in (share, galileo.sampler(share, fraction=0.5)):
            with raises(NotPermitted, key="samplers.uploads"):
                client.submit("air", sampler=sampler)
        assert client.sent_samplers() == []
