"""A change of records of continuous queries that no node makes: it puts any record in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from galileo.ccq.model import Record


@dataclass(frozen=True)
class SetRecord:
    """Puts a record in place whatever it says."""

    name: str
    data: str

    def begun(self, present: Record) -> SetRecord:
        return self

    def apply(self, draft: Any) -> None:
        draft.put(self.name, draft.kind.value(self.data))
