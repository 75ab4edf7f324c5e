"""The listener's certificate: self-signed, made in memory for one run, sent inside the invitation.

Clients get the certificate over Flower's own connection and accept no other, so no authority signs it and its
name is constant. A proxy that routes by path must end the clients' TLS. Clients then get the authority that
signed the proxy's certificate, over the same connection, and check that instead.
"""

import os
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedgc.errors import BadSetting

SERVER_NAME: Final = "fedgc-session"
_LIFE: Final = timedelta(days=400)
_SLACK: Final = timedelta(days=1)  # clocks of clients differ


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, both PEM."""

    public: bytes
    private: bytes

    @classmethod
    def of(cls, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> "Certificate":
        """Encode both."""
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(certificate.public_bytes(serialization.Encoding.PEM), private)


def make_certificate(now: float) -> Certificate:
    """Return a new self-signed certificate, valid around `now` (seconds since 1970)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    moment = datetime.fromtimestamp(now, UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - _SLACK)
        .not_valid_after(moment + _LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Certificate.of(certificate, key)


def authority_at(path: str) -> bytes:
    """Return the certificate in the file named by the setting `links.authority`; empty without a file."""
    if not path:
        return b""
    try:
        public = Path(path).read_bytes()
        x509.load_pem_x509_certificate(public)
    except OSError as error:
        raise BadSetting(
            f"setting links.authority: {path}: {error.strerror}, needed a certificate's file"
        ) from error
    except ValueError as error:
        raise BadSetting(f"setting links.authority: {path}: needed a certificate in PEM ({error})") from error
    return public


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """Return the TLS settings of a listener with this certificate.

    OpenSSL reads the private key from a file: it lies there for a moment, encrypted.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a client that comes again has a ticket of the session, not of TLS
    password = os.urandom(32).hex().encode()
    key = serialization.load_pem_private_key(certificate.private, None)
    sealed = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(certificate.public + sealed)
        file.flush()
        context.load_cert_chain(file.name, password=password)
    return context


def client_context(trusted: bytes) -> ssl.SSLContext:
    """Return the TLS settings of a client that trusts these certificates, in PEM, and no other.

    They need not be roots: an authority between is enough.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    certificates = x509.load_pem_x509_certificates(trusted)
    context.load_verify_locations(
        cadata=b"".join(each.public_bytes(serialization.Encoding.DER) for each in certificates)
    )
    context.set_alpn_protocols(["http/1.1"])
    return context


def fingerprint(public: bytes) -> bytes:
    """Return the SHA-256 of a PEM certificate, by which a signed hello names its server."""
    return x509.load_pem_x509_certificate(public).fingerprint(hashes.SHA256())
