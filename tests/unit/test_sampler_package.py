"""Archives of samplers: what is made, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.cli.sampler_template import write_template
from galileo.errors import InvalidArchive
from galileo.sampler_package import (
    MANIFEST,
    MEMBERS_MAX,
    SamplerArchive,
    archive_of,
    sampler_archive,
)

SOURCE = (
    b"class Tenth:\n    def sample(self, labels, *, seed):\n        return labels.rows % 10 == 0\n"
)
MEMBERS = {"tenth.py": SOURCE}
Info = Callable[[zipfile.ZipInfo], None]


def zipped(
    members: list[tuple[str, bytes]],
    *,
    method: int = zipfile.ZIP_DEFLATED,
    change: Info | None = None,
) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as file:
        warnings.simplefilter("ignore", UserWarning)
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            if change is not None and name != MANIFEST:
                change(info)
            file.writestr(info, data)
    return buffer.getvalue()


def manifest(members: dict[str, bytes], **changed: Any) -> bytes:
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    raw = {"format": 1, "name": "tenth", "entry": "tenth:Tenth", "sha256": hashes}
    return json.dumps(raw | changed).encode()


def sent(members: dict[str, bytes], *, change: Info | None = None, **changed: Any) -> bytes:
    listed = [(MANIFEST, manifest(members, **changed)), *members.items()]
    return zipped(listed, change=change)


def test_an_archive_is_its_canonical_form() -> None:
    made = SamplerArchive.from_bytes(sent(MEMBERS))
    assert (made.name, made.entry) == ("tenth", "tenth:Tenth")
    assert made.digest == hashlib.sha256(made.data).hexdigest()
    assert SamplerArchive.from_bytes(made.data) == made
    with zipfile.ZipFile(io.BytesIO(made.data)) as file:
        assert file.namelist() == [MANIFEST, "tenth.py"]
        assert file.read("tenth.py") == SOURCE


def test_the_digest_is_that_of_the_content() -> None:
    plain = SamplerArchive.from_bytes(zipped([*MEMBERS.items(), (MANIFEST, manifest(MEMBERS))]))
    dressed = b"#!shebang\n" + sent(MEMBERS, change=lambda info: setattr(info, "comment", b"x"))
    assert SamplerArchive.from_bytes(dressed).digest == plain.digest
    other = {"tenth.py": SOURCE + b"\n"}
    assert SamplerArchive.from_bytes(sent(other)).digest != plain.digest


@given(st.data())
@examples(30)
def test_any_damage_is_noticed_or_harmless(data: st.DataObject) -> None:
    good = sent(MEMBERS)
    at = data.draw(st.integers(0, len(good) - 1))
    damaged = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    try:
        made = SamplerArchive.from_bytes(damaged)
    except InvalidArchive:
        return
    # Dates, comments and the like: nothing of it is kept.
    assert made == SamplerArchive.from_bytes(good)


@given(st.binary(max_size=200))
def test_noise_is_no_archive(noise: bytes) -> None:
    with pytest.raises(InvalidArchive):
        SamplerArchive.from_bytes(noise)


# --- tricks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("../x.py", "/etc/x.py", "a/../x.py", "a//x.py", "./x.py", "a\\x.py", "C:x.py"),
        *("x.py\x00.txt", ".hidden.py", "ü.py", "a b.py", "x/.py", "a" * 300 + ".py", "a\n.py"),
    ],
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    # Written as another name of the same length, since zipfile corrects some itself.
    stand_in = "q" * (len(name.encode()) - 3) + ".py"
    data = sent(MEMBERS | {stand_in: b""}).replace(stand_in.encode(), name.encode())
    with pytest.raises(InvalidArchive, match="relative names"):
        SamplerArchive.from_bytes(data)


@pytest.mark.parametrize("name", ["x.so", "x.pyc", "x.zip", "x.whl", "x.pth", "x", "x.PY"])
def test_other_kinds_of_files_are_refused(name: str) -> None:
    with pytest.raises(InvalidArchive, match="leave it out"):
        SamplerArchive.from_bytes(sent(MEMBERS | {name: b""}))


def test_an_archive_within_is_refused_by_its_name_and_never_opened_otherwise() -> None:
    bomb = zipped([("zeros.txt", bytes(10**6))])
    with pytest.raises(InvalidArchive, match="leave it out"):
        SamplerArchive.from_bytes(sent(MEMBERS | {"inner.zip": bomb}))
    assert SamplerArchive.from_bytes(sent(MEMBERS | {"inner.txt": bomb})).name == "tenth"


def test_a_zip_bomb_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidArchive, match="at most 100 times"):
        SamplerArchive.from_bytes(sent(MEMBERS | {"zeros.txt": bytes(10**6)}))
    with pytest.raises(InvalidArchive, match="at most 2,097,152 bytes"):
        SamplerArchive.from_bytes(sent(MEMBERS | {"zeros.txt": bytes(10**7)}))


def test_a_bomb_that_lies_about_its_size_is_refused() -> None:
    data = bytearray(sent(MEMBERS | {"zeros.txt": bytes(10**6)}))
    for at in range(len(data) - 4):
        if data[at : at + 4] == struct.pack("<I", 10**6):
            data[at : at + 4] = struct.pack("<I", 1000)
    with pytest.raises(InvalidArchive, match="bytes that fail"):
        SamplerArchive.from_bytes(bytes(data))


def test_what_is_packed_beyond_the_size_that_is_reported_is_never_unpacked() -> None:
    bomb = sent(MEMBERS | {"zeros.txt": bytes(2**26)})
    assert len(bomb) < 2**17
    lying = bytearray(bomb)
    real, claimed = (struct.pack("<I", size) for size in (2**26, 4_096))
    crcs = (struct.pack("<I", zlib.crc32(bytes(size))) for size in (2**26, 4_096))
    for old, new in ((real, claimed), tuple(crcs)):
        assert lying.count(old) == 2, "beside the member and in the directory"
        lying = lying.replace(old, new)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArchive, match="its SHA-256 is another"):
            SamplerArchive.from_bytes(bytes(lying))
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_many_that_are_allowed_alone_are_refused_together() -> None:
    noise = {f"{at}.txt": (b"%08d" % at) * 2**15 for at in range(9)}
    with pytest.raises(InvalidArchive, match=r"together|at most 100 times"):
        SamplerArchive.from_bytes(sent(MEMBERS | noise))


def test_too_many_members_are_refused() -> None:
    with pytest.raises(InvalidArchive, match="at most 256 members, got 301"):
        SamplerArchive.from_bytes(sent(MEMBERS | {f"{at}.py": b"" for at in range(299)}))


def test_a_large_archive_is_refused_unread() -> None:
    with pytest.raises(InvalidArchive, match="at most 2,097,152 bytes, got 2,097,153"):
        SamplerArchive.from_bytes(bytes(2**21 + 1))


def test_a_large_manifest_is_refused() -> None:
    large = manifest(MEMBERS, name="x" * 10**5 + str(list(range(10**5))))
    with pytest.raises(InvalidArchive, match="at most 131,072 bytes"):
        SamplerArchive.from_bytes(zipped([(MANIFEST, large), *MEMBERS.items()]))


def test_a_member_that_is_there_twice_is_refused() -> None:
    members = [(MANIFEST, manifest(MEMBERS)), *MEMBERS.items(), *MEMBERS.items()]
    with pytest.raises(InvalidArchive, match="each member once"):
        SamplerArchive.from_bytes(zipped(members))
    with pytest.raises(InvalidArchive, match="each member once"):
        SamplerArchive.from_bytes(sent(MEMBERS | {"Tenth.py": SOURCE}))


def test_links_and_devices_are_refused() -> None:
    for kind in (stat.S_IFLNK, stat.S_IFBLK, stat.S_IFIFO):

        def change(info: zipfile.ZipInfo, kind: int = kind) -> None:
            info.external_attr = (kind | 0o777) << 16

        with pytest.raises(InvalidArchive, match="a link or device"):
            SamplerArchive.from_bytes(sent({"tenth.py": b"/etc/shadow"}, change=change))


def test_encrypted_members_are_refused() -> None:
    data = bytearray(sent(MEMBERS))
    at = data.rindex(b"PK\x01\x02")
    data[at + 8] |= 1
    with pytest.raises(InvalidArchive, match="not encrypted"):
        SamplerArchive.from_bytes(bytes(data))


def test_other_compressions_are_refused() -> None:
    data = zipped([(MANIFEST, manifest(MEMBERS)), *MEMBERS.items()], method=zipfile.ZIP_LZMA)
    with pytest.raises(InvalidArchive, match="stored or deflated"):
        SamplerArchive.from_bytes(data)


def test_members_in_the_bytes_of_others_are_refused() -> None:
    """Overlapping ones, by which a few bytes become very many members."""
    members = MEMBERS | {"other.py": SOURCE}
    data = bytearray(sent(members))
    first, second = data.index(b"PK\x03\x04"), data.rindex(b"PK\x03\x04")
    at = data.rindex(b"PK\x01\x02")
    assert struct.unpack_from("<I", data, at + 42) == (second,)
    struct.pack_into("<I", data, at + 42, first)
    with pytest.raises(InvalidArchive, match="do not overlap"):
        SamplerArchive.from_bytes(bytes(data))


def test_a_member_that_is_not_what_the_manifest_says_is_refused() -> None:
    wrong = {"tenth.py": "0" * 64}
    with pytest.raises(InvalidArchive, match="its SHA-256 is another"):
        SamplerArchive.from_bytes(sent(MEMBERS, sha256=wrong))
    with pytest.raises(InvalidArchive, match="not in the manifest"):
        SamplerArchive.from_bytes(sent(MEMBERS, sha256={}))
    hashes = json.loads(manifest(MEMBERS | {"gone.py": b""}))["sha256"]
    with pytest.raises(InvalidArchive, match=r"'gone\.py' is not in the archive"):
        SamplerArchive.from_bytes(sent(MEMBERS, sha256=hashes))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"format": 2}, "format 1"),
        ({"format": True}, "format 1"),
        ({"name": "Tenth"}, "small letters"),
        ({"name": "../x"}, "small letters"),
        ({"name": 7}, "small letters"),
        ({"entry": "tenth"}, "module:Class"),
        ({"entry": "other:Tenth"}, "module 'other'"),
        ({"entry": "tenth:Tenth()"}, "module:Class"),
        ({"entry": None}, "module:Class"),
        ({"sha256": []}, "SHA-256 of every member"),
        ({"sha256": {"tenth.py": 3}}, "SHA-256 of every member"),
        ({"more": 1}, "nothing else"),
    ],
)
def test_a_wrong_manifest_is_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArchive, match=reason):
        SamplerArchive.from_bytes(sent(MEMBERS, **changed))


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b"\xff", b"7"])
def test_a_manifest_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidArchive):
        SamplerArchive.from_bytes(zipped([(MANIFEST, text), *MEMBERS.items()]))


def test_an_archive_without_a_manifest_is_not_run() -> None:
    with pytest.raises(InvalidArchive, match="make the archive with sampler_archive"):
        SamplerArchive.from_bytes(zipped(list(MEMBERS.items())))


# --- making ------------------------------------------------------------------------------------


def test_a_file_a_directory_and_a_zip_of_one_sampler_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "tenth.py"
    file.write_bytes(SOURCE)
    expected = archive_of(MEMBERS, name="tenth", entry="tenth:Tenth")
    assert sampler_archive(file) == expected
    assert sampler_archive(str(tmp_path), name="tenth") == expected
    for name, data in {"tenth.zip": zipped(list(MEMBERS.items())), "x.zip": expected.data}.items():
        (tmp_path / name).write_bytes(data)
        assert sampler_archive(tmp_path / name) == expected


def test_a_new_distribution_is_an_archive(tmp_path: Path) -> None:
    write_template("dry_hours", tmp_path)
    made = sampler_archive(tmp_path / "dry_hours")
    assert (made.name, made.entry) == ("dry_hours", "galileo_sampler_dry_hours:DryHours")
    (tmp_path / "src").mkdir()
    (tmp_path / "dry_hours" / "galileo_sampler_dry_hours").rename(
        tmp_path / "src" / "galileo_sampler_dry_hours"
    )
    (tmp_path / "pyproject.toml").write_bytes((tmp_path / "dry_hours/pyproject.toml").read_bytes())
    inner = sampler_archive(tmp_path)
    assert inner.entry == made.entry
    with zipfile.ZipFile(io.BytesIO(inner.data)) as file:
        assert file.namelist() == [MANIFEST, "galileo_sampler_dry_hours/__init__.py"]


def test_one_of_several_entry_points_is_named(tmp_path: Path) -> None:
    (tmp_path / "both.py").write_bytes(SOURCE + SOURCE.replace(b"Tenth", b"Third"))
    with pytest.raises(InvalidArchive, match="both:Tenth, both:Third"):
        sampler_archive(tmp_path / "both.py")
    assert sampler_archive(tmp_path / "both.py", entry="both:Third").entry == "both:Third"
    (tmp_path / "pyproject.toml").write_text(
        '[project.entry-points."galileo.samplers"]\ntenth = "both:Tenth"\nthird = "both:Third"\n'
    )
    with pytest.raises(InvalidArchive, match="say which"):
        sampler_archive(tmp_path)
    assert sampler_archive(tmp_path, name="third").entry == "both:Third"


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("none.py", b"x = 1", "got none"),
        ("broken.py", b"class (", "Python in 'broken.py'"),
        ("json.py", SOURCE, "rename it"),
        ("numpy.py", SOURCE, "rename it"),
        ("Ümlaut.py", SOURCE, "relative names|small letters"),
    ],
)
def test_what_is_no_sampler_is_not_made(
    name: str, source: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(source)
    with pytest.raises(InvalidArchive, match=reason):
        sampler_archive(tmp_path / name)


def test_links_in_a_directory_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "tenth.py").write_bytes(SOURCE)
    (tmp_path / "data.txt").symlink_to("/etc/hostname")
    with pytest.raises(InvalidArchive, match="got a link"):
        sampler_archive(tmp_path)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidArchive, match="No such file"):
        sampler_archive(tmp_path / "gone.zip")


def test_a_directory_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    for at in range(MEMBERS_MAX + 2):
        (tmp_path / f"m{at}.py").write_bytes(b"")
    with pytest.raises(InvalidArchive, match="at most 256 members"):
        sampler_archive(tmp_path)
