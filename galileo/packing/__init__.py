"""Columns of labels in few bytes: how caches keep them, and how they cross the wire."""

from galileo.packing.tables import FORMAT_VERSION, ROWS_MAX, pack, unpack

__all__ = ["FORMAT_VERSION", "ROWS_MAX", "pack", "unpack"]
