"""The client of the evaluator of a node's host: starts it early, and keeps it while in use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from galileo.config import Config
from galileo.errors import GalileoError
from galileo.spark.launcher import EvaluatorClient
from galileo.spark.options import EvaluatorOptions, SparkOptions
from galileo.wire.internal.v1 import evaluator_pb2

LOOK_S = 5.0

log = logging.getLogger(__name__)


def evaluator_options(config: Config) -> EvaluatorOptions:
    """The options of the evaluator of a node's host."""
    section = config.evaluator
    return EvaluatorOptions(
        runtime_dir=config.evaluator_directory,
        spark=SparkOptions(master=section.master, heap_mb=section.heap_mb),
        idle_timeout_s=section.idle_timeout_s,
        keys=config.keys,
        tracing=config.tracing,
        log_format=config.logging.format,
        log_level=config.logging.level,
    )


class Evaluation:
    """Starts the evaluator on demand, and renews its lease while this node coordinates CCQs."""

    def __init__(self, config: Config) -> None:
        self._timeout_s = config.evaluator.cycle_timeout_s
        self._handle = EvaluatorClient(evaluator_options(config))
        self._warming: asyncio.Task[None] | None = None

    def warm(self) -> None:
        """Starts the evaluator in the background, before the first cycle."""
        if self._warming is None or self._warming.done():
            self._warming = asyncio.get_running_loop().create_task(self._ensure())

    async def evaluate(self, request: evaluator_pb2.EvaluateRequest) -> evaluator_pb2.EvaluateReply:
        """Runs one Spark job over all items.

        Raises:
            TransientError: there is no evaluator, or it timed out; nothing is lost.
        """
        return await self._handle.evaluate(request, timeout_s=self._timeout_s)

    async def keep(self, is_needed: Callable[[], bool]) -> None:
        """Renews the lease of the evaluator while `is_needed`; runs until cancelled."""
        while True:
            if is_needed():
                await self._ensure()
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        await self._handle.close()

    async def _ensure(self) -> None:
        try:
            await self._handle.ensure()
        except GalileoError as error:
            log.warning("no evaluator: %s", error)
