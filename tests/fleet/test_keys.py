"""A fleet's keys and certificates, and the errors of the fleet's commands."""

import contextlib
import datetime
import socket
import ssl
import stat

import pytest
from cryptography.x509 import load_pem_x509_certificate

from fleet import keys, launch
from fleet.cli import main
from fleet.secure_aggregation.primitives import identity_public
from fleet.settings import read_identity
from plan_runner.errors import PlanError
from tests.support import golden


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    sent = [keys.make_node_keys(folder / name, name) for name in ("b", "a")]
    keys.make_server_keys(folder / "server", ["fleet.example"], sent, 30)
    return folder


def test_secret_files_are_private_and_distinct(fleet):
    for path in fleet.rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for path in fleet.rglob("*.secret"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(path.read_bytes()) == 32
    assert len({path.read_bytes() for path in fleet.rglob("*.secret")}) == 3
    expected = {
        name: identity_public(read_identity(fleet / name / keys.IDENTITY)).hex() for name in "ab"
    }
    roster = (fleet / "server" / keys.ROSTER).read_text()
    assert roster == "".join(f'{name} = "{key}"\n' for name, key in expected.items())


def _handshake_error(server, authority, name):
    """Returns the client's error in a strict TLS handshake; None if it succeeds."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / keys.CERTIFICATE, server / keys.CERTIFICATE_KEY)
    strict = ssl.create_default_context(cafile=authority)
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = strict.wrap_bio(received, sent, server_hostname=name)
    try:
        for end in [client, context.wrap_bio(sent, received, server_side=True)] * 2:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as e:
        return e.verify_message
    assert client.getpeercert()
    return None


def test_certificate_is_valid_for_its_names_only(fleet, tmp_path):
    server = fleet / "server"
    for name in ("fleet.example", "localhost", "127.0.0.1"):
        assert _handshake_error(server, server / keys.AUTHORITY, name) is None
    assert "mismatch" in _handshake_error(server, server / keys.AUTHORITY, "other.example")
    sent = keys.make_node_keys(tmp_path / "n", "n")
    keys.make_server_keys(tmp_path / "s", ["fleet.example"], [sent], 30)
    assert _handshake_error(server, tmp_path / "s" / keys.AUTHORITY, "fleet.example") is not None


def test_renewed_certificate_keeps_authority(fleet, tmp_path):
    sent = [keys.make_node_keys(tmp_path / name, name) for name in ("c", "d")]
    server = tmp_path / "server"
    keys.make_server_keys(server, ["one.example"], sent[:1], 30)
    kept = [(server / name).read_bytes() for name in (keys.AUTHORITY, keys.TASKS_SECRET)]
    keys.make_server_keys(server, ["one.example"], sent[1:], 60)
    assert kept == [(server / name).read_bytes() for name in (keys.AUTHORITY, keys.TASKS_SECRET)]
    assert [path.name for path in (server / keys.NODES).iterdir()] == ["d.pub"]
    certificate = load_pem_x509_certificate((server / keys.CERTIFICATE).read_bytes())
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(59) < left < datetime.timedelta(61)


def test_expired_certificate_raises(fleet, tmp_path, monkeypatch):
    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + datetime.timedelta(31)

    monkeypatch.setattr(keys.datetime, "datetime", Later)
    with pytest.raises(PlanError, match="expected a certificate that is valid today"):
        keys.read_certificate(fleet / "server" / keys.CERTIFICATE)


@golden.arguments
def test_command_rejects_invalid_flags(fleet, arguments, capsys):
    assert main([argument.format(fleet) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not (fleet / "x").exists()
    return line


def test_used_port_or_missing_server_raises(fleet):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PlanError, match=f"127.0.0.1:{port}: expected a free port"):
            launch.check_port("127.0.0.1", port)
    with pytest.raises(PlanError, match="expected the fleet's server, cannot reach it"):
        launch.check_server("127.0.0.1", port, fleet / "server" / keys.AUTHORITY)
