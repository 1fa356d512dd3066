"""The Python client: blocking and async, with results as Arrow, pandas and RDF."""

from galileo.client.async_client import AsyncClient
from galileo.client.blocking import Client, connect
from galileo.client.results import Ccq, CcqInfo, ClusterStatus, Labels, NodeStatus, Receipt, Update
from galileo.client.spool import Spool, SpooledUpdate

__all__ = [
    "AsyncClient",
    "Ccq",
    "CcqInfo",
    "Client",
    "ClusterStatus",
    "Labels",
    "NodeStatus",
    "Receipt",
    "Spool",
    "SpooledUpdate",
    "Update",
    "connect",
]
