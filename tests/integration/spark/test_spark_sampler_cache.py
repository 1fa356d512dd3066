"""The archives of a worker: fetched once, checked, dropped when revoked or idle."""

from __future__ import annotations

import pytest
from expected_errors import raises

from galileo.errors import InputError, SamplerRevoked, Unavailable, UnknownSampler
from galileo.sampler_package import sampler_archive
from galileo.sampler_runtime import open_runtime, unavailable_reason
from galileo.samplers import apply, sampler
from galileo.spark.uploaded_samplers import IDLE_S, SamplerCache

CODE = """
class Share:
    def __init__(self, *, of=2):
        self.of = of

    def sample(self, labels, *, seed):
        return labels.rows % self.of == 0
"""


class Node:
    """Stands for the nodes behind their addresses.

    Attributes:
        asked: address and whether only for the facts, of each call.
        error: what it answers with.
    """

    def __init__(self, archive):
        self.archive = archive
        self.asked = []
        self.error = None

    def get(self, address, digest, facts_only):
        self.asked.append((address, facts_only))
        if self.error is not None:
            raise self.error
        return b"" if facts_only else self.archive.data


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("sent") / "share.py"
    path.write_text(CODE)
    return sampler_archive(path)


@pytest.fixture
def node(archive):
    return Node(archive)


@pytest.fixture
def now():
    """A manual clock."""
    return [100.0]


@pytest.fixture
def runtime():
    runtime = open_runtime()
    yield runtime
    runtime.close()


@pytest.fixture
def code(node, now, runtime):
    """Its thread never checks within a test."""
    return SamplerCache(runtime, get=node.get, monotonic=lambda: now[0], check_interval_s=3_600.0)


@pytest.mark.skipif(
    unavailable_reason() is not None, reason=f"nothing is contained here: {unavailable_reason()}"
)
def test_load_fetches_once_and_runs_contained(code, node, archive, make_labels):
    labels = make_labels(0, range(1, 3))
    for address in ("a:1", "b:1"):
        chosen = code.load(sampler(archive, of=5), address=address, owner="air")
        assert apply(chosen, labels, seed=1).rows.tolist() == [0, 5] * 2
    assert node.asked == [("a:1", False)]
    assert code.drop_unused()
    assert node.asked[1:] == [("b:1", True)], "the check goes to the node that was used last"


def load(code, archive):
    """Fetches the archive, whatever becomes of its process."""
    return code._archive(archive.digest, "a:1")


def test_drop_unused_revoked_archive_is_dropped(code, node, archive, runtime, monkeypatch):
    revoked = []
    monkeypatch.setattr(runtime, "revoke", revoked.append)
    load(code, archive)
    node.error = Unavailable("the node is away")
    assert code.drop_unused(), "an unreachable node revokes nothing"
    node.error = SamplerRevoked("gone")
    assert not code.drop_unused()
    assert revoked == [archive.digest]
    with raises(SamplerRevoked):
        load(code, archive)


def test_drop_unused_idle_archive_is_fetched_again(code, node, archive, now):
    load(code, archive)
    now[0] += IDLE_S - 1
    load(code, archive)
    now[0] += IDLE_S - 1
    assert code.drop_unused()
    now[0] += 2
    assert not code.drop_unused()
    load(code, archive)
    assert [facts_only for _, facts_only in node.asked] == [False, True, False]


def test_load_archive_with_another_digest_is_refused(code, archive):
    with raises(InputError):
        code._archive("0" * 64, "a:1")


def test_load_unknown_archive_is_refused(code, node, archive):
    node.error = UnknownSampler("never sent")
    with raises(UnknownSampler):
        load(code, archive)
    assert not code.drop_unused()
