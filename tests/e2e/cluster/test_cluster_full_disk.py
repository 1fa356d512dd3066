"""A node whose disk is full: it takes no continuous query on, and answers what is asked of it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from expected_errors import raises
from fault_injection.disks import MemoryDisk
from fault_injection.requirements import memory_disk_missing

import galileo
from galileo.errors import Overloaded

pytestmark = pytest.mark.skipif(
    memory_disk_missing() is not None, reason=str(memory_disk_missing())
)


@pytest.mark.slow
def test_submit_with_a_full_disk_is_overloaded(tmp_path: Path) -> None:
    with (
        MemoryDisk(tmp_path / "small", size_bytes=64 << 20) as disk,
        galileo.LocalCluster(nodes=1, groups=1, directory=disk.directory) as cluster,
        galileo.connect(*cluster.addresses, timeout="1s") as client,
    ):
        client.create_dataset(galileo.Schema("d", [galileo.Feature("t")], geohash_precision=3))
        time = [pd.Timestamp("2014-06-01", tz="UTC")]
        rows = {"latitude": [40.0], "longitude": [-105.0], "time": time, "t": [1.0]}
        client.ingest("d", pd.DataFrame(rows))
        ccq = client.submit("d", interval="1s", expiration="1h")
        ballast = disk.directory / "ballast"
        ballast.write_bytes(bytes(56 << 20))
        with raises(Overloaded, node="node-1", after_s=60.0):
            client.submit("d", interval="1s", expiration="1h")
        assert len(client.query("d")) == 1
        assert [one.id for one in client.list_ccqs()] == [ccq.id]
        ballast.unlink()
        client.submit("d", interval="1s", expiration="1h")
        assert len(client.list_ccqs()) == 2
