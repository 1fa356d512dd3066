"""Marks of the types of fields and parameters, for the codec of messages between nodes.

The codec is `galileo.wire.messages`; the values that are sent need only these marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias


@dataclass(frozen=True, slots=True)
class AtMost:
    """Bounds the items of a sequence; a longer one is refused before it is decoded."""

    items: int


ATTACHED: Final = "attached"
LongText: TypeAlias = Annotated[str, ATTACHED]
"""A text that may be long, such as a query. It is an attachment, so that heads can be bounded by
the time that it takes to decode them."""
