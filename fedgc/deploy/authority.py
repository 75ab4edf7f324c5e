"""The deployment's own certificate authority.

A fleet trusts one key of its own and no public authority: clients get `ca.pem` with their own key and accept
a server only if that authority signed it for the name that they dial. Lifetimes:

    the authority            ten years; its private key is needed only to sign, and is kept off the server
    the proxy's certificate  about a year, for the names that clients dial; renewed in place
    the SuperLink's          as long as the authority's, for names that only the proxy uses: a SuperLink reads
                             its certificate once, and a restart would end the run

Every certificate has the key identifiers and usages that strict verifiers require (RFC 5280, 4.2.1).
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgc.errors import EdgeFailed, Unusable
from fedgc.links.session.certificate import Certificate

AUTHORITY_DAYS: Final = 3650
LONGEST_DAYS: Final = 825  # some verifiers refuse a server's certificate with a longer life
INSIDE: Final = ("localhost", "127.0.0.1", "::1", "server")  # the proxy and `flwr` reach a SuperLink so
SLACK: Final = timedelta(days=1)  # clocks of clients differ
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")


@dataclass(frozen=True, slots=True)
class Described:
    """The validity and the names of a certificate."""

    names: tuple[str, ...]
    begins: datetime
    ends: datetime

    def days_left(self, now: float) -> int:
        """Return the whole days until it ends; negative once it has."""
        return (self.ends - datetime.fromtimestamp(int(now), UTC)).days  # certificates have whole seconds

    def days_until(self, now: float) -> int:
        """Return the days until it begins, rounded up; 0 or less once it has."""
        return -((datetime.fromtimestamp(int(now), UTC) - self.begins).days)

    def covers(self, host: str) -> bool:
        """Return whether it is for this host name or address.

        >>> of = Described(("*.example.org", "10.0.0.1"), datetime.now(UTC), datetime.now(UTC))
        >>> [of.covers(host) for host in ("fl.example.org", "10.0.0.1", "example.org", "a.fl.example.org")]
        [True, True, False, False]
        """
        return not {host.lower(), f"*.{host.lower().partition('.')[2]}"}.isdisjoint(
            name.lower() for name in self.names
        )


def make_authority(now: float) -> Certificate:
    """Return a new authority: its certificate and its private key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("fedgc authority")
    certificate = (
        _started(name, name, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Certificate.of(certificate, key)


def issue(authority: Certificate, names: Sequence[str], now: float, days: int | None = None) -> Certificate:
    """Return a server's certificate for these names and addresses; without `days`, the authority's life."""
    alternatives = [general_name(name) for name in names]
    if not alternatives:
        raise Unusable("certificate: saw no name, needed the names or addresses that clients dial")
    if days is not None and not 1 <= days <= LONGEST_DAYS:
        raise Unusable(f"certificate: saw {days} days, needed 1 to {LONGEST_DAYS}")
    signer = read_certificate(authority.public, "authority")
    left = describe(authority.public).days_left(now)
    if left < 1:
        raise Unusable(
            "certificate: the authority is at its end; needed a new one, and its ca.pem on every client"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _started(_named(names[0][:64]), signer.subject, key.public_key(), now, min(days or left, left))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(_public(signer)),
            critical=False,
        )
        .sign(read_private_key(authority.private, "authority"), hashes.SHA256())
    )
    return Certificate.of(certificate, key)


def describe(pem: bytes) -> Described:
    """Return the names and the validity of a certificate."""
    certificate = read_certificate(pem, "certificate")
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        found = x509.SubjectAlternativeName([])
    names = tuple(str(each.value) for each in found)
    return Described(names, certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def signed_by(pem: bytes, authority: bytes) -> bool:
    """Return whether this authority signed this certificate."""
    try:
        read_certificate(pem, "certificate").verify_directly_issued_by(
            read_certificate(authority, "authority")
        )
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def general_name(name: str) -> x509.GeneralName:
    """Return a name or an address in the form that certificates use.

    >>> general_name("fl.example.org").value, str(general_name("10.0.0.1").value)
    ('fl.example.org', '10.0.0.1')
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        raise Unusable(f"certificate: saw {name!r}, needed a host's name or address, without a port")
    return x509.DNSName(name)


def read_certificate(pem: bytes, where: str) -> x509.Certificate:
    """Return the certificate in a PEM text."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise EdgeFailed(f"{where}: needed a certificate in PEM ({error})") from error


def read_private_key(pem: bytes, where: str) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a PEM text."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise EdgeFailed(f"{where}: needed a private key in PEM ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise EdgeFailed(f"{where}: saw {type(key).__name__}, needed an elliptic curve's private key")
    return key


def _public(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise EdgeFailed(f"authority: saw {type(key).__name__}, needed an elliptic curve's key")
    return key


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _started(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: float, days: int
) -> x509.CertificateBuilder:
    moment = datetime.fromtimestamp(now, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - SLACK)
        .not_valid_after(moment + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
