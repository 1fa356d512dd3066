"""The directory of a node with weather in two partitions, on which something runs in a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lone_nodes import LoneOwner

from galileo.generate import NamLike
from galileo.model import paths
from galileo.node.catalog import Catalog
from galileo.storage.journal import Commit
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

WEATHER = NamLike(stride=40)
SCHEMA = WEATHER.schema()
COMMITS = 12
OPTIONS = JournalOptions(durability="none", segment_bytes_max=50_000)
BEGAN = 1.5e9
PATIENCE_S = 300.0


def commits() -> list[Commit]:
    tables = WEATHER.stream("2012-03-01", hours=COMMITS)
    return [Commit("model", n, *paths.index(SCHEMA, table)) for n, table in enumerate(tables)]


def fill(directory: Path) -> Path:
    """Stores the same commits in partitions 0 and 5, each in several segments."""
    with Store.open(directory, OPTIONS, wall=lambda: BEGAN) as store:
        store.recover(lambda *_: None)
        store.create_dataset(SCHEMA)
        for partition in (0, 5):
            for commit in commits():
                store.journal("nam", partition).append([commit])
            assert store.journal("nam", partition).segments > 3
    return directory


def opened(directory: Path, *, wall: Callable[[], float] = lambda: BEGAN) -> tuple[Store, Catalog]:
    store, executor = Store.open(directory, OPTIONS, wall=wall), ThreadPoolExecutor(1)
    return store, Catalog(store, executor=executor, syncing=executor, machines=LoneOwner())
