from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509
from expected_errors import raises

from galileo.errors import InputError
from galileo.private_ca import Subject, issue, make_authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_authority(tmp_path_factory.mktemp("made") / "authority", cluster="plains")
    return made.parent


def test_issue_certificate_has_names_of_subject(authority: Path, tmp_path: Path) -> None:
    node = issue(
        authority, Subject("node", "n-1", ["10.0.0.1", "fd00::1", "n-1.example"]), target=tmp_path
    )
    found = x509.load_pem_x509_certificate((node / "certificate.pem").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == [
        "10.0.0.1",
        "fd00::1",
    ]
    assert names.get_values_for_type(x509.DNSName) == ["n-1.example"]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["galileo:node:n-1"]
    assert (found.not_valid_after_utc - found.not_valid_before_utc).days == 365
    signer = x509.load_pem_x509_certificate((node / "authority.pem").read_bytes())
    found.verify_directly_issued_by(signer)
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_issue_key_is_readable_by_owner_only(authority: Path, tmp_path: Path) -> None:
    made = issue(authority, Subject("client", "ann"), target=tmp_path / "ann")
    for path in (made / "key.pem", authority / "authority.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"PRIVATE KEY" in path.read_bytes()
    assert sorted(path.name for path in made.iterdir()) == [
        "authority.pem",
        "certificate.pem",
        "key.pem",
    ]


def test_make_authority_existing_directory_raises(authority: Path, tmp_path: Path) -> None:
    with raises(InputError, expected="no_authority"):
        make_authority(authority, cluster="plains")
    with raises(InputError, expected="authority"):
        issue(tmp_path, Subject("client", "ann"), target=tmp_path)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (Subject("client", "Ann!"), "name"),
        (Subject("node", "n"), "hosts"),
        (Subject("client", ".."), "name"),
        (Subject("node", "n", ["a b"]), "host"),
        (Subject("node", "n", ["10.0.0.1:7701"]), "host"),
        (Subject("client", "ann", days=0), "days"),
    ],
)
def test_issue_invalid_subject_raises(
    authority: Path, tmp_path: Path, subject: Subject, expected: str
) -> None:
    with raises(InputError, expected=expected):
        issue(authority, subject, target=tmp_path)
    assert list(tmp_path.iterdir()) == []
