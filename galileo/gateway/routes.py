"""The table of routes, which the application and the OpenAPI document are made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from galileo.gateway import crs, edr_requests, parameters
from galileo.gateway.crs import CRS84, Crs
from galileo.gateway.documents import (
    ASYNCAPI_JSON,
    EVENT_STREAM,
    GEOJSON,
    HTML,
    JSON,
    OPENAPI_JSON,
    SCHEMA_JSON,
    SPARQL_RESULTS,
)
from galileo.gateway.formats import GROUP_FORMATS, LATEST_FORMATS, MEDIA_TYPES
from galileo.gateway.ingestion import REQUEST_TYPES
from galileo.gateway.rights import PUBLIC, Right
from galileo.gateway.subscription_bodies import FORMATS as SUBSCRIPTION_TYPES
from galileo.gateway.updates import LABEL_FORMATS
from galileo.gateway.vector_tiles import MEDIA_TYPE as MVT
from galileo.model.channel import SUBSCRIPTIONS

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
"""Answers the requests of a route."""


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """One path.

    Attributes:
        name: of the operation, and of the method that answers, of a `RouteGroup`.
        path: with parameters in braces.
        summary: what it answers.
        parameters: names in `parameters.TABLE`, besides those of the path.
        media_types: of the answer.
        methods: that it takes.
        more_parameters: whether it has further parameters, named as the features of the dataset.
        request_types: media types of the body of methods that have one.
        body_parameters: names in `parameters.TABLE` of methods that have one.
        delete_parameters: names in `parameters.TABLE` of DELETE.
        body_answers: media types of answers to methods other than GET, where these are others.
        body_systems: coordinate reference systems that positions in bodies can have.
        statuses: of success, where there are others than 200: pairs of method and status.
    """

    name: str
    path: str
    summary: str
    parameters: tuple[str, ...] = ()
    media_types: tuple[str, ...] = (JSON, HTML)
    methods: tuple[str, ...] = ("GET",)
    more_parameters: bool = False
    request_types: tuple[str, ...] = ()
    statuses: tuple[tuple[str, int], ...] = ()
    body_parameters: tuple[str, ...] = ()
    delete_parameters: tuple[str, ...] = ()
    body_answers: tuple[str, ...] = ()
    body_systems: tuple[Crs, ...] = (CRS84,)

    def parameters_of(self, method: str) -> tuple[str, ...]:
        """Names in `parameters.TABLE` of a method, besides those of the path."""
        if method in ("GET", "HEAD"):
            return self.parameters
        return self.delete_parameters if method == "DELETE" else self.body_parameters


_CCQ = "/ccqs/{ccqId}"
_CHANNEL = "/channels/{channelId}"
_BROKER = f"{_CHANNEL}/brokers/{{brokerId}}"
_COLLECTION = "/collections/{collectionId}"
_TILESET = f"{_COLLECTION}/tiles/{{tileMatrixSetId}}"
_ITEM_TYPES = tuple(dict.fromkeys(name.partition(";")[0] for name in MEDIA_TYPES.values()))

ROUTES = (
    RouteInfo("landing", "/", "The landing page", ("f",)),
    RouteInfo("conformance", "/conformance", "Conformance classes of OGC API", ("f",)),
    RouteInfo("api", "/api", "This description of the API", ("f",), (OPENAPI_JSON, HTML)),
    RouteInfo("collections", "/collections", "The datasets", ("f",)),
    RouteInfo("collection", _COLLECTION, "A dataset", ("f",)),
    RouteInfo(
        "queryables",
        f"{_COLLECTION}/queryables",
        "Properties that filters can use",
        ("f",),
        (SCHEMA_JSON, HTML),
    ),
    RouteInfo(
        "schema",
        f"{_COLLECTION}/schema",
        "Properties of an observation",
        ("f",),
        (SCHEMA_JSON, HTML),
    ),
    RouteInfo(
        "items",
        f"{_COLLECTION}/items",
        "Observations; POST stores some, DELETE deletes those that match a filter",
        parameters.ITEMS,
        (*_ITEM_TYPES, HTML),
        ("GET", "POST", "DELETE"),
        more_parameters=True,
        request_types=tuple(REQUEST_TYPES),
        statuses=(("POST", 201),),
        body_parameters=("Idempotency-Key", "Content-Crs", "If-Match"),
        delete_parameters=parameters.DELETED_ITEMS,
        body_answers=(JSON,),
        body_systems=crs.ALL,
    ),
    RouteInfo(
        "item",
        f"{_COLLECTION}/items/{{featureId}}",
        "An observation; DELETE deletes it from a keyed dataset",
        ("f", "crs"),
        (GEOJSON, HTML),
        ("GET", "DELETE"),
        statuses=(("DELETE", 204),),
        delete_parameters=("If-Match",),
    ),
    *(
        RouteInfo(
            kind,
            f"{_COLLECTION}/{kind}",
            f"Observations by {kind}",
            edr_requests.PARAMETERS[kind],
            (edr_requests.FORMATS[edr_requests.COVERAGE_JSON], *_ITEM_TYPES),
        )
        for kind in edr_requests.QUERIES
    ),
    RouteInfo(
        "locations",
        f"{_COLLECTION}/locations",
        "Locations with observations",
        ("bbox", "datetime", "parameter-name", "f"),
        (GEOJSON,),
    ),
    RouteInfo(
        "location",
        f"{_COLLECTION}/locations/{{locationId}}",
        "Observations of a location",
        edr_requests.PARAMETERS["location"],
        (edr_requests.FORMATS[edr_requests.COVERAGE_JSON], *_ITEM_TYPES),
    ),
    RouteInfo(
        "sparql",
        f"{_COLLECTION}/sparql",
        "A SPARQL query of the labels that match a filter",
        ("query", "filter", "filter-lang"),
        (SPARQL_RESULTS, "text/turtle"),
        ("GET", "POST"),
        request_types=("application/x-www-form-urlencoded", "application/sparql-query"),
    ),
    RouteInfo(
        "cells",
        f"{_COLLECTION}/cells",
        "Counts and statistics of observations by geohash cell",
        parameters.CELLS,
        tuple(GROUP_FORMATS.values()),
        more_parameters=True,
    ),
    RouteInfo(
        "series",
        f"{_COLLECTION}/series",
        "Counts and statistics of observations by time",
        parameters.SERIES,
        tuple(GROUP_FORMATS.values()),
        more_parameters=True,
    ),
    RouteInfo(
        "latest",
        f"{_COLLECTION}/latest",
        "The newest observation of each cell, or of each value of a feature",
        parameters.LATEST,
        tuple(LATEST_FORMATS.values()),
        more_parameters=True,
    ),
    RouteInfo(
        "summary",
        f"{_COLLECTION}/summary",
        "What a dataset holds, or statistics of a feature",
        parameters.SUMMARY,
        more_parameters=True,
    ),
    RouteInfo(
        "estimate",
        f"{_COLLECTION}/estimate",
        "Bounds on the number of matching labels",
        parameters.ESTIMATE,
        more_parameters=True,
    ),
    RouteInfo(
        "explain",
        f"{_COLLECTION}/explain",
        "How a query is answered",
        parameters.EXPLAIN,
        more_parameters=True,
    ),
    RouteInfo("tile_matrix_sets", "/tileMatrixSets", "The tile matrix sets", ("f",)),
    RouteInfo(
        "tile_matrix_set",
        "/tileMatrixSets/{tileMatrixSetId}",
        "A tile matrix set",
        ("f",),
    ),
    RouteInfo("tilesets", f"{_COLLECTION}/tiles", "The tile sets of a dataset", ("f",)),
    RouteInfo("tileset", _TILESET, "A tile set of a dataset", ("f",)),
    RouteInfo(
        "tile",
        f"{_TILESET}/{{tileMatrix}}/{{tileRow}}/{{tileCol}}",
        "A vector tile of geohash cells with counts and statistics",
        parameters.TILE,
        (MVT,),
        more_parameters=True,
    ),
    RouteInfo(
        "ccqs",
        "/ccqs",
        "Continuous queries",
        ("f",),
        methods=("GET", "POST"),
        request_types=(JSON,),
        statuses=(("POST", 201),),
        body_answers=(JSON,),
    ),
    RouteInfo(
        "ccq",
        _CCQ,
        "A continuous query",
        ("f",),
        methods=("GET", "DELETE"),
        statuses=(("DELETE", 204),),
    ),
    RouteInfo(
        "ccq_labels",
        f"{_CCQ}/labels",
        "New labels of a continuous query",
        parameters.CCQ_LABELS,
        tuple(LABEL_FORMATS.values()),
    ),
    RouteInfo(
        "ccq_events",
        f"{_CCQ}/events",
        "New labels of a continuous query as server-sent events",
        parameters.CCQ_EVENTS,
        (EVENT_STREAM,),
    ),
    RouteInfo(
        "events",
        "/events",
        "New labels of several continuous queries as server-sent events",
        media_types=(EVENT_STREAM,),
        methods=("POST",),
        request_types=(JSON,),
    ),
    RouteInfo("channels", "/channels", "Channels: queries with subscriptions", ("f",)),
    RouteInfo(
        "channel",
        _CHANNEL,
        "A channel",
        ("f",),
        methods=("GET", "PUT", "DELETE"),
        request_types=(JSON,),
        statuses=(("PUT", 201), ("PUT", 200), ("DELETE", 204)),
        body_answers=(JSON,),
    ),
    RouteInfo(
        "subscriptions",
        f"{_CHANNEL}/subscriptions",
        "Stores subscriptions of a channel",
        media_types=(JSON,),
        methods=("POST",),
        request_types=tuple(SUBSCRIPTION_TYPES),
        statuses=(("POST", 201),),
        body_parameters=("Idempotency-Key",),
    ),
    RouteInfo(
        "subscription",
        f"{_CHANNEL}/subscriptions/{{subscriptionId}}",
        "A subscription of a channel",
        ("f",),
        (JSON,),
        ("GET", "DELETE"),
        statuses=(("DELETE", 204),),
    ),
    RouteInfo(
        "notifications",
        f"{_BROKER}/notifications",
        "New notifications of a broker",
        parameters.NOTIFICATIONS,
        (JSON,),
    ),
    RouteInfo(
        "notification_events",
        f"{_BROKER}/events",
        "New notifications of a broker as server-sent events",
        parameters.NOTIFICATION_EVENTS,
        (EVENT_STREAM,),
    ),
    RouteInfo(
        "broker_position",
        f"{_BROKER}/position",
        "The token of the last notifications that a broker has handled",
        ("f",),
        (JSON,),
        ("GET", "PUT"),
        request_types=(JSON,),
        statuses=(("PUT", 204),),
    ),
    RouteInfo(
        "asyncapi", "/asyncapi", "A description of the events", ("f",), (ASYNCAPI_JSON, HTML)
    ),
    RouteInfo("cluster", "/cluster", "Nodes, partitions and coordinators", ("f",)),
    RouteInfo("whoami", "/whoami", "The caller, its roles and quotas", ("f",)),
    RouteInfo("samplers", "/samplers", "Samplers, installed and uploaded", ("f",)),
)


_SUBSCRIPTIONS = f"{{channelId}}{SUBSCRIPTIONS}"
_ANALYSE, _SELECT, _READ, _QUERY = (
    Right(call, "{collectionId}")
    for call in (
        "Analytics/Analyse",
        "Storage/Select",
        "Storage/Read",
        "Query/Run",
    )
)
_INGEST = Right("Storage/Ingest", "{collectionId}")
_FOLLOW = Right("Channels/Follow", "{channelId}", "{brokerId}")
LIST_CCQS, _READ_CCQ = Right("Continuous/List"), Right("Continuous/Watch")
RIGHTS: Mapping[str, tuple[Right, ...]] = {
    **dict.fromkeys(("collection", "queryables", "schema", "summary"), (_ANALYSE,)),
    **dict.fromkeys(("tilesets", "tileset", "explain", "latest"), (_ANALYSE,)),
    **dict.fromkeys((*edr_requests.QUERIES, "location"), (_SELECT,)),
    **dict.fromkeys(("locations", "cells", "series", "tile"), (_ANALYSE,)),
    "estimate": (Right("Analytics/Estimate", "{collectionId}"),),
    "items": (_SELECT, _INGEST, _INGEST),
    "item": (_READ, _INGEST),
    "sparql": (_QUERY, _QUERY),
    **dict.fromkeys(("landing", "conformance", "api", "asyncapi"), (PUBLIC,)),
    **dict.fromkeys(("tile_matrix_sets", "tile_matrix_set"), (PUBLIC,)),
    **dict.fromkeys(("collections", "channels"), (Right("Cluster/ListDatasets"),)),
    **dict.fromkeys(("cluster", "whoami"), (Right("Cluster/Status"),)),
    **dict.fromkeys(("ccq_labels", "ccq_events", "events"), (_READ_CCQ,)),
    **dict.fromkeys(("notifications", "notification_events"), (_FOLLOW,)),
    "ccqs": (LIST_CCQS, Right("Continuous/Submit")),
    "ccq": (LIST_CCQS, Right("Continuous/Cancel")),
    "channel": (
        Right("Channels/DescribeChannel", "{channelId}"),
        Right("Cluster/CreateDataset", "{channelId}"),
        Right("Cluster/DropDataset", "{channelId}"),
    ),
    "subscriptions": (Right("Storage/Ingest", _SUBSCRIPTIONS),),
    "subscription": (
        Right("Storage/ReadTable", _SUBSCRIPTIONS),
        Right("Storage/Ingest", _SUBSCRIPTIONS),
    ),
    "broker_position": (
        Right("Storage/ReadTable", "{channelId}", "{brokerId}"),
        Right("Storage/Ingest", "{channelId}", "{brokerId}"),
    ),
    "samplers": (Right("Samplers/List"),),
}
"""What each route needs, by its name: one right for each of its methods, in their order."""
for _route in ROUTES:
    assert len(RIGHTS.get(_route.name, ())) == len(_route.methods), f"the rights of {_route.name}"


def right_of(route: RouteInfo, method: str) -> Right:
    """What a method of a route needs; HEAD needs what GET does."""
    return RIGHTS[route.name][route.methods.index("GET" if method == "HEAD" else method)]


def path_parameters(route: RouteInfo) -> Mapping[str, str]:
    """The names of parameters in the path of a route."""
    return {name: name for name in parameters.TABLE if f"{{{name}}}" in route.path}
