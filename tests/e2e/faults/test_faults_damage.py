"""Bytes of stored files that are lost or changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from fault_injection.damage import (
    Commits,
    Reading,
    flip,
    frames,
    kept_all,
    last_segments,
    observations,
    read_all,
)
from fault_injection.ledger import Ledger
from fault_injection.nodes import MERGING, PATIENCE, SMALL_FILES, one_node, send
from fault_injection.trial import Trial
from waiting import wait_until

from galileo.cluster import LocalCluster
from galileo.dht.topology import SYSTEM
from galileo.errors import GalileoError, Unavailable
from galileo.storage.verify import Report, verify

BATCHES = 20
STARTS_EACH = 40
"""So many rounds for each one that starts a real node on the damage."""
KINDS = ("sealed", "merged", "last", "system", "epoch", "placement")


@pytest.mark.fault(
    "torn-tail",
    "damage",
    rounds=120,
    quick=1,
    holds="the last frame of a partition cut off at any byte: everything before it is there, "
    "nothing else",
)
def test_torn_tail(trial: Trial) -> None:
    """The last frame of a partition cut off at any byte."""
    with one_node(trial.directory / "cluster", storage=SMALL_FILES) as (cluster, ledger):
        send(ledger, cluster.client(timeout=PATIENCE), batches=BATCHES)
        cluster.nodes[0].kill()
        directory = cluster.directory / "node-1"
        whole = read_all(directory)
        for number in trial.each_round():
            path = trial.random.choice(last_segments(directory))
            offset, header = frames(path)[-1]
            length = offset + trial.random.randrange(header.frame_bytes)
            lost = (path.parent.parent.name, int(path.parent.name), header.sequence)
            with kept_all(directory):
                with path.open("r+b") as file:
                    file.truncate(length)
                if number % STARTS_EACH == 1:
                    _start(trial, cluster, ledger, rows=_rows(whole) - header.rows)
                reading = read_all(directory)
            _compare_torn(trial, whole.commits, reading, lost=lost, cut=f"{path} at {length}")


def _rows(reading: Reading) -> int:
    return observations(reading).num_rows


def _start(trial: Trial, cluster: LocalCluster, ledger: Ledger, *, rows: int) -> None:
    """A real node on the torn file serves all but the torn commit."""
    cluster.nodes[0].restart()
    found = ledger.audit(cluster.client(timeout=PATIENCE))
    cluster.nodes[0].kill()
    trial.counts["starts of the node"] += 1
    right = found.found == rows and not (found.repeated or found.altered or found.foreign)
    trial.expect(right, f"expected {rows} observations from the node, got {found}")


def _compare_torn(
    trial: Trial, whole: Commits, reading: Reading, *, lost: tuple[str, int, int], cut: str
) -> None:
    trial.expect(not reading.refusals, f"{cut}: {reading.refusals}")
    missing = whole.keys() - reading.commits.keys()
    trial.counts["commits cut"] += len(missing)
    trial.counts["commits kept"] += len(reading.commits)
    trial.expect(missing == {lost}, f"{cut}: expected the loss of {lost}, got that of {missing}")
    trial.expect_same(whole, reading.commits, after=cut)


@pytest.mark.slow
@pytest.mark.fault(
    "bit-flips",
    "damage",
    rounds=240,
    quick=18,
    holds="a flipped byte anywhere in any kind of file: found by verify, refused by the node, "
    "never served",
)
def test_bit_flips(trial: Trial) -> None:
    """One byte of any kind of file."""
    with one_node(trial.directory / "cluster", storage=MERGING) as (cluster, ledger):
        client = cluster.client(timeout=PATIENCE)
        directory = cluster.directory / "node-1"
        send(ledger, client, batches=BATCHES)
        wait_until(lambda: bool(list(directory.rglob("*.merged"))), what="a merge")
        cluster.nodes[0].kill()
        _more_segments(trial, directory, ledger)
        whole = read_all(directory)
        trial.judge(ledger.compare(observations(whole)), "writing")
        for number in trial.each_round():
            kind = KINDS[(number - 1) % len(KINDS)]
            path = trial.random.choice(_files(directory, kind))
            with kept_all(directory):
                _flip(trial, cluster, (number, kind, path), whole.commits)


def _flip(trial: Trial, cluster: LocalCluster, what: tuple[int, str, Path], whole: Commits) -> None:
    number, kind, path = what
    directory = cluster.directory / "node-1"
    place, mask = trial.random.randrange(path.stat().st_size), trial.random.randrange(1, 256)
    flipped = f"{path.name} of {path.parent.name}, byte {place}, mask {mask}"
    is_active = path == max(path.parent.glob("*.segment"), default=None)
    torn_from = frames(path)[-1][0] if is_active else None
    flip(path, place, mask=mask)
    report = verify(directory)
    if number % STARTS_EACH == 1:
        _expect_refusal(trial, cluster, path, kind=kind)
    reading = read_all(directory)
    trial.counts[f"flips in {kind} files"] += 1
    tail = torn_from is not None and place >= torn_from
    found = _verify_found(report, path, place, tail=tail)
    trial.counts["found by verify"] += found
    trial.expect(found, f"verify missed {flipped}: {report}")
    trial.expect_same(whole, reading.commits, after=flipped)
    missing = whole.keys() - reading.commits.keys()
    if reading.refusals:
        trial.counts["refused"] += 1
    elif tail and len(missing) == 1:
        trial.counts["cut as torn"] += 1
    else:
        trial.expect(False, f"{flipped}: expected a refusal, got all but {missing}")


def _verify_found(report: Report, path: Path, place: int, *, tail: bool) -> bool:
    """Whether verify names the file and a place at or before the flip, or the torn tail."""
    if tail:
        return report.ok and report.torn_bytes > 0
    named = [damage for damage in report.damages if damage.file == str(path)]
    trailer = path.stat().st_size
    return bool(named) and min(damage.offset for damage in named) <= max(place, trailer)


def _more_segments(trial: Trial, directory: Path, ledger: Ledger) -> None:
    """Sealed segments beside the merged ones, by a node that does not merge."""
    place = trial.directory / "more"
    settings = {"segment_bytes_max": 20_000, "compaction": False}
    with one_node(place, storage=settings, data=directory, create=False) as (cluster, _):
        send(ledger, cluster.client(timeout=PATIENCE), batches=BATCHES)
        cluster.nodes[0].kill()


def _files(directory: Path, kind: str) -> list[Path]:
    last = last_segments(directory)
    system = [*directory.glob(f"journals/*/{SYSTEM}/*.segment")]
    others = {*last, *system}
    found: dict[str, Iterable[Path]] = {
        "sealed": (path for path in directory.rglob("*.segment") if path not in others),
        "merged": directory.rglob("*.merged"),
        "last": last,
        "system": system,
        "epoch": directory.glob("node/*.record"),
        "placement": directory.glob("records/*/*.record"),
    }
    return sorted(found[kind])


def _expect_refusal(trial: Trial, cluster: LocalCluster, path: Path, *, kind: str) -> None:
    """A real node ends with an error that names the file, or serves nothing of it."""
    try:
        cluster.nodes[0].restart()
        trial.counts["starts of the node"] += 1
        _expect_no_answer(trial, cluster, kind=kind)
    except Unavailable as error:
        trial.counts["refused starts"] += 1
        trial.expect(path.name in error.message, f"the log does not name {path}: {error}")
    finally:
        cluster.nodes[0].kill()


def _expect_no_answer(trial: Trial, cluster: LocalCluster, *, kind: str) -> None:
    client = cluster.client(timeout="1s")
    try:
        client.read(client.query("numbered"))
    except GalileoError as error:
        trial.counts["refused reads"] += 1
        trial.expect(error.kind == "corrupt_data", f"expected corrupt_data, got {error}")
    else:
        trial.expect(kind == "last", f"a node served all of a damaged {kind} file")
