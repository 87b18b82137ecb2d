"""Keys and certificates of a fleet: an authority, a server's certificate, nodes' keys.

A node's secrets are created on the node's machine and stay there. The node's operator sends
`NAME.public.toml` to the server's operator, who sends back `ca.crt` and `roster.toml`. These three
files contain no secrets.
"""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Union

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet.secure_aggregation.sessions import remove_partial_files, replace_file
from fleet.settings import check_digest, read_toml
from plan_runner.errors import PlanError

AUTHORITY, AUTHORITY_KEY = "ca.crt", "ca.key"
CERTIFICATE, CERTIFICATE_KEY = "server.crt", "server.key"
# Secret that authenticates the processes that take tasks from a SuperLink or SuperNode.
TASKS_SECRET = "tasks.secret"
IDENTITY, NODE_KEY, ROSTER = "identity.key", "node.key", "roster.toml"
# Folder of the nodes' login keys, NAME.pub.
NODES = "nodes"
PUBLIC = ".public.toml"

_AUTHORITY_DAYS = 3650
_SECRET_BYTES = 32
_LOOPBACK = ("localhost", "127.0.0.1")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_DAY = datetime.timedelta(days=1)
# A node whose clock is a few minutes slow must accept a new certificate.
_CLOCKS_DIFFER = datetime.timedelta(hours=1)
_Certificate = x509.Certificate


@dataclasses.dataclass(frozen=True)
class NodePublic:
    """The public keys of a node.

    Attributes:
        name: Name of the node in the roster.
        identity: Ed25519 public key for the node's signatures, as 64 hexadecimal digits.
        login: Public key with which the node logs in to Flower, in OpenSSH format.
    """

    name: str
    identity: str
    login: str


def make_node_keys(folder: Path, name: str) -> Path:
    """Creates a node's secrets in a folder without keys; returns the path of the public file."""
    _check_name(name)
    remove_partial_files(folder)
    if (folder / IDENTITY).exists():
        raise PlanError(f"{folder}: expected a folder without keys, found {IDENTITY}")
    identity = ed25519.Ed25519PrivateKey.generate()
    login = ec.generate_private_key(ec.SECP384R1())
    _write(folder / IDENTITY, f"{identity.private_bytes_raw().hex()}\n".encode())
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH)
    _write(folder / NODE_KEY, login.private_bytes(*pem, serialization.NoEncryption()))
    _write(folder / TASKS_SECRET, secrets.token_bytes(_SECRET_BYTES))
    openssh = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    line = login.public_key().public_bytes(*openssh).decode()
    public = NodePublic(name, identity.public_key().public_bytes_raw().hex(), line)
    lines = [f'{key} = "{value}"\n' for key, value in dataclasses.asdict(public).items()]
    sent = folder / f"{name}{PUBLIC}"
    _write(sent, "".join(lines).encode(), mode=0o644)
    return sent


def make_server_keys(folder: Path, hosts: Sequence[str], nodes: Sequence[Path], days: int) -> None:
    """Creates a server's keys, certificate and roster; keeps an existing authority and secret.

    Args:
        hosts: Names and addresses by which nodes reach the server.
        nodes: Public files that `make_node_keys` wrote.
        days: Validity of the certificate.
    """
    publics = read_publics(nodes)
    remove_partial_files(folder)
    if not (folder / AUTHORITY).exists():
        key = ec.generate_private_key(ec.SECP256R1())
        _write(folder / AUTHORITY_KEY, _pem(key))
        authority = _authority(key)
        _write(folder / AUTHORITY, authority.public_bytes(serialization.Encoding.PEM), mode=0o644)
    if not (folder / TASKS_SECRET).exists():
        _write(folder / TASKS_SECRET, secrets.token_bytes(_SECRET_BYTES))
    authority = read_certificate(folder / AUTHORITY)
    server_key = ec.generate_private_key(ec.SECP256R1())
    certificate = _server_certificate(
        server_key, authority, _read_key(folder / AUTHORITY_KEY), hosts, days
    )
    _write(folder / CERTIFICATE_KEY, _pem(server_key))
    _write(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
    for stale in (folder / NODES).glob("*.pub"):
        stale.unlink()
    for public in publics:
        _write(folder / NODES / f"{public.name}.pub", f"{public.login}\n".encode(), mode=0o644)
    roster = "".join(f'{public.name} = "{public.identity}"\n' for public in publics)
    _write(folder / ROSTER, roster.encode(), mode=0o644)


def read_publics(files: Sequence[Path]) -> list[NodePublic]:
    """Reads nodes' public files, sorted by node name.

    Raises:
        PlanError: No file is given, a file is malformed, or two nodes have the same name or key.
    """
    publics = sorted((_read_public(file) for file in files), key=lambda public: public.name)
    if not publics:
        raise PlanError(f"expected files NAME{PUBLIC} of nodes, found none")
    for field in dataclasses.fields(NodePublic):
        values = [getattr(public, field.name) for public in publics]
        if len(set(values)) != len(values):
            raise PlanError(f"{field.name}: expected distinct values, found one twice")
    return publics


def read_certificate(path: Path) -> _Certificate:
    """Reads a certificate, which must be valid today."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as e:
        raise PlanError(f"{path}: expected a certificate, cannot read it ({e.strerror})") from e
    except ValueError as e:
        raise PlanError(f"{path}: expected a certificate, found invalid PEM") from e
    now = datetime.datetime.now(datetime.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise PlanError(
            f"{path}: expected a certificate that is valid today, {now:%Y-%m-%d}, found one that "
            f"is valid from {certificate.not_valid_before_utc:%Y-%m-%d} to {expiry(certificate)}: "
            "./run fleet keys --server=HOSTS creates a new one"
        )
    return certificate


def expiry(certificate: _Certificate) -> str:
    """Returns the last day on which a certificate is valid, as YYYY-MM-DD."""
    return f"{certificate.not_valid_after_utc:%Y-%m-%d}"


def _read_public(path: Path) -> NodePublic:
    fields = [field.name for field in dataclasses.fields(NodePublic)]
    table = read_toml(path)
    if set(table) != set(fields) or not all(isinstance(value, str) for value in table.values()):
        raise PlanError(f"{path}: expected strings {', '.join(fields)}, found {', '.join(table)}")
    public = NodePublic(**table)
    _check_name(public.name, f"{path}: name: ")
    check_digest(public.identity, f"{path}: identity")
    try:
        key = serialization.load_ssh_public_key(public.login.encode())
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or "\n" in public.login:
        raise PlanError(f"{path}: login: expected a line of OpenSSH with a key of P-384")
    return public


def is_name(name: str) -> bool:
    """Whether a node may have this name."""
    return _NAME.fullmatch(name) is not None


def _check_name(name: str, where: str = "") -> None:
    if not is_name(name):
        raise PlanError(
            f"{where}expected a name of at most 64 letters, digits, _ and -, found {name!r}"
        )


def _authority(key: ec.EllipticCurvePrivateKey) -> _Certificate:
    name = _name("fleet")
    builder = _builder(name, name, key.public_key(), _AUTHORITY_DAYS)
    # Strict clients, such as Python 3.13 and later, require these extensions.
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    return builder.sign(key, hashes.SHA256())


def _server_certificate(
    key: ec.EllipticCurvePrivateKey,
    authority: _Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: int,
) -> _Certificate:
    if datetime.datetime.now(datetime.UTC) + days * _DAY > authority.not_valid_after_utc:
        raise PlanError(
            f"days: expected a certificate that ends before its authority's, {expiry(authority)}, "
            f"found {days}"
        )
    builder = _builder(_name(hosts[0]), authority.subject, key.public_key(), days)
    # The server's own processes connect to the loopback names.
    names = [_general_name(host) for host in dict.fromkeys((*hosts, *_LOOPBACK))]
    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    for extension, critical in (
        (x509.SubjectAlternativeName(names), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (authority_id, False),
    ):
        builder = builder.add_extension(extension, critical)
    return builder.sign(authority_key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
    )
    builder = builder.not_valid_before(now - _CLOCKS_DIFFER).not_valid_after(now + days * _DAY)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(host: str) -> Union[x509.DNSName, x509.IPAddress]:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9*]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", host):
        raise PlanError(f"expected a host's name or address, found {host!r}")
    return x509.DNSName(host)


def _usage(**given: bool) -> x509.KeyUsage:
    names = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: given.get(name, False) for name in names})


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    return key.private_bytes(*form, serialization.NoEncryption())


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (TypeError, ValueError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PlanError(f"{path}: expected a private key of an elliptic curve in PEM")
    return key


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, content, mode)
