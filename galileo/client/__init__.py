"""The Python client: blocking and async, with results as Arrow, pandas and RDF."""

from galileo.client.analytics_results import (
    Aggregates,
    Children,
    DatasetVersion,
    Estimate,
    FeatureSummary,
    LatestResult,
    NearestResult,
    NodeExplanation,
    QueryExplanation,
    Vertex,
)
from galileo.client.async_client import AsyncClient
from galileo.client.blocking import Client, connect
from galileo.client.blocking_base import BlockingLabelBatches
from galileo.client.descriptions import DatasetDescription, FeatureDescription
from galileo.client.pages import Page
from galileo.client.profiles import Credentials
from galileo.client.queries import LabelBatches
from galileo.client.results import (
    CallerIdentity,
    Ccq,
    CcqInfo,
    ChannelPartition,
    ClusterStatus,
    DroppedDataset,
    Labels,
    MoveProgress,
    NodeStatus,
    Notifications,
    QueryEnd,
    Receipt,
    RetentionReport,
    RevokedSampler,
    TableRows,
    Update,
    UploadedSampler,
)
from galileo.client.sparql_views import SparqlView
from galileo.client.spool import Spool, SpooledUpdate, SpooledWindow
from galileo.formats import Choice
from galileo.model.versions import PartitionVersion
from galileo.model.windows import WindowChange

__all__ = [
    "Aggregates",
    "AsyncClient",
    "BlockingLabelBatches",
    "Ccq",
    "CcqInfo",
    "CallerIdentity",
    "ChannelPartition",
    "Children",
    "Choice",
    "Client",
    "ClusterStatus",
    "DatasetDescription",
    "DatasetVersion",
    "Estimate",
    "FeatureDescription",
    "FeatureSummary",
    "SpooledWindow",
    "LabelBatches",
    "Labels",
    "LatestResult",
    "MoveProgress",
    "NearestResult",
    "Page",
    "NodeExplanation",
    "NodeStatus",
    "Notifications",
    "Credentials",
    "DroppedDataset",
    "PartitionVersion",
    "QueryEnd",
    "QueryExplanation",
    "Receipt",
    "RetentionReport",
    "RevokedSampler",
    "TableRows",
    "UploadedSampler",
    "SparqlView",
    "Spool",
    "SpooledUpdate",
    "Update",
    "Vertex",
    "WindowChange",
    "connect",
]
