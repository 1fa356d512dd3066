"""A private certificate authority for one cluster.

It creates X.509 certificates in PEM. Another authority works as well if its certificates name their
subject in the same way: a node's by the URI `galileo:node:NAME`, a client's by
`galileo:client:NAME`. Needs the package `cryptography` of the extra `server`.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from galileo.durable_files import replace_file
from galileo.errors import InputError
from galileo.optional_imports import library

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CERTIFICATE, KEY = "certificate.pem", "key.pem"
AUTHORITY, AUTHORITY_KEY = "authority.pem", "authority.key"
AUTHORITY_DAYS = 3_650
DAYS = 365
DAYS_MAX = 36_500
HOSTS_MAX = 64
PUBLIC = 0o644
"""Mode of files that everyone may read."""

_NAME = re.compile(r"(?!\.+$)[a-z0-9_.-]{1,64}")
"""Also of a directory: none that means another one."""
_HOST = re.compile(r"[A-Za-z0-9_*.-]{1,253}")
_BACKDATED = datetime.timedelta(minutes=5)
"""Accepted difference between the clocks of two machines."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject and validity of a certificate.

    Attributes:
        kind: "node" (server and client) or "client".
        name: of the node or client.
        hosts: host names and addresses of a node.
        valid_from: start of the validity; now by default.
        days: length of the validity.
    """

    kind: Literal["node", "client"]
    name: str
    hosts: Sequence[str] = ()
    valid_from: datetime.datetime | None = None
    days: int = DAYS


def make_authority(directory: Path, *, cluster: str, days: int = AUTHORITY_DAYS) -> Path:
    """Creates key and certificate of an authority; returns the certificate's path.

    Raises:
        InputError: there is one already, or a value is wrong.
        MissingExtra: the extra `server` is missing.
    """
    x509, hashes, oid = _library()
    _check_name(cluster)
    _check_days(days)
    if (directory / AUTHORITY_KEY).exists():
        raise InputError(
            f"expected no authority in {directory}, which has one: certificates of two "
            "authorities do not trust each other; choose another directory",
            expected="no_authority",
        )
    key = _new_key()
    name = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, f"authority of {cluster}")])
    builder = _dated(x509.CertificateBuilder(), days=days, begins=None)
    certificate = (
        builder.subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_authority_usage(x509), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _make_directory(directory)
    replace_file(directory / AUTHORITY_KEY, _pem_of_key(key))
    replace_file(directory / AUTHORITY, _pem(certificate), mode=PUBLIC)
    return directory / AUTHORITY


def issue(authority: Path, subject: Subject, *, target: Path) -> Path:
    """Issues key and certificate of a node or client, with a copy of the authority's certificate.

    Existing files are replaced; running processes read the new ones.

    Args:
        authority: the directory of an authority.
        subject: the subject of the certificate.
        target: a directory for the three files.

    Raises:
        InputError: there is no authority, or a value is wrong.
        MissingExtra: the extra `server` is missing.
    """
    x509, hashes, oid = _library()
    _check_subject(subject)
    issuer, signing = _opened(authority)
    key = _new_key()
    usages = [oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    if subject.kind == "node":
        usages.append(oid.ExtendedKeyUsageOID.SERVER_AUTH)
    common_name = x509.NameAttribute(oid.NameOID.COMMON_NAME, subject.name)
    certificate = (
        _dated(x509.CertificateBuilder(), days=subject.days, begins=subject.valid_from)
        .subject_name(x509.Name([common_name]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(_names(x509, subject)), critical=False)
        .sign(signing, hashes.SHA256())
    )
    _make_directory(target)
    replace_file(target / KEY, _pem_of_key(key))
    replace_file(target / CERTIFICATE, _pem(certificate), mode=PUBLIC)
    replace_file(target / AUTHORITY, _pem(issuer), mode=PUBLIC)
    return target


def _make_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _library() -> tuple[Any, Any, Any]:
    purpose = "making certificates"
    x509 = library("cryptography.x509", purpose=purpose)
    hashes = library("cryptography.hazmat.primitives.hashes", purpose=purpose)
    oid = library("cryptography.x509.oid", purpose=purpose)
    return x509, hashes, oid


def _opened(directory: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """The authority's certificate and key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificate((directory / AUTHORITY).read_bytes())
        key = load_pem_private_key((directory / AUTHORITY_KEY).read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise InputError(
            f"expected an authority in {directory}, {AUTHORITY} and {AUTHORITY_KEY}; make one by "
            f"galileo ca create {directory}",
            expected="authority",
        ) from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise InputError(f"expected an elliptic key in {directory / AUTHORITY_KEY}, got another")
    return certificate, key


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_of_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _authority_usage(x509: Any) -> Any:
    """The key usage of an authority."""
    others = dict.fromkeys(
        (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(key_cert_sign=True, crl_sign=True, **others)


def _dated(builder: Any, *, days: int, begins: datetime.datetime | None) -> Any:
    start = begins or datetime.datetime.now(datetime.UTC) - _BACKDATED
    return builder.not_valid_before(start).not_valid_after(start + datetime.timedelta(days=days))


def _names(x509: Any, subject: Subject) -> list[Any]:
    uri = x509.UniformResourceIdentifier(f"galileo:{subject.kind}:{subject.name}")
    addresses = {host: _ip_address(host) for host in subject.hosts}
    return [
        uri,
        *(x509.IPAddress(ip) if ip else x509.DNSName(host) for host, ip in addresses.items()),
    ]


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _check_subject(subject: Subject) -> None:
    _check_name(subject.name)
    _check_days(subject.days)
    if subject.kind == "node" and not 1 <= len(subject.hosts) <= HOSTS_MAX:
        raise InputError(
            f"expected 1 to {HOSTS_MAX} names or addresses under which the node {subject.name} is "
            f"reached, got {len(subject.hosts)}; those who connect check them",
            expected="hosts",
            bound=HOSTS_MAX,
        )
    for host in subject.hosts:
        if not _HOST.fullmatch(host) and _ip_address(host) is None:
            raise InputError(
                f"expected the name or address of a host, without port, got {host!r}",
                expected="host",
            )


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"expected a name of a-z, 0-9, '_', '.', '-', got {name!r}", expected="name"
        )


def _check_days(days: int) -> None:
    if not 1 <= days <= DAYS_MAX:
        raise InputError(
            f"expected 1 to {DAYS_MAX:,} days, got {days}", expected="days", bound=DAYS_MAX
        )
