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
from expected_errors import raises
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


def test_archive_from_bytes_gives_canonical_form() -> None:
    made = SamplerArchive.from_bytes(sent(MEMBERS))
    assert (made.name, made.entry) == ("tenth", "tenth:Tenth")
    assert made.digest == hashlib.sha256(made.data).hexdigest()
    assert SamplerArchive.from_bytes(made.data) == made
    with zipfile.ZipFile(io.BytesIO(made.data)) as file:
        assert file.namelist() == [MANIFEST, "tenth.py"]
        assert file.read("tenth.py") == SOURCE


def test_archive_digest_depends_on_content_only() -> None:
    plain = SamplerArchive.from_bytes(zipped([*MEMBERS.items(), (MANIFEST, manifest(MEMBERS))]))
    dressed = b"#!shebang\n" + sent(MEMBERS, change=lambda info: setattr(info, "comment", b"x"))
    assert SamplerArchive.from_bytes(dressed).digest == plain.digest
    other = {"tenth.py": SOURCE + b"\n"}
    assert SamplerArchive.from_bytes(sent(other)).digest != plain.digest


@given(st.data())
@examples(30)
def test_archive_random_damage_raises_or_is_harmless(data: st.DataObject) -> None:
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
def test_archive_random_bytes_raises(noise: bytes) -> None:
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
def test_archive_unsafe_member_name_raises(name: str) -> None:
    # Written as another name of the same length, since zipfile corrects some itself.
    stand_in = "q" * (len(name.encode()) - 3) + ".py"
    data = sent(MEMBERS | {stand_in: b""}).replace(stand_in.encode(), name.encode())
    with raises(InvalidArchive, expected="member_name"):
        SamplerArchive.from_bytes(data)


@pytest.mark.parametrize("name", ["x.so", "x.pyc", "x.zip", "x.whl", "x.pth", "x", "x.PY"])
def test_archive_other_suffix_raises(name: str) -> None:
    with raises(InvalidArchive, expected="member_suffix"):
        SamplerArchive.from_bytes(sent(MEMBERS | {name: b""}))


def test_archive_nested_archive_raises_unless_renamed() -> None:
    bomb = zipped([("zeros.txt", bytes(10**6))])
    with raises(InvalidArchive, expected="member_suffix", member="inner.zip"):
        SamplerArchive.from_bytes(sent(MEMBERS | {"inner.zip": bomb}))
    assert SamplerArchive.from_bytes(sent(MEMBERS | {"inner.txt": bomb})).name == "tenth"


def test_archive_zip_bomb_raises() -> None:
    with raises(InvalidArchive, expected="ratio", member="zeros.txt", bound=100):
        SamplerArchive.from_bytes(sent(MEMBERS | {"zeros.txt": bytes(10**6)}))
    with raises(InvalidArchive, expected="member_bytes", member="zeros.txt", bound=2097152):
        SamplerArchive.from_bytes(sent(MEMBERS | {"zeros.txt": bytes(10**7)}))


def test_archive_zip_bomb_with_false_size_raises() -> None:
    data = bytearray(sent(MEMBERS | {"zeros.txt": bytes(10**6)}))
    for at in range(len(data) - 4):
        if data[at : at + 4] == struct.pack("<I", 10**6):
            data[at : at + 4] = struct.pack("<I", 1000)
    with raises(InvalidArchive, expected="zip"):
        SamplerArchive.from_bytes(bytes(data))


def test_archive_bytes_beyond_reported_size_are_not_unpacked() -> None:
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
        with raises(InvalidArchive, expected="hash", member="zeros.txt"):
            SamplerArchive.from_bytes(bytes(lying))
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_archive_members_too_large_together_raises() -> None:
    noise = {f"{at}.txt": (b"%08d" % at) * 2**15 for at in range(9)}
    with raises(InvalidArchive, expected="ratio", member="0.txt", bound=100):
        SamplerArchive.from_bytes(sent(MEMBERS | noise))


def test_archive_too_many_members_raises() -> None:
    with raises(InvalidArchive, expected="members", bound=256):
        SamplerArchive.from_bytes(sent(MEMBERS | {f"{at}.py": b"" for at in range(299)}))


def test_archive_too_many_bytes_raises() -> None:
    with raises(InvalidArchive, expected="archive_bytes", bound=2097152):
        SamplerArchive.from_bytes(bytes(2**21 + 1))


def test_archive_large_manifest_raises() -> None:
    large = manifest(MEMBERS, name="x" * 10**5 + str(list(range(10**5))))
    with raises(
        InvalidArchive, expected="member_bytes", member="galileo-sampler.json", bound=131072
    ):
        SamplerArchive.from_bytes(zipped([(MANIFEST, large), *MEMBERS.items()]))


def test_archive_duplicate_member_raises() -> None:
    members = [(MANIFEST, manifest(MEMBERS)), *MEMBERS.items(), *MEMBERS.items()]
    with raises(InvalidArchive, expected="unique", member="tenth.py"):
        SamplerArchive.from_bytes(zipped(members))
    with raises(InvalidArchive, expected="unique", member="tenth.py"):
        SamplerArchive.from_bytes(sent(MEMBERS | {"Tenth.py": SOURCE}))


def test_archive_link_or_device_raises() -> None:
    for kind in (stat.S_IFLNK, stat.S_IFBLK, stat.S_IFIFO):

        def change(info: zipfile.ZipInfo, kind: int = kind) -> None:
            info.external_attr = (kind | 0o777) << 16

        with raises(InvalidArchive, expected="plain_file", member="tenth.py"):
            SamplerArchive.from_bytes(sent({"tenth.py": b"/etc/shadow"}, change=change))


def test_archive_encrypted_member_raises() -> None:
    data = bytearray(sent(MEMBERS))
    at = data.rindex(b"PK\x01\x02")
    data[at + 8] |= 1
    with raises(InvalidArchive, expected="unencrypted", member="tenth.py"):
        SamplerArchive.from_bytes(bytes(data))


def test_archive_other_compression_raises() -> None:
    data = zipped([(MANIFEST, manifest(MEMBERS)), *MEMBERS.items()], method=zipfile.ZIP_LZMA)
    with raises(InvalidArchive, expected="deflated", member="galileo-sampler.json"):
        SamplerArchive.from_bytes(data)


def test_archive_overlapping_members_raises() -> None:
    """Overlapping ones, by which a few bytes become very many members."""
    members = MEMBERS | {"other.py": SOURCE}
    data = bytearray(sent(members))
    first, second = data.index(b"PK\x03\x04"), data.rindex(b"PK\x03\x04")
    at = data.rindex(b"PK\x01\x02")
    assert struct.unpack_from("<I", data, at + 42) == (second,)
    struct.pack_into("<I", data, at + 42, first)
    with raises(InvalidArchive, expected="no_overlap", member="other.py"):
        SamplerArchive.from_bytes(bytes(data))


def test_archive_member_unlike_manifest_raises() -> None:
    wrong = {"tenth.py": "0" * 64}
    with raises(InvalidArchive, expected="hash", member="tenth.py"):
        SamplerArchive.from_bytes(sent(MEMBERS, sha256=wrong))
    with raises(InvalidArchive, expected="listed_member", member="tenth.py"):
        SamplerArchive.from_bytes(sent(MEMBERS, sha256={}))
    hashes = json.loads(manifest(MEMBERS | {"gone.py": b""}))["sha256"]
    with raises(InvalidArchive, expected="listed_member", member="gone.py"):
        SamplerArchive.from_bytes(sent(MEMBERS, sha256=hashes))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"format": 2}, "format_version"),
        ({"format": True}, "format_version"),
        ({"name": "Tenth"}, "sampler_name"),
        ({"name": "../x"}, "sampler_name"),
        ({"name": 7}, "sampler_name"),
        ({"entry": "tenth"}, "entry"),
        ({"entry": "other:Tenth"}, "module_of_entry"),
        ({"entry": "tenth:Tenth()"}, "entry"),
        ({"entry": None}, "entry"),
        ({"sha256": []}, "hashes"),
        ({"sha256": {"tenth.py": 3}}, "hashes"),
        ({"more": 1}, "manifest_keys"),
    ],
)
def test_archive_invalid_manifest_value_raises(changed: dict[str, Any], expected: str) -> None:
    with raises(InvalidArchive, expected=expected):
        SamplerArchive.from_bytes(sent(MEMBERS, **changed))


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b"\xff", b"7"])
def test_archive_other_text_as_manifest_raises(text: bytes) -> None:
    with pytest.raises(InvalidArchive):
        SamplerArchive.from_bytes(zipped([(MANIFEST, text), *MEMBERS.items()]))


def test_archive_no_manifest_raises() -> None:
    with raises(InvalidArchive, expected="manifest"):
        SamplerArchive.from_bytes(zipped(list(MEMBERS.items())))


# --- making ------------------------------------------------------------------------------------


def test_sampler_archive_file_directory_and_zip_are_equal(tmp_path: Path) -> None:
    file = tmp_path / "tenth.py"
    file.write_bytes(SOURCE)
    expected = archive_of(MEMBERS, name="tenth", entry="tenth:Tenth")
    assert sampler_archive(file) == expected
    assert sampler_archive(str(tmp_path), name="tenth") == expected
    for name, data in {"tenth.zip": zipped(list(MEMBERS.items())), "x.zip": expected.data}.items():
        (tmp_path / name).write_bytes(data)
        assert sampler_archive(tmp_path / name) == expected


def test_sampler_archive_new_distribution_is_accepted(tmp_path: Path) -> None:
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


def test_sampler_archive_several_samplers_raises_without_entry(tmp_path: Path) -> None:
    (tmp_path / "both.py").write_bytes(SOURCE + SOURCE.replace(b"Tenth", b"Third"))
    with raises(InvalidArchive, remedy="one_sampler", expected="one_class"):
        sampler_archive(tmp_path / "both.py")
    assert sampler_archive(tmp_path / "both.py", entry="both:Third").entry == "both:Third"
    (tmp_path / "pyproject.toml").write_text(
        '[project.entry-points."galileo.samplers"]\ntenth = "both:Tenth"\nthird = "both:Third"\n'
    )
    with raises(InvalidArchive, expected="one_sampler"):
        sampler_archive(tmp_path)
    assert sampler_archive(tmp_path, name="third").entry == "both:Third"


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("none.py", b"x = 1", "one_class"),
        ("broken.py", b"class (", "python"),
        ("json.py", SOURCE, "importable_name"),
        ("numpy.py", SOURCE, "importable_name"),
        ("Ümlaut.py", SOURCE, "sampler_name"),
    ],
)
def test_sampler_archive_invalid_source_raises(
    name: str, source: bytes, expected: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(source)
    with raises(InvalidArchive, expected=expected):
        sampler_archive(tmp_path / name)


def test_sampler_archive_link_in_directory_raises(tmp_path: Path) -> None:
    (tmp_path / "tenth.py").write_bytes(SOURCE)
    (tmp_path / "data.txt").symlink_to("/etc/hostname")
    with raises(InvalidArchive, expected="plain_file", member="data.txt"):
        sampler_archive(tmp_path)


def test_sampler_archive_missing_file_raises(tmp_path: Path) -> None:
    with raises(InvalidArchive, expected="readable_file"):
        sampler_archive(tmp_path / "gone.zip")


def test_sampler_archive_large_directory_raises(tmp_path: Path) -> None:
    for at in range(MEMBERS_MAX + 2):
        (tmp_path / f"m{at}.py").write_bytes(b"")
    with raises(InvalidArchive, expected="members", bound=256):
        sampler_archive(tmp_path)
