from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509

from galileo.errors import InputError
from galileo.private_ca import Subject, issue, make_authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_authority(tmp_path_factory.mktemp("made") / "authority", cluster="plains")
    return made.parent


def test_certificates_say_whom_they_are_for(authority: Path, tmp_path: Path) -> None:
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


def test_keys_are_for_their_owner_alone(authority: Path, tmp_path: Path) -> None:
    made = issue(authority, Subject("client", "ann"), target=tmp_path / "ann")
    for path in (made / "key.pem", authority / "authority.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"PRIVATE KEY" in path.read_bytes()
    assert sorted(path.name for path in made.iterdir()) == [
        "authority.pem",
        "certificate.pem",
        "key.pem",
    ]


def test_an_authority_is_made_once(authority: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected no authority in"):
        make_authority(authority, cluster="plains")
    with pytest.raises(InputError, match="make one by galileo ca create"):
        issue(tmp_path, Subject("client", "ann"), target=tmp_path)


@pytest.mark.parametrize(
    ("subject", "complaint"),
    [
        (Subject("client", "Ann!"), "expected a name of a-z"),
        (Subject("node", "n"), "expected 1 to 64 names or addresses"),
        (Subject("client", ".."), "expected a name of a-z"),
        (Subject("node", "n", ["a b"]), "expected the name or address of a host"),
        (Subject("node", "n", ["10.0.0.1:7701"]), "of a host, without port, got '10.0.0.1:7701'"),
        (Subject("client", "ann", days=0), "expected 1 to 36,500 days, got 0"),
    ],
)
def test_what_is_wrong_is_reported(
    authority: Path, tmp_path: Path, subject: Subject, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        issue(authority, subject, target=tmp_path)
    assert list(tmp_path.iterdir()) == []
