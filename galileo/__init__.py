"""Galileo: a store for geospatial time series with continuous queries.

The public names load on first use, so that importing the package costs nothing in the
processes (nodes, Spark's Python workers, the command line) that need only a part of it.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from galileo.version import VERSION

if TYPE_CHECKING:
    from galileo.client import AsyncClient as AsyncClient
    from galileo.client import Ccq as Ccq
    from galileo.client import Client as Client
    from galileo.client import Labels as Labels
    from galileo.client import Receipt as Receipt
    from galileo.client import Spool as Spool
    from galileo.client import Update as Update
    from galileo.client import connect as connect
    from galileo.client.geo_files import to_geojson as to_geojson
    from galileo.client.geo_files import to_geopandas as to_geopandas
    from galileo.client.geo_files import write_geojson as write_geojson
    from galileo.client.geo_files import write_geoparquet as write_geoparquet
    from galileo.client.grids import to_xarray as to_xarray
    from galileo.client.tree_view import TreeView as TreeView
    from galileo.cluster import LocalCluster as LocalCluster
    from galileo.errors import GalileoError as GalileoError
    from galileo.errors import GalileoWarning as GalileoWarning
    from galileo.formats.csv_options import CsvOptions as CsvOptions
    from galileo.formats.grid_options import GridOptions as GridOptions
    from galileo.model.broker import Broker as Broker
    from galileo.model.broker import Into as Into
    from galileo.model.broker import Kafka as Kafka
    from galileo.model.broker import Mqtt as Mqtt
    from galileo.model.broker import Webhook as Webhook
    from galileo.model.channel import Channel as Channel
    from galileo.model.enrichment import Lookup as Lookup
    from galileo.model.enrichment import Near as Near
    from galileo.model.enrichment import Nearest as Nearest
    from galileo.model.enrichment import Within as Within
    from galileo.model.grouping import cell as cell
    from galileo.model.grouping import window as window
    from galileo.model.retention import Retention as Retention
    from galileo.model.schema import Feature as Feature
    from galileo.model.schema import Schema as Schema
    from galileo.model.table import Table as Table
    from galileo.model.windows import Window as Window
    from galileo.query.builder import Condition as Condition
    from galileo.query.builder import during as during
    from galileo.query.builder import f as f
    from galileo.query.builder import geohash as geohash
    from galileo.query.builder import near as near
    from galileo.query.builder import within as within
    from galileo.query.template import Template as Template
    from galileo.sampler_package import SamplerArchive as SamplerArchive
    from galileo.sampler_package import sampler_archive as sampler_archive
    from galileo.samplers import SamplerSpec as SamplerSpec
    from galileo.samplers import sampler as sampler

__version__ = VERSION

# gRPC reads it when it is imported; `galileo.wire.forks` says why.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_HOMES = {
    "AsyncClient": "galileo.client",
    "Ccq": "galileo.client",
    "Client": "galileo.client",
    "Labels": "galileo.client",
    "Receipt": "galileo.client",
    "Spool": "galileo.client",
    "Update": "galileo.client",
    "connect": "galileo.client",
    **dict.fromkeys(
        ("to_geojson", "to_geopandas", "write_geojson", "write_geoparquet"),
        "galileo.client.geo_files",
    ),
    "to_xarray": "galileo.client.grids",
    "TreeView": "galileo.client.tree_view",
    "LocalCluster": "galileo.cluster",
    **dict.fromkeys(("GalileoError", "GalileoWarning"), "galileo.errors"),
    "CsvOptions": "galileo.formats.csv_options",
    "GridOptions": "galileo.formats.grid_options",
    **dict.fromkeys(("Broker", "Into", "Kafka", "Mqtt", "Webhook"), "galileo.model.broker"),
    "Channel": "galileo.model.channel",
    **dict.fromkeys(("Lookup", "Near", "Nearest", "Within"), "galileo.model.enrichment"),
    **dict.fromkeys(("cell", "window"), "galileo.model.grouping"),
    "Retention": "galileo.model.retention",
    "Feature": "galileo.model.schema",
    "Schema": "galileo.model.schema",
    "Table": "galileo.model.table",
    "Window": "galileo.model.windows",
    **dict.fromkeys(
        ("Condition", "during", "f", "geohash", "near", "within"), "galileo.query.builder"
    ),
    "Template": "galileo.query.template",
    **dict.fromkeys(("SamplerArchive", "sampler_archive"), "galileo.sampler_package"),
    "SamplerSpec": "galileo.samplers",
    "sampler": "galileo.samplers",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'galileo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
