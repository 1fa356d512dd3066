"""The Python client: blocking and async, with results as Arrow, pandas and RDF."""

from galileo.client.async_client import AsyncClient
from galileo.client.blocking import BlockingLabelBatches, Client, connect
from galileo.client.findings import (
    Children,
    Estimate,
    FeatureSummary,
    Neighbours,
    NodeExplanation,
    QueryExplanation,
    Vertex,
)
from galileo.client.queries import LabelBatches
from galileo.client.results import (
    Ccq,
    CcqInfo,
    ClusterStatus,
    Labels,
    NodeStatus,
    QueryEnd,
    Receipt,
    RetentionReport,
    Update,
)
from galileo.client.spool import HeldWindow, Spool, SpooledUpdate
from galileo.model.windows import WindowChange

__all__ = [
    "AsyncClient",
    "BlockingLabelBatches",
    "Ccq",
    "CcqInfo",
    "Children",
    "Client",
    "ClusterStatus",
    "Estimate",
    "FeatureSummary",
    "HeldWindow",
    "LabelBatches",
    "Labels",
    "Neighbours",
    "NodeExplanation",
    "NodeStatus",
    "QueryEnd",
    "QueryExplanation",
    "Receipt",
    "RetentionReport",
    "Spool",
    "SpooledUpdate",
    "Update",
    "Vertex",
    "WindowChange",
    "connect",
]
