"""The client of the evaluator of a node's host: starts it early, and keeps it while in use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from galileo.config import Config
from galileo.cycle import CycleRequest
from galileo.errors import GalileoError
from galileo.spark.calls import JobAnswer
from galileo.spark.launcher import EvaluatorClient
from galileo.spark.options import EvaluatorOptions

LOOK_S = 5.0
STARTS_SLOWLY_S = 20.0
"""A start of the evaluator that takes longer is a problem; about twice that of a quiet machine."""

log = logging.getLogger(__name__)


def evaluator_options(config: Config) -> EvaluatorOptions:
    """The options of the evaluator of a node's host."""
    section = config.evaluator
    return EvaluatorOptions(
        runtime_dir=config.evaluator_directory,
        spark=config.spark,
        idle_timeout_s=section.idle_timeout_s,
        keys=config.keys,
        tracing=config.tracing,
        log_format=config.logging.format,
        log_level=config.logging.level,
    )


class Evaluation:
    """Starts the evaluator on demand, and renews its lease while this node coordinates CCQs.

    Raises:
        ConfigError: the secret of the Spark cluster cannot be read.
    """

    def __init__(self, config: Config) -> None:
        config.spark.read_secret()
        self._failure = ""
        self._is_needed = False
        self._timeout_s = config.evaluator.cycle_timeout_s
        self._handle = EvaluatorClient(evaluator_options(config))
        self._warming: asyncio.Task[None] | None = None

    @property
    def problem(self) -> str:
        """Why nothing is evaluated at present; "" if it is, or nothing needs to be."""
        if self._failure or not self._is_needed:
            return self._failure
        if self._handle.missing_s < STARTS_SLOWLY_S:
            return ""
        return (
            f"the evaluator has been starting for {self._handle.missing_s:.0f} s; it wrote last: "
            f"{self._handle.last_line}"
        )

    def warm(self) -> None:
        """Starts the evaluator in the background, before the first cycle."""
        if self._warming is None or self._warming.done():
            self._warming = asyncio.get_running_loop().create_task(self._ensure())

    async def evaluate(self, requests: Sequence[CycleRequest]) -> JobAnswer:
        """Runs one Spark job over all items.

        Raises:
            TransientError: there is no evaluator, or it timed out; nothing is lost.
        """
        try:
            answer = await self._handle.evaluate(requests, timeout_s=self._timeout_s)
        except GalileoError as error:
            self._failure = error.message
            raise
        self._failure = ""
        return answer

    async def keep(self, is_needed: Callable[[], bool]) -> None:
        """Renews the lease of the evaluator while `is_needed`; runs until cancelled."""
        while True:
            self._is_needed = is_needed()
            if self._is_needed:
                await self._ensure()
            else:
                self._failure = ""
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        await self._handle.close()

    async def _ensure(self) -> None:
        try:
            await self._handle.ensure()
            self._failure = ""
        except GalileoError as error:
            self._failure = error.message
            log.warning("no evaluator: %s", error)
