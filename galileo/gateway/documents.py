"""The documents of OGC API: landing page, conformance, collections, queryables, schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from galileo.client.descriptions import DatasetDescription
from galileo.gateway import crs, edr_documents
from galileo.gateway.formats import MEDIA_TYPES
from galileo.model.schema import Feature, Schema
from galileo.model.times import MICROS
from galileo.rdf.terms import STANDARD_NAME
from galileo.version import VERSION

JSON = "application/json"
HTML = "text/html"
GEOJSON = MEDIA_TYPES["geojson"]
SCHEMA_JSON = "application/schema+json"
OPENAPI_JSON = "application/vnd.oai.openapi+json;version=3.0"
ASYNCAPI_JSON = "application/vnd.aai.asyncapi+json;version=3.0.0"
EVENT_STREAM = "text/event-stream"
SPARQL_RESULTS = "application/sparql-results+json"
REL = "http://www.opengis.net/def/rel/ogc/1.0/"
_SPEC = "http://www.opengis.net/spec/"
CONFORMANCE = (
    *(f"{_SPEC}ogcapi-common-1/1.0/conf/{name}" for name in ("core", "landing-page")),
    *(f"{_SPEC}ogcapi-common-1/1.0/conf/{name}" for name in ("json", "html")),
    f"{_SPEC}ogcapi-common-1/1.0/conf/oas30",
    f"{_SPEC}ogcapi-common-2/1.0/conf/collections",
    *(f"{_SPEC}ogcapi-features-1/1.0/conf/{name}" for name in ("core", "geojson")),
    *(f"{_SPEC}ogcapi-features-1/1.0/conf/{name}" for name in ("html", "oas30")),
    f"{_SPEC}ogcapi-features-2/1.0/conf/crs",
    f"{_SPEC}ogcapi-features-3/1.0/conf/queryables",
    f"{_SPEC}ogcapi-features-3/1.0/conf/filter",
    f"{_SPEC}cql2/1.0/conf/cql2-text",
    f"{_SPEC}cql2/1.0/conf/cql2-json",
    f"{_SPEC}cql2/1.0/conf/basic-cql2",
    f"{_SPEC}cql2/1.0/conf/advanced-comparison-operators",
    f"{_SPEC}cql2/1.0/conf/case-insensitive-comparison",
    f"{_SPEC}cql2/1.0/conf/basic-spatial-functions",
    f"{_SPEC}cql2/1.0/conf/property-property",
    f"{_SPEC}cql2/1.0/conf/arithmetic",
    f"{_SPEC}ogcapi-features-5/1.0/conf/schemas",
    *(f"{_SPEC}ogcapi-tiles-1/1.0/conf/{name}" for name in ("core", "tileset", "tilesets-list")),
    *(f"{_SPEC}ogcapi-tiles-1/1.0/conf/{name}" for name in ("geodata-tilesets", "mvt", "oas30")),
    *(
        f"{_SPEC}ogcapi-edr-1/1.1/conf/{name}"
        for name in ("core", "collections", "json", "geojson", "edr-geojson", "covjson", "oas30")
    ),
    f"{_SPEC}ogcapi-edr-1/1.1/conf/queries",
    f"{_SPEC}ogcapi-edr-2/1.0/conf/pubsub",
)
"""Classes that hold."""

_JSON_TYPES = {
    "float": "number",
    "float32": "number",
    "int": "integer",
    "text": "string",
    "bool": "boolean",
}


def link(rel: str, href: str, media_type: str, title: str = "") -> dict[str, str]:
    made = {"rel": rel, "href": href, "type": media_type}
    return {**made, "title": title} if title else made


def page_link(url: str) -> dict[str, str]:
    """The link of the document at a URL to the page with the same content."""
    return link("alternate", f"{url}{'&' if '?' in url else '?'}f=html", HTML, "this page")


def landing(url: str) -> dict[str, Any]:
    """The landing page of a gateway at a URL."""
    return {
        "title": "Galileo",
        "description": "Observations of a Galileo cluster",
        "version": VERSION,
        "links": [
            link("self", f"{url}/", JSON, "this document"),
            page_link(f"{url}/"),
            link("service-desc", f"{url}/api", OPENAPI_JSON, "the API"),
            link("service-doc", f"{url}/api?f=html", HTML, "the API"),
            link("service-desc", f"{url}/asyncapi", ASYNCAPI_JSON, "the events"),
            link("conformance", f"{url}/conformance", JSON, "conformance classes"),
            link(f"{REL}conformance", f"{url}/conformance", JSON, "conformance classes"),
            link("data", f"{url}/collections", JSON, "the datasets"),
            link(f"{REL}data", f"{url}/collections", JSON, "the datasets"),
            link("related", f"{url}/ccqs", JSON, "continuous queries"),
            link("related", f"{url}/channels", JSON, "channels"),
            link(f"{REL}tiling-schemes", f"{url}/tileMatrixSets", JSON, "tile matrix sets"),
            link("related", f"{url}/cluster", JSON, "nodes of the cluster"),
        ],
    }


def conformance() -> dict[str, Any]:
    return {"conformsTo": list(CONFORMANCE)}


def collections(url: str, described: Iterable[DatasetDescription]) -> dict[str, Any]:
    listed = sorted(described, key=lambda dataset: dataset.schema.name)
    return {
        "links": [
            link("self", f"{url}/collections", JSON, "this document"),
            page_link(f"{url}/collections"),
        ],
        "collections": [collection(url, dataset) for dataset in listed],
    }


def collection(url: str, described: DatasetDescription) -> dict[str, Any]:
    """A dataset."""
    schema = described.schema
    at = collection_url(url, schema)
    items = [
        link("items", f"{at}/items?f={name}", media_type, f"observations as {name}")
        for name, media_type in MEDIA_TYPES.items()
    ]
    return {
        "id": schema.name,
        "title": schema.name,
        "itemType": "feature",
        "crs": [one.uri for one in crs.ALL],
        "storageCrs": crs.CRS84.uri,
        **edr_documents.members(at, described),
        "geohashPrecision": schema.geohash_precision,
        "timeBucket": schema.time_bucket_us / MICROS,
        **_key("key", schema),
        "links": [
            link("self", at, JSON, "this document"),
            page_link(at),
            *items,
            link("items", f"{at}/items?f=html", HTML, "observations as html"),
            link("data", f"{at}/locations", GEOJSON, "places with observations"),
            link(f"{REL}queryables", f"{at}/queryables", SCHEMA_JSON, "properties to filter by"),
            link(f"{REL}tilesets-vector", f"{at}/tiles", JSON, "cells with counts as tiles"),
            link("describedby", f"{at}/schema", SCHEMA_JSON, "the properties of an observation"),
            link(f"{REL}schema", f"{at}/schema", SCHEMA_JSON, "the properties of an observation"),
        ],
    }


def collection_url(url: str, schema: Schema) -> str:
    """The URL of a dataset at the gateway at a URL."""
    return f"{url}/collections/{quote(schema.name)}"


def queryables(url: str, schema: Schema) -> dict[str, Any]:
    """What filters can use, as a JSON Schema."""
    properties = {
        "geometry": {"title": "position", "format": "geometry-point"},
        "datetime": {"title": "time of the observation", "type": "string", "format": "date-time"},
        "geohash": {"title": "geohash of the cell", "type": "string"},
        **{feature.name: _property(feature) for feature in schema.indexed},
    }
    return _json_schema(f"{collection_url(url, schema)}/queryables", schema, properties)


def item_schema(url: str, schema: Schema) -> dict[str, Any]:
    """What an observation has, as a JSON Schema."""
    properties = {
        "geometry": {"x-ogc-role": "primary-geometry", "format": "geometry-point"},
        "time": {"x-ogc-role": "primary-instant", "type": "string", "format": "date-time"},
        **{feature.name: _property(feature) for feature in schema.features},
    }
    document = _json_schema(f"{collection_url(url, schema)}/schema", schema, properties)
    return {**document, "required": ["geometry", "time"], **_key("x-galileo-key", schema)}


def _key(member: str, schema: Schema) -> dict[str, list[str]]:
    """The member with the features of the key of a keyed dataset."""
    return {member: list(schema.key_features)} if schema.is_keyed else {}


def _json_schema(url: str, schema: Schema, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": url,
        "type": "object",
        "title": schema.name,
        "properties": properties,
        "additionalProperties": False,
    }


def _property(feature: Feature) -> dict[str, Any]:
    return {"title": feature.name, "type": _JSON_TYPES[feature.type], **described(feature)}


def described(feature: Feature) -> dict[str, Any]:
    """What describes a feature, as members of its JSON Schema."""
    flags = {str(value): meaning for value, meaning in feature.flags.items()}
    members = {
        "description": feature.description,
        "x-ogc-unit": feature.unit,
        "x-ogc-definition": STANDARD_NAME + feature.standard_name if feature.standard_name else "",
        "x-galileo-flags": flags,
    }
    return {name: member for name, member in members.items() if member}
