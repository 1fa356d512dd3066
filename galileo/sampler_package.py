"""Samplers as they are sent: an archive of Python code that is checked and never extracted.

An archive is a zip with a manifest that names one sampler class and the SHA-256 of every member.
Whatever zip came in, what is stored, sent on and run is the *canonical* one that is written here
anew from the members that were read: uncompressed, in the order of their names, without dates,
comments or gaps. So two readers of zips cannot see two contents in it, and equal contents have
equal digests.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import re
import stat
import struct
import sys
import tomllib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from galileo.errors import InvalidArchive

MANIFEST = "galileo-sampler.json"
FORMAT = 1

ARCHIVE_BYTES_MAX = 2 * 2**20
"""Of a zip as it comes in, and of the canonical one."""
CONTENT_BYTES_MAX = ARCHIVE_BYTES_MAX
"""Of all members together, uncompressed."""
MEMBERS_MAX = 256
MEMBER_NAME_CHARS_MAX = 200
MANIFEST_BYTES_MAX = 128 * 2**10
RATIO_MAX = 100
"""Bytes that may come of one compressed byte; source code comes to about 10."""

CODE = ".py"
SUFFIXES = (CODE, ".csv", ".geojson", ".json", ".md", ".npy", ".toml", ".txt")
"""Of members: source code, and data that it may read with `pkgutil.get_data`."""

_NAME = re.compile(r"[a-z0-9_.-]{1,64}")
_ENTRY = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)
_MEMBER = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)*[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RATIO_FREE_BYTES = 4_096
_ENCRYPTED = 0x1 | 0x40
_LOCAL = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_OTHERS = frozenset({"galileo", "galileo_sandbox", "numpy", "pandas", "pyarrow"})
_SKIPPED = frozenset({"__pycache__", "tests"})
_ENTRY_POINTS = "galileo.samplers"

Members = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SamplerArchive:
    """The code of one sampler, checked.

    Attributes:
        name: of the sampler, `[a-z0-9_.-]{1,64}`.
        entry: its class, `module:Class`.
        digest: SHA-256 of `data`, hexadecimal.
        data: the canonical zip, manifest included.

    Example:
        >>> archive = galileo.sampler_archive("thin.py")
        >>> archive.name, archive.entry
        ('thin', 'thin:Thin')
    """

    name: str
    entry: str
    digest: str
    data: bytes

    @staticmethod
    def from_bytes(data: bytes) -> SamplerArchive:
        """The archive of a zip with a manifest; nothing is extracted, and no code looked at.

        Raises:
            InvalidArchive: it is too large, has members that it may not have, or is not what its
                manifest says.

        Example:
            >>> archive = galileo.sampler_archive("thin.py")
            >>> galileo.SamplerArchive.from_bytes(archive.data).digest == archive.digest
            True
        """
        members = dict(_read(data))
        if MANIFEST not in members:
            raise InvalidArchive(
                f"expected a member {MANIFEST!r}, found none; "
                "make the archive with sampler_archive",
                expected="manifest",
            )
        manifest = _manifest(members.pop(MANIFEST))
        _check_hashes(manifest["sha256"], members)
        return archive_of(members, name=manifest["name"], entry=manifest["entry"])


def sampler_archive(
    path: str | Path, *, name: str | None = None, entry: str | None = None
) -> SamplerArchive:
    """Makes the archive of a sampler; the same content always has the same digest.

    Args:
        path: a zip with a manifest, a zip or a directory of Python modules, the directory of a
            distribution with an entry point `galileo.samplers`, or a Python file.
        name: of the sampler; else the manifest's, the entry point's, or the file's name.
        entry: `module:Class`; else the manifest's, the entry point's, or the only class that has
            a method `sample`.

    Raises:
        InvalidArchive: there is no one sampler in it, or it contains what an archive may not.

    Example:
        >>> galileo.sampler_archive("thin.py").name
        'thin'
    """
    place = Path(path)
    try:
        members = dict(_members_of(place))
    except OSError as error:
        raise InvalidArchive(
            f"cannot read {place}: {error.strerror or error}", expected="readable_file"
        ) from error
    found_name, found_entry = _declared(members, name=name)
    members.pop(MANIFEST, None)
    members = _of_distribution(members, found_entry) if found_entry else members
    chosen = entry or found_entry or _only_sampler(members)
    _check_modules(members)
    return archive_of(members, name=name or found_name or place.stem.lower(), entry=chosen)


# --- reading zips ------------------------------------------------------------------------------


def _read(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The members of a zip by name, read within the limits."""
    if len(data) > ARCHIVE_BYTES_MAX:
        raise InvalidArchive(
            f"expected an archive of at most {ARCHIVE_BYTES_MAX:,} bytes, got {len(data):,}",
            expected="archive_bytes",
            bound=ARCHIVE_BYTES_MAX,
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            infos = [info for info in file.infolist() if not _is_empty_directory(info)]
            _check_infos(infos)
            _check_places(infos, data, stop=file.start_dir)
            for info in infos:
                yield info.filename, _content_of(info, file)
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        OSError,
    ) as error:
        raise InvalidArchive(
            f"expected a zip archive, got bytes that fail: {error}", expected="zip"
        ) from error


def _content_of(info: zipfile.ZipInfo, file: zipfile.ZipFile) -> bytes:
    """No more is unpacked than the directory says, whatever the compressed bytes would become."""
    with file.open(info) as member:
        return member.read(info.file_size + 1)


def _is_empty_directory(info: zipfile.ZipInfo) -> bool:
    mode = stat.S_IFMT(info.external_attr >> 16)
    return info.filename.endswith("/") and info.file_size == 0 and mode in (0, stat.S_IFDIR)


def _check_infos(infos: list[zipfile.ZipInfo]) -> None:
    """What the directory of the zip says of its members, before any of them is read."""
    if len(infos) > MEMBERS_MAX + 1:
        raise InvalidArchive(
            f"expected at most {MEMBERS_MAX} members, got {len(infos):,}",
            expected="members",
            bound=MEMBERS_MAX,
        )
    for info in infos:
        _check_member(info.orig_filename)
        _check_kind(info)
        _check_size(info)
    names = [info.filename.lower() for info in infos]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArchive(
            f"expected each member once, got {', '.join(twice)} again",
            expected="unique",
            member=twice[0],
        )
    _check_sum(sum(info.file_size for info in infos))


def _check_member(name: str) -> None:
    if len(name) > MEMBER_NAME_CHARS_MAX or not _MEMBER.fullmatch(name):
        shown = name[:MEMBER_NAME_CHARS_MAX]
        raise InvalidArchive(
            f"expected members with relative names of letters, digits, '_', '-' and '.', of at "
            f"most {MEMBER_NAME_CHARS_MAX} characters, got {shown!r}",
            expected="member_name",
        )
    if PurePosixPath(name).suffix not in SUFFIXES:
        raise InvalidArchive(
            f"expected members that are {', '.join(SUFFIXES)}, got {name!r}; leave it out",
            expected="member_suffix",
            member=name,
        )


def _check_kind(info: zipfile.ZipInfo) -> None:
    if info.flag_bits & _ENCRYPTED:
        raise InvalidArchive(
            f"expected members that are not encrypted, got {info.filename!r}",
            expected="unencrypted",
            member=info.filename,
        )
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InvalidArchive(
            f"expected members stored or deflated, got method {info.compress_type} "
            f"of {info.filename!r}",
            expected="deflated",
            member=info.filename,
        )
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
        raise InvalidArchive(
            f"expected plain files, got a link or device {info.filename!r}",
            expected="plain_file",
            member=info.filename,
        )


def _check_size(info: zipfile.ZipInfo) -> None:
    bound = MANIFEST_BYTES_MAX if info.filename == MANIFEST else CONTENT_BYTES_MAX
    if info.file_size > bound:
        raise InvalidArchive(
            f"expected {info.filename!r} to have at most {bound:,} bytes, got {info.file_size:,}",
            expected="member_bytes",
            member=info.filename,
            bound=bound,
        )
    if info.file_size > max(_RATIO_FREE_BYTES, RATIO_MAX * info.compress_size):
        raise InvalidArchive(
            f"expected {info.filename!r} to be at most {RATIO_MAX} times as large as its "
            f"{info.compress_size:,} compressed bytes, got {info.file_size:,}",
            expected="ratio",
            member=info.filename,
            bound=RATIO_MAX,
        )


def _check_sum(size: int) -> None:
    if size > CONTENT_BYTES_MAX + MANIFEST_BYTES_MAX:
        raise InvalidArchive(
            f"expected members of at most {CONTENT_BYTES_MAX:,} bytes together, got {size:,}",
            expected="content_bytes",
            bound=CONTENT_BYTES_MAX,
        )


def _check_places(infos: list[zipfile.ZipInfo], data: bytes, *, stop: int) -> None:
    """That no member's bytes are another's, or the directory's: else few could become many."""
    free = 0
    for info in sorted(infos, key=lambda member: member.header_offset):
        at = info.header_offset
        magic, name_size, extra_size = _LOCAL.unpack_from(data, at) if at >= 0 else (b"", 0, 0)
        end = at + _LOCAL.size + name_size + extra_size + info.compress_size
        if magic != _LOCAL_MAGIC or at < free or end > stop:
            raise InvalidArchive(
                f"expected members that do not overlap, got {info.filename!r} within another",
                expected="no_overlap",
                member=info.filename,
            )
        free = end


# --- the manifest ------------------------------------------------------------------------------


def _manifest(data: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidArchive(
            f"expected JSON in {MANIFEST}: {error}", expected="json", member=MANIFEST
        ) from error
    if not isinstance(raw, dict) or raw.keys() != {"format", "name", "entry", "sha256"}:
        raise InvalidArchive(
            f"expected format, name, entry and sha256 in {MANIFEST}, nothing else",
            expected="manifest_keys",
            member=MANIFEST,
        )
    if raw["format"] != FORMAT or isinstance(raw["format"], bool):
        raise InvalidArchive(
            f"expected format {FORMAT} in {MANIFEST}, got {str(raw['format'])[:64]!r}",
            expected="format_version",
            member=MANIFEST,
        )
    hashes = raw["sha256"]
    if not isinstance(hashes, dict) or not all(
        isinstance(value, str) and _SHA256.fullmatch(value) for value in hashes.values()
    ):
        raise InvalidArchive(
            f"expected the SHA-256 of every member as sha256 in {MANIFEST}",
            expected="hashes",
            member=MANIFEST,
        )
    return raw


def _check_hashes(hashes: Mapping[str, str], members: Members) -> None:
    if hashes.keys() != members.keys():
        odd = sorted(hashes.keys() ^ members.keys())[0]
        where = "archive" if odd in hashes else "manifest"
        raise InvalidArchive(
            f"expected {MANIFEST} to name the members, {odd[:64]!r} is not in the {where}",
            expected="listed_member",
            member=odd[:64],
        )
    for name, data in members.items():
        if hashlib.sha256(data).hexdigest() != hashes[name]:
            raise InvalidArchive(
                f"{name!r} is not what {MANIFEST} says: its SHA-256 is another",
                expected="hash",
                member=name,
            )


def archive_of(members: Members, *, name: Any, entry: Any) -> SamplerArchive:
    """The canonical archive of some members.

    Raises:
        InvalidArchive: they are too many or too large, or name or entry are wrong.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArchive(
            f"expected a sampler's name of small letters, digits, '_', '.' and '-', at most 64, "
            f"got {str(name)[:80]!r}",
            expected="sampler_name",
        )
    if not 1 <= len(members) <= MEMBERS_MAX:
        raise InvalidArchive(
            f"expected 1 to {MEMBERS_MAX} members, got {len(members):,}",
            expected="members",
            bound=MEMBERS_MAX,
        )
    _check_entry(entry, members)
    hashes = {member: hashlib.sha256(data).hexdigest() for member, data in members.items()}
    raw = {"format": FORMAT, "name": name, "entry": entry, "sha256": hashes}
    manifest = json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()
    data = _zip({MANIFEST: manifest} | dict(sorted(members.items())))
    if len(data) > ARCHIVE_BYTES_MAX:
        raise InvalidArchive(
            f"expected at most {ARCHIVE_BYTES_MAX:,} bytes uncompressed, got {len(data):,}",
            expected="archive_bytes",
            bound=ARCHIVE_BYTES_MAX,
        )
    return SamplerArchive(name, entry, hashlib.sha256(data).hexdigest(), data)


def _check_entry(entry: Any, members: Members) -> None:
    match = _ENTRY.fullmatch(entry) if isinstance(entry, str) else None
    if match is None:
        raise InvalidArchive(
            f"expected an entry 'module:Class', got {str(entry)[:80]!r}", expected="entry"
        )
    home = match[1].replace(".", "/")
    if f"{home}{CODE}" not in members and f"{home}/__init__{CODE}" not in members:
        raise InvalidArchive(
            f"expected a module {match[1][:80]!r} in the archive, found none",
            expected="module_of_entry",
        )


def _zip(members: Members) -> bytes:
    """The same bytes for the same members, everywhere: hence uncompressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            file.writestr(info, data)
    return buffer.getvalue()


# --- making archives ---------------------------------------------------------------------------


def _members_of(place: Path) -> Iterator[tuple[str, bytes]]:
    if place.is_dir():
        yield from _files(place)
    elif place.suffix == CODE:
        yield place.name, _content(place)
    else:
        yield from _read(_content(place))


def _files(home: Path) -> Iterator[tuple[str, bytes]]:
    """The files below a directory that can be members; what is hidden, built or a test is not."""
    count = size = 0
    for path in sorted(home.rglob("*")):
        inner = path.relative_to(home)
        if path.suffix not in SUFFIXES or not path.is_file() or _skipped(inner):
            continue
        if path.is_symlink():
            raise InvalidArchive(
                f"expected plain files, got a link {inner}",
                expected="plain_file",
                member=str(inner),
            )
        count += 1
        if count > MEMBERS_MAX + 1:
            raise InvalidArchive(
                f"expected at most {MEMBERS_MAX} members in {home}, got more",
                expected="members",
                bound=MEMBERS_MAX,
            )
        data = _content(path)
        _check_member(inner.as_posix())
        _check_sum(size := size + len(data))
        yield inner.as_posix(), data


def _skipped(inner: Path) -> bool:
    return any(part.startswith(".") or part in _SKIPPED for part in inner.parts)


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(ARCHIVE_BYTES_MAX + 1)
    if len(data) > ARCHIVE_BYTES_MAX:
        raise InvalidArchive(
            f"expected at most {ARCHIVE_BYTES_MAX:,} bytes in {path}, got more",
            expected="archive_bytes",
            bound=ARCHIVE_BYTES_MAX,
        )
    return data


def _declared(members: Members, *, name: str | None) -> tuple[str | None, str | None]:
    """Name and entry that a manifest or the project file of a distribution declares."""
    if MANIFEST in members:
        manifest = _manifest(members[MANIFEST])
        _check_hashes(manifest["sha256"], {k: v for k, v in members.items() if k != MANIFEST})
        return manifest["name"], manifest["entry"]
    if "pyproject.toml" not in members:
        return None, None
    points = _entry_points(members["pyproject.toml"])
    if name is not None:
        return name, points.get(name)
    if len(points) > 1:
        raise InvalidArchive(
            f"expected one sampler, the distribution has {', '.join(sorted(points))}; say which",
            expected="one_sampler",
        )
    return next(iter(points.items()), (None, None))


def _entry_points(project: bytes) -> dict[str, str]:
    try:
        raw = tomllib.loads(project.decode())
        return dict(raw.get("project", {}).get("entry-points", {}).get(_ENTRY_POINTS, {}))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise InvalidArchive(
            f"cannot read pyproject.toml: {error}", expected="pyproject"
        ) from error


def _of_distribution(members: Members, entry: str) -> dict[str, bytes]:
    """Only the package of the entry where it lies below `src`, else what there is."""
    package = str(entry).partition(":")[0].partition(".")[0]
    if f"src/{package}/__init__{CODE}" not in members:
        return dict(members)
    inside = f"src/{package}/"
    return {
        name.removeprefix("src/"): data for name, data in members.items() if name.startswith(inside)
    }


def _check_modules(members: Members) -> None:
    """That no module hides behind one that is there already, and all are Python."""
    for name, data in members.items():
        top = PurePosixPath(name).parts[0].removesuffix(CODE)
        if top in _OTHERS or (top in sys.stdlib_module_names and name.endswith(CODE)):
            raise InvalidArchive(
                f"{name!r} would never be imported: {top!r} is there; rename it",
                expected="importable_name",
                member=name,
            )
        if name.endswith(CODE):
            _parsed(name, data)


def _only_sampler(members: Members) -> str:
    classes = [
        f"{_module(name)}:{cls}"
        for name, data in members.items()
        if name.endswith(CODE)
        for cls in _sampler_classes(_parsed(name, data))
    ]
    if len(classes) != 1:
        raise InvalidArchive(
            f"expected one class with a method sample, got {', '.join(sorted(classes)) or 'none'}",
            remedy="one_sampler",
            expected="one_class",
        )
    return classes[0]


def _module(name: str) -> str:
    return name.removesuffix(CODE).removesuffix("/__init__").replace("/", ".")


def _parsed(name: str, data: bytes) -> ast.Module:
    try:
        return ast.parse(data, filename=name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidArchive(
            f"expected Python in {name!r}: {error}", expected="python", member=name
        ) from error


def _sampler_classes(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            if "sample" in methods:
                yield node.name
