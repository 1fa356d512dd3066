from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises

from galileo.errors import ConfigError, InputError, Unauthenticated
from galileo.model.quotas import Quotas
from galileo.rpc import token_store
from galileo.rpc.access import Principal, Role
from galileo.rpc.quotas import QuotaResolver
from galileo.rpc.token_store import LOOK_S, TokenStore, add, digest_of, read, remove

ANN = Principal("ann", frozenset({Role.READER, Role.WRITER}), ("nam", "quakes-*"))
BOB = Principal("bob", frozenset({Role.NODE}), ("*",))
EVE = Principal(
    "eve", frozenset({Role.SUBSCRIBER}), ("smog",), brokers=('m"l\\', "é-*", "\U0001f4e0")
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "principals.toml"


def test_token_store_file_contains_digests_only(path: Path) -> None:
    token = add(path, ANN)
    other = add(path, BOB)
    text = path.read_text()
    assert token not in text
    assert other not in text
    assert hashlib.sha256(token.encode()).hexdigest() in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    third = add(path, EVE)
    found = TokenStore(path)
    assert [found.of_token(one) for one in (token, other, third)] == [ANN, BOB, EVE]
    assert found.of_token("") is found.of_token(token[:-1]) is found.of_token(token + "x") is None
    digest = hashlib.sha256(token.encode()).hexdigest()
    assert found.of_token(digest) is None, "who reads the file gets in with nothing of it"


def test_token_store_reloads_changes_and_ignores_invalid_files(path: Path) -> None:
    token = add(path, ANN)
    now = [0.0]
    found = TokenStore(path, monotonic=lambda: now[0])
    other = add(path, BOB)
    assert found.of_token(other) is None
    now[0] += LOOK_S
    assert found.of_token(other) == BOB
    good = path.read_text()
    for wrong in ("[[principal", "", None):
        if wrong is None:
            path.unlink()
        else:
            path.write_text(wrong)
        now[0] += LOOK_S
        assert (found.of_token(token) == ANN) is (wrong != ""), "an empty file is no mistake"
        path.touch(0o600)
        path.write_text(good)
        now[0] += LOOK_S
        assert found.of_token(token) == ANN
    remove(path, "ann")
    now[0] += LOOK_S
    assert (found.of_token(token), found.of_token(other)) == (None, BOB)


def test_token_store_add_or_remove_of_an_invalid_principal_is_refused(path: Path) -> None:
    add(path, ANN)
    with raises(InputError, principal="ann"):
        add(path, ANN)
    assert [one.name for one in path.parent.iterdir()] == [path.name], "nothing else is left"
    with raises(InputError, principal="x"):
        remove(path, "x")
    with raises(InputError, parameter="name"):
        add(path, Principal("Ann!", ANN.roles))
    with raises(InputError, parameter="datasets"):
        add(path, Principal("eve", ANN.roles, ("a/b",)))
    for roles, brokers in ((ANN.roles, ("ops",)), (EVE.roles, ("a/b",))):
        with raises(InputError, parameter="brokers"):
            add(path, Principal("eve", roles, ("smog",), brokers=brokers))
    assert [one.name for one in read(path).principals.values()] == ["ann"]


def test_token_store_add_and_remove_lock_the_file_from_reading_to_writing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def locked(name: str) -> None:
        step = getattr(token_store, name)

        def checked(*arguments: Any) -> Any:
            other = os.open(path.parent, os.O_RDONLY)
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(other)
            steps.append(name)
            return step(*arguments)

        monkeypatch.setattr(token_store, name, checked)

    add(path, ANN)
    locked("read")
    locked("_write")
    add(path, BOB)
    remove(path, "ann")
    assert steps == ["read", "_write"] * 2


DIGEST = "0" * 64
SECRET = "glt_planted"


@pytest.mark.parametrize(
    "text",
    [
        "principal = 3",
        "other = 1",
        "principal = [3]",
        '[[principal]]\nname = "a"',
        f'[[principal]]\nname = "{SECRET}!"\nroles = ["reader"]\ntoken_sha256 = "{DIGEST}"',
        f'[[principal]]\nname = "a"\nroles = ["reader"]\ntoken_sha256 = "{SECRET}"',
        f'[[principal]]\nname = "a"\nroles = ["{SECRET}"]\ntoken_sha256 = "{DIGEST}"',
        f'[[principal]]\nname = "a"\nroles = []\ntoken_sha256 = "{DIGEST}"',
        f'[[principal]]\nname = "a"\nroles = "reader"\ntoken_sha256 = "{DIGEST}"',
        f'[[principal]]\nname = "a"\nroles = ["reader"]\ntoken_sha256 = "{DIGEST}"\n{SECRET} = 1',
        f'[[principal]]\nname = "a"\nroles = ["reader"]\ntoken_sha256 = "{DIGEST}"\n'
        f'datasets = ["/{SECRET}"]',
        2 * f'[[principal]]\nname = "a"\nroles = ["reader"]\ntoken_sha256 = "{DIGEST}"\n',
        f'[[principal]]\nname = "a"\nroles = ["reader"]\ntoken_sha256 = "{DIGEST}"\n'
        f'expires = "{SECRET}"',
        f'[[principal]]\nname = "a"\nroles = ["reader"]\ntoken_sha256 = "{DIGEST}"\n'
        f'quotas = {{ccqs_max = "{SECRET}"}}',
        f'[[principal]]\nname = "a"\nroles = ["reader"]\ntoken_sha256 = "{DIGEST}"\n'
        f"quotas = {{{SECRET} = 1}}",
        f'[[principal]]\nname = "a"\nroles = ["subscriber"]\ntoken_sha256 = "{DIGEST}"\n'
        f'brokers = ["{SECRET}/"]',
        f'[[principal]]\nname = "a"\nroles = ["writer"]\ntoken_sha256 = "{DIGEST}"\n'
        f'brokers = ["{SECRET}"]',
        f'[[principal]]\nname = "a"\nroles = ["reader"]\ntoken_sha256 = "{DIGEST}"\nbrokers = 3',
        f"[role.{SECRET}]\nccqs_max = 1",
        "[role.reader]\nccqs_max = 1.5",
        "[role.reader]\nccqs_max = true",
        "[role.reader]\ninterval_min_s = nan",
        f"{SECRET} =",
        "\udcff",
    ],
)
def test_token_store_invalid_file_is_refused_without_its_content(tmp_path: Path, text: str) -> None:
    path = tmp_path / "principals.toml"
    path.touch(0o600)
    path.write_bytes(text.encode(errors="surrogateescape"))
    with raises(ConfigError) as caught:
        read(path)
    assert SECRET not in str(caught.value) + repr(caught.value.details)


def test_token_store_readable_or_missing_file_is_refused(path: Path) -> None:
    add(path, ANN)
    path.chmod(0o604)
    with raises(ConfigError, key="auth.token_file", mode="0604"):
        TokenStore(path)
    with raises(ConfigError, key="auth.token_file"):
        TokenStore(path.with_name("away"))


def test_token_store_reloads_after_permissions_are_corrected(path: Path) -> None:
    token = add(path, ANN)
    now = [0.0]
    found = TokenStore(path, monotonic=lambda: now[0])
    remove(path, "ann")
    path.chmod(0o644)
    now[0] += LOOK_S
    assert found.of_token(token) == ANN, "what was right before counts on"
    path.chmod(0o600)
    now[0] += LOOK_S
    assert found.of_token(token) is None, "it was revoked"


def test_token_store_quotas_prefer_own_then_the_largest_of_roles(
    path: Path,
) -> None:
    token = add(path, replace(ANN, quotas=(("vertices_max", 7),)))
    other = add(path, replace(ANN, name="bea"))
    roles = (
        "[role.reader]\nccqs_max = 5\ninterval_min_s = 2\nvertices_max = 1000\n"
        "[role.writer]\nccqs_max = 9\ninterval_min_s = 0.5\n"
        "[role.admin]\nccqs_max = 1000\n"
    )
    path.write_text(roles + path.read_text())
    found = TokenStore(path)
    ann, bea = found.of_token(token), found.of_token(other)
    assert ann is not None
    assert bea is not None
    assert dict(ann.quotas) == {"ccqs_max": 9, "interval_min_s": 0.5, "vertices_max": 7}
    assert dict(bea.quotas) == {"ccqs_max": 9, "interval_min_s": 0.5, "vertices_max": 1000}
    quotas = QuotaResolver(Quotas(calls_max=3)).of(ann)
    assert quotas == Quotas(ccqs_max=9, interval_min_s=0.5, vertices_max=7, calls_max=3)
    # A writer keeps the entries of others.
    before = read(path)
    add(path, BOB)
    remove(path, "bob")
    assert read(path) == before
    assert dict(before.principals[digest_of(token)].quotas) == {"vertices_max": 7}


def test_token_store_expired_token_is_unauthenticated(path: Path) -> None:
    token = add(path, replace(ANN, expires_at=1_000.0))
    now = [999.0]
    found = TokenStore(path, wall=lambda: now[0])
    assert found.of_token(token) == replace(ANN, expires_at=1_000.0)
    now[0] = 1_000.0
    with pytest.raises(Unauthenticated):
        found.of_token(token)
    for text, at in (("1970-01-02", 86_400.0), ("1970-01-01T02:00:00+01:00", 3_600.0)):
        path.write_text(re.sub("(?m)^expires = .*$", f"expires = {text}", path.read_text()))
        [one] = read(path).principals.values()
        assert one.expires_at == at
