"""The Python client: blocking and async, with results as Arrow, pandas and RDF."""

from galileo.client.async_client import AsyncClient
from galileo.client.blocking import Client, connect
from galileo.client.blocking_base import BlockingLabelBatches
from galileo.client.descriptions import DatasetDescription, FeatureDescription
from galileo.client.findings import (
    Children,
    Estimate,
    FeatureSummary,
    Neighbours,
    NodeExplanation,
    QueryExplanation,
    Vertex,
)
from galileo.client.many import ManyUpdates
from galileo.client.proof import Proof
from galileo.client.queries import LabelBatches
from galileo.client.results import (
    Caller,
    Ccq,
    CcqInfo,
    ClusterStatus,
    DroppedDataset,
    Labels,
    NodeStatus,
    QueryEnd,
    Receipt,
    RetentionReport,
    RevokedSampler,
    SentSampler,
    Update,
)
from galileo.client.sparql_views import SparqlView
from galileo.client.spool import HeldWindow, Spool, SpooledUpdate
from galileo.client.submitting import Submission, Submitted
from galileo.model.windows import WindowChange

__all__ = [
    "AsyncClient",
    "BlockingLabelBatches",
    "Ccq",
    "CcqInfo",
    "Caller",
    "Children",
    "Client",
    "ClusterStatus",
    "DatasetDescription",
    "Estimate",
    "FeatureDescription",
    "FeatureSummary",
    "HeldWindow",
    "LabelBatches",
    "Labels",
    "ManyUpdates",
    "Neighbours",
    "NodeExplanation",
    "NodeStatus",
    "Proof",
    "DroppedDataset",
    "QueryEnd",
    "QueryExplanation",
    "Receipt",
    "RetentionReport",
    "RevokedSampler",
    "SentSampler",
    "SparqlView",
    "Spool",
    "SpooledUpdate",
    "Submission",
    "Submitted",
    "Update",
    "Vertex",
    "WindowChange",
    "connect",
]
