"""The map page and its files, which lie in the package and hold nothing of a cluster.

The page is the same for all callers, so it needs no token. Its address, `/map`, is asked again each
time; its files are below a path that has a digest of them all, so that browsers keep them for good
and never mix files of two versions.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from galileo.gateway.formats import Encoders
from galileo.gateway.json_answers import takes_gzip
from galileo.gateway.problems import problem

MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
}
"""Of files, by the end of their names; others are not served."""
PAGE = "index.html"
"""The page: a template, which links all modules, so that browsers load them at once."""
SCRIPTS = ("vendor/ol.js",)
"""Those that are no modules."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: its own files and answers of its own gateway."""
GZIP_LEVEL = 7
"""Level 9 makes the first page after a start wait 250 ms longer, for 0.5 % fewer bytes."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page.

    Attributes:
        media_type: of its content.
        content: its bytes.
        compressed: the same, compressed by gzip.
        etag: of its content.
    """

    media_type: str
    content: bytes
    compressed: bytes
    etag: str


class MapPage:
    """Answers requests for the page; belongs to one event loop.

    Args:
        encoders: of the gateway, which compress the files once, when the first one is asked for.
    """

    def __init__(self, encoders: Encoders) -> None:
        self._encoders = encoders
        self._files: dict[str, PageFile] = {}
        self.routes = [
            Route("/map", self._page),
            Route("/web/{version}/{file:path}", self._file),
        ]

    async def _page(self, request: Request) -> Response:
        request.scope["galileo_route"] = "map"
        file = (await self._loaded())[PAGE]
        # A browser asks again whether it is the newest, and has 304 if so.
        return _answer(request, file, "no-cache", **{"Content-Security-Policy": POLICY})

    async def _file(self, request: Request) -> Response:
        request.scope["galileo_route"] = "web"
        loaded = await self._loaded()
        version, name = request.path_params["version"], request.path_params["file"]
        if version != digest() or name not in loaded or name == PAGE:
            text = f"there is no {request.url.path} in this version of the page; reload /map"
            return problem(HTTPStatus.NOT_FOUND, text)
        return _answer(request, loaded[name], "public, max-age=31536000, immutable")

    async def _loaded(self) -> dict[str, PageFile]:
        if not self._files:
            self._files = await self._encoders.run(page_files)
        return self._files


def page_files() -> dict[str, PageFile]:
    """The files of the page, by their paths below `/web/VERSION`."""
    return {name: _file_of(name, content) for name, content in _contents().items()}


@functools.cache
def digest() -> str:
    """A digest of all files."""
    whole = hashlib.sha256()
    for name, content in sorted(_raw_contents().items()):
        whole.update(f"{name} {len(content)}\n".encode() + content)
    return whole.hexdigest()[:16]


def _contents() -> dict[str, bytes]:
    raw = _raw_contents()
    modules = sorted(name for name in raw if name.endswith(".js") and name not in SCRIPTS)
    page = Environment(autoescape=True, trim_blocks=True).from_string(raw[PAGE].decode())
    return {**raw, PAGE: page.render(modules=modules, version=digest()).encode()}


def _raw_contents() -> dict[str, bytes]:
    return dict(_walk(files("galileo.gateway") / "web", ""))


def _walk(directory: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in directory.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in MEDIA_TYPES:
            found.append((f"{prefix}{entry.name}", entry.read_bytes()))
    return found


def _file_of(name: str, content: bytes) -> PageFile:
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]
    compressed = gzip.compress(content, GZIP_LEVEL, mtime=0)
    return PageFile(media_type, content, compressed, hashlib.sha256(content).hexdigest()[:32])


def _answer(request: Request, file: PageFile, caching: str, **more: str) -> Response:
    is_gzip = takes_gzip(request)
    # The two encodings of a file are two representations.
    etag = f'"{file.etag}-gzip"' if is_gzip else f'"{file.etag}"'
    headers: dict[str, Any] = {
        **more,
        "Cache-Control": caching,
        "ETag": etag,
        "Vary": "Accept-Encoding",
    }
    if etag in request.headers.get("if-none-match", "").replace("W/", "").split(", "):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if is_gzip:
        headers["Content-Encoding"] = "gzip"
    body = file.compressed if is_gzip else file.content
    return Response(body, headers=headers, media_type=file.media_type)
