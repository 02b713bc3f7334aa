"""Creates and renews the broker's own certificate authority and server certificate, kept in the data folder.

It decides when either has to be replaced; callers pass the time. Files:

    ca.pem        0644   the authority's certificate: what clients trust (`connection_verify=`, NODE_EXTRA_CA_CERTS)
    ca-key.pem    0600   its key
    server.pem    0600   the server's key and certificate, in one file so that they are replaced together

Everything is ECDSA on P-256. The authority is for this data folder only, and is never added to a system's trust store.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pairbus.broker.storage.durable_files import write_file
from pairbus.errors import PairbusError
from pairbus.journal.files import make_folder

CA_DAYS = 3650
# What Apple and the browsers take at most for a server is 398.
SERVER_DAYS = 397
RENEW_DAYS = 30
NAMES_MAX = 100
ALWAYS_NAMED = ("localhost", "127.0.0.1", "::1")

_SKEW = timedelta(hours=1)


class CertificateError(PairbusError):
    """Certificates can't be made or read."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of the certificates."""

    ca_file: Path
    server_file: Path
    made: tuple[str, ...]
    """What was made anew this time, and why; for the log."""

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.load_cert_chain(self.server_file)
        return context


def ensure(folder: Path, names: Iterable[str], now: float) -> Certificates:
    """Return the certificates in `folder`, made or renewed where they must be, for these host names and addresses."""
    make_folder(str(folder))
    wanted = _general_names([*ALWAYS_NAMED, *names])
    moment = datetime.fromtimestamp(now, UTC)
    made: list[str] = []

    authority = _load_authority(folder)
    reason = "there was none" if authority is None else _stale(authority[0], moment)
    if authority is None or reason is not None:
        authority = _make_authority(folder, moment)
        made.append(f"authority: {reason}")
    ca, ca_key = authority

    server = _load_server(folder)
    reason = _server_reason(server, ca, wanted, moment)
    if reason is not None:
        _make_server(folder, ca, ca_key, wanted, moment)
        made.append(f"server certificate: {reason}")
    return Certificates(folder / "ca.pem", folder / "server.pem", tuple(made))


def _stale(certificate: x509.Certificate, moment: datetime) -> str | None:
    if moment < certificate.not_valid_before_utc:
        return f"it is valid only from {certificate.not_valid_before_utc:%Y-%m-%d}"
    if certificate.not_valid_after_utc - moment < timedelta(days=RENEW_DAYS):
        return f"it runs out on {certificate.not_valid_after_utc:%Y-%m-%d}"
    return None


def _server_reason(
    server: x509.Certificate | None, ca: x509.Certificate, wanted: Sequence[x509.GeneralName], moment: datetime
) -> str | None:
    if server is None:
        return "there was none"
    try:
        server.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return "the authority is another one"
    try:
        named = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return "it names no host"
    if set(named) != set(wanted):
        return "the names changed"
    return _stale(server, moment)


def _general_names(names: Iterable[str]) -> list[x509.GeneralName]:
    result: list[x509.GeneralName] = []
    for name in dict.fromkeys(name.strip().lower() for name in names):
        general: x509.GeneralName
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            try:
                general = x509.DNSName(name)
            except ValueError:
                raise CertificateError(f"{name!r} can't stand in a certificate; give an ASCII host name") from None
            if not name or len(name) > 253:
                raise CertificateError(f"{name!r} is no host name: 1 to 253 characters") from None
        else:
            if address.is_unspecified:
                continue
            general = x509.IPAddress(address)
        result.append(general)
    if len(result) > NAMES_MAX:
        raise CertificateError(f"{len(result)} names for one certificate; at most {NAMES_MAX}")
    return result


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "pairbus"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _key_usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificates,
        crl_sign=certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _make_authority(folder: Path, moment: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The serial in the name: two authorities of one machine must not be taken for each other.
    name = _name(f"pairbus local authority {serial & 0xFFFFFFFF:08x}")
    start = moment - _SKEW
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    # The key first: a crash in between leaves a pair that does not match, and the next start makes both again.
    write_file(folder / "ca-key.pem", _key_pem(key), 0o600)
    write_file(folder / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return certificate, key


def _make_server(
    folder: Path,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName],
    moment: datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    start = max(moment - _SKEW, ca.not_valid_before_utc)
    issuer = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name("pairbus broker"))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(min(start + timedelta(days=SERVER_DAYS), ca.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = _key_pem(key) + certificate.public_bytes(serialization.Encoding.PEM)
    write_file(folder / "server.pem", pem, 0o600)


def _load_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((folder / "ca-key.pem").read_bytes(), None)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        return None
    return certificate, key


def _load_server(folder: Path) -> x509.Certificate | None:
    try:
        pem = (folder / "server.pem").read_bytes()
        key = serialization.load_pem_private_key(pem, None)
        certificate = x509.load_pem_x509_certificate(pem)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return certificate if key.public_key() == certificate.public_key() else None


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
