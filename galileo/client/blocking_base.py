"""The base of the blocking client: how it waits for the loop's thread, and its iterators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from galileo.client.async_client import AsyncClient
from galileo.client.blocking_portal import BlockingPortal, CallerThreadIterable
from galileo.client.ingestion import Batches, is_stream
from galileo.client.queries import LabelBatches
from galileo.client.results import Labels, QueryEnd
from galileo.labels import LabelSet
from galileo.model.rows import row_options

Result = TypeVar("Result")


class BlockingBase:
    """Waits for the calls of an `AsyncClient`, which run in the thread of a loop."""

    _loop: BlockingPortal
    _client: AsyncClient

    def _run(self, work: Awaitable[Result]) -> Result:
        return self._loop.run(work)

    def _run_with(self, data: Batches, call: Callable[[Batches], Awaitable[Result]]) -> Result:
        """Runs a call that takes `data` piece by piece, in the thread that waits for it."""
        handed = CallerThreadIterable(data) if is_stream(data) else None
        return self._loop.run(call(data if handed is None else handed), handed=handed)

    def _iterate(self, items: Any) -> BlockingItems:
        """Steps through an async iterator; closing the iterator closes it too."""
        return BlockingItems(self._loop, items)

    def _label_batches(self, batches: LabelBatches) -> BlockingLabelBatches:
        return BlockingLabelBatches(batches, self._iterate(batches))


class BlockingItems(Iterator[Any]):
    """The items of an async iterator, which some errors do not end."""

    def __init__(self, loop: BlockingPortal, items: Any) -> None:
        self._loop = loop
        self._items = items

    def __next__(self) -> Any:
        try:
            return self._loop.run(anext(self._items))
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Ends the work at the nodes, too; harmless where it has ended."""
        self._loop.end(self._items)

    def __del__(self) -> None:
        self._loop.drop(self._items)


class BlockingTables(Iterator[pa.Table]):
    """Observations in pieces; `close` it where it is not read to its end."""

    def __init__(self, labels: LabelSet, columns: Sequence[str], steps: BlockingItems) -> None:
        self._labels = labels
        self._options = row_options(columns, None, "")
        self._steps = steps

    @property
    def arrow_schema(self) -> pa.Schema:
        """Of the pieces, also where there is none."""
        return self._options.described_schema(self._labels.schema)

    def __next__(self) -> pa.Table:
        return next(self._steps)

    def close(self) -> None:
        """Ends the reading at the nodes, too; harmless where it has ended."""
        self._steps.close()


class BlockingLabelBatches:
    """`LabelBatches` for `for`; leave a `with` block or `close` it where it is not read to its end.

    Attributes:
        end: how far the answer goes; None until all labels were given.
    """

    def __init__(self, batches: LabelBatches, steps: BlockingItems) -> None:
        self._batches = batches
        self._steps = steps

    @property
    def end(self) -> QueryEnd | None:
        """How far the answer goes; None until all labels were given."""
        return self._batches.end

    @property
    def arrow_schema(self) -> pa.Schema | None:
        """Of the labels as tables, also where there are none; None until the answer has begun."""
        schema = self._batches.schema
        return None if schema is None else Labels.empty(schema).to_arrow().schema

    def __iter__(self) -> BlockingLabelBatches:
        return self

    def __next__(self) -> Labels:
        labels: Labels = next(self._steps)
        return labels

    def __enter__(self) -> BlockingLabelBatches:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the answer at the nodes, too; harmless where it has ended.

        Example:
            >>> batches = client.query_batches("weather")
            >>> first = next(batches)
            >>> batches.close()
        """
        self._steps.close()
