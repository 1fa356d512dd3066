"""The shard of a keyed dataset: a metadata graph whose paths are versions of keys."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.graph.versions import Choice
from galileo.model.keyed import key_of
from galileo.model.schema import Schema
from galileo.node.dataset_shard import DatasetShard
from galileo.node.keyed_index import KeyedIndex
from galileo.node.table_index import TableIndex
from galileo.node.versioned_shard import VersionedShard
from galileo.storage.commits import Commit


class KeyedShard(VersionedShard, DatasetShard):
    """The journals, the index and the synopses of one keyed dataset on this node.

    Synopses also have the bounds of what was replaced and deleted, since readers may ask for what
    counted earlier.
    """

    index: KeyedIndex

    def __init__(self, schema: Schema, **options: Any) -> None:
        super().__init__(schema, index=KeyedIndex(schema), **options)

    @property
    def version_index(self) -> TableIndex:
        """The versions of each key."""
        return self.index.versions

    def may_drop(self, partition: int, last: int, until: int) -> bool:
        """As of `Shard`: whether no older version would count again without what is stored there.

        Retention drops what counts. A version stays that deletes or replaces one that was stored
        again behind it.
        """
        return not len(self.version_index.versions(partition, until=until).overhanging(last))

    def lacks(self, until: Cursor, *, after: Cursor, choice: Choice = Choice.CURRENT) -> Cursor:
        """As of `Shard`; what counts now is there, since it was stored again."""
        if choice is Choice.STORED:
            removed = Cursor({p: last for p, last in self.removed().items() if last > after[p]})
            return removed.join(self.erased_past(until))
        return Cursor({p: last for p, last in self.dropped().items() if until[p] < last})

    def _key_of(self, commit: Commit, row: int) -> Any:
        return key_of(self.schema, pa.table(commit.observations), row)

    def _narrow(self, partition: int) -> None:
        """Does nothing: a synopsis keeps the bounds of what counted earlier."""
