"""The map page: what the gateway serves of it, without a cluster and without a browser."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import vendored_files

from galileo.gateway import page
from galileo.gateway.app import Gateway
from galileo.gateway.options import GatewayOptions


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    made = Gateway(GatewayOptions(nodes=("127.0.0.1:1",)))
    yield made
    await made.close()


async def get(
    gateway: Gateway, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer; there is no node that could make it."""
    given = {"host": "127.0.0.1", **{name.replace("_", "-"): at for name, at in headers.items()}}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "query_string": b"",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    messages: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    await gateway.app(scope, receive, send)
    pairs = [(name.decode(), value.decode()) for name, value in messages[0]["headers"]]
    assert len(pairs) == len(dict(pairs)), f"a header twice: {pairs}"
    body = b"".join(message.get("body", b"") for message in messages[1:])
    return messages[0]["status"], dict(pairs), body


def addresses(html: str) -> list[str]:
    return re.findall(r'(?:href|src)="(web/[^"]+)"', html)


async def test_map_is_html_that_loads_files_of_its_own_version_only(gateway: Gateway) -> None:
    status, headers, body = await get(gateway, "/map")
    html = body.decode()
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert "://" not in html
    assert "VERSION" not in html
    assert len(addresses(html)) >= 4
    for address in addresses(html):
        status, headers, _ = await get(gateway, f"/{address}")
        assert (status, address) == (200, address)
        assert headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_policy_of_the_page_allows_its_own_origin_alone(gateway: Gateway) -> None:
    _, headers, _ = await get(gateway, "/map")
    directives = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert directives["default-src"] == "'none'"
    assert set(directives.values()) == {"'none'", "'self'"}
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    # Answers of the API keep theirs.
    _, headers, _ = await get(gateway, "/conformance")
    assert headers["content-security-policy"] == "default-src 'self'; frame-ancestors 'none'"
    assert headers["cache-control"] == "no-store"


async def test_files_are_compressed_for_those_who_take_that(gateway: Gateway) -> None:
    path = f"/web/{page.digest()}/vendor/ol.js"
    _, plain_headers, plain = await get(gateway, path)
    _, headers, compressed = await get(gateway, path, accept_encoding="gzip, br")
    assert "content-encoding" not in plain_headers
    assert headers["content-encoding"] == "gzip"
    assert headers["vary"] == "Accept-Encoding"
    assert headers["content-type"] == "text/javascript; charset=utf-8"
    assert gzip.decompress(compressed) == plain
    assert headers["etag"] != plain_headers["etag"]


@pytest.mark.parametrize(
    ("accepted", "is_taken"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("br", False),
    ],
)
async def test_documents_are_compressed_for_those_who_take_that(
    gateway: Gateway, accepted: str, is_taken: bool
) -> None:
    _, plain_headers, plain = await get(gateway, "/api")
    status, headers, body = await get(gateway, "/api", accept_encoding=accepted)
    assert ("content-encoding" in headers, len(body) < len(plain)) == (is_taken, is_taken)
    assert (gzip.decompress(body) if is_taken else body) == plain
    assert (status, headers["content-length"]) == (200, str(len(body)))
    for name in ("content-type", "vary"):
        assert headers[name] == plain_headers[name]
    assert headers["vary"] == "Accept, Accept-Encoding"


async def test_small_documents_are_not_compressed(gateway: Gateway) -> None:
    _, headers, body = await get(gateway, "/tileMatrixSets", accept_encoding="gzip")
    assert json.loads(body)["tileMatrixSets"]
    assert "content-encoding" not in headers
    assert headers["vary"] == "Accept"


async def test_page_unchanged_gets_304(gateway: Gateway) -> None:
    _, headers, _ = await get(gateway, "/map", accept_encoding="gzip")
    etag = headers["etag"]
    status, headers, body = await get(
        gateway, "/map", accept_encoding="gzip", if_none_match=f'"other", W/{etag}'
    )
    assert (status, headers["etag"], body) == (304, etag, b"")
    assert (await get(gateway, "/map", if_none_match=etag))[0] == 200, "another encoding"


@pytest.mark.parametrize(
    "path",
    [
        "/web/0123456789abcdef/app.js",
        "/web/{digest}/absent.js",
        "/web/{digest}/index.html",
        "/web/{digest}/../page.py",
        "/web/{digest}/vendor/VENDOR.toml",
    ],
)
async def test_other_paths_have_nothing(gateway: Gateway, path: str) -> None:
    status, headers, _ = await get(gateway, path.replace("{digest}", page.digest()))
    assert (status, headers["content-type"]) == (404, "application/problem+json")


def test_modules_import_files_that_exist() -> None:
    files = page.page_files()
    imports = {
        (name, target)
        for name, file in files.items()
        if name.endswith(".js") and not name.startswith("vendor/")
        for target in re.findall(r'from "\./([^"]+)"', file.content.decode())
    }
    assert len(imports) > 20
    assert {target for _, target in imports} <= set(files)
    loaded = {target for _, target in imports} | {
        address.split("/", 2)[2] for address in addresses(files[page.PAGE].content.decode())
    }
    data = {"vendor/countries-50m.json", "vendor/states-10m.json"}
    assert set(files) - {page.PAGE} == loaded | data, "each file is used"


def test_page_is_small_on_the_wire() -> None:
    assert sum(len(file.compressed) for file in page.page_files().values()) < 700_000


def test_libraries_are_as_npm_has_them() -> None:
    assert list(vendored_files.problems()) == []
    assert {package["licence"] for package in vendored_files.packages()} <= {
        "Apache-2.0",
        "BSD-2-Clause",
        "ISC",
        "MIT",
    }
