"""One node process: storage, continuous queries and their network, joined."""

from galileo.server.deferred_pandas import defer_pandas

defer_pandas()  # Modules of a node make arrays when they are imported.
