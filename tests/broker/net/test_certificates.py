import ssl
import stat
import subprocess
import time

import pytest
from cryptography import x509

from pairbus.broker.net.certificates import CertificateError, ensure

NOW = 1_700_000_000.0
DAY = 86400.0


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(path):
    named = certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(general.value) for general in named}


def test_made_at_first_start_and_kept(tmp_path):
    folder = tmp_path / "data"
    made = ensure(folder, ["orders.example", "10.1.2.3"], NOW)
    assert len(made.made) == 2
    assert names(made.server_file) == {"localhost", "127.0.0.1", "::1", "orders.example", "10.1.2.3"}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = ensure(folder, ["10.1.2.3", "Orders.example", "localhost", "0.0.0.0", "::"], NOW + DAY)
    assert again.made == ()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert set(before) == {"ca.pem", "ca-key.pem", "server.pem"}


def test_only_the_owner_reads_the_keys(tmp_path):
    folder = tmp_path / "data"
    ensure(folder, [], NOW)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {"ca.pem": 0o644, "ca-key.pem": 0o600, "server.pem": 0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_lifetimes(tmp_path):
    made = ensure(tmp_path, [], NOW)
    server, ca = certificate(made.server_file), certificate(made.ca_file)
    assert (server.not_valid_after_utc - server.not_valid_before_utc).days == 397
    assert (ca.not_valid_after_utc - ca.not_valid_before_utc).days == 3650
    assert server.not_valid_before_utc.timestamp() < NOW


@pytest.mark.parametrize(
    ("days", "server_again", "authority_again"),
    [(0, False, False), (366, False, False), (368, True, False), (3619, True, False), (3621, True, True)],
)  # fmt: skip
def test_renewed_when_little_is_left(tmp_path, days, server_again, authority_again):
    made = ensure(tmp_path, [], NOW)
    ca, server = made.ca_file.read_bytes(), made.server_file.read_bytes()
    later = ensure(tmp_path, [], NOW + days * DAY)
    assert (later.server_file.read_bytes() != server) is server_again
    assert (later.ca_file.read_bytes() != ca) is authority_again
    assert len(later.made) == server_again + authority_again
    left = certificate(later.server_file).not_valid_after_utc.timestamp() - (NOW + days * DAY)
    assert left > 30 * DAY
    assert certificate(later.server_file).not_valid_after_utc <= certificate(later.ca_file).not_valid_after_utc


def test_renewed_when_the_names_change(tmp_path):
    ensure(tmp_path, ["a.example"], NOW)
    later = ensure(tmp_path, ["b.example"], NOW)
    assert later.made == ("server certificate: the names changed",)
    assert "b.example" in names(later.server_file)


def test_a_clock_that_was_wrong(tmp_path):
    ensure(tmp_path, [], NOW + 1000 * DAY)
    assert len(ensure(tmp_path, [], NOW).made) == 2


@pytest.mark.parametrize(
    ("name", "content"), [("ca.pem", b""), ("ca-key.pem", b"junk"), ("server.pem", b"half"), ("ca-key.pem", None)]
)
def test_what_is_broken_is_made_again(tmp_path, name, content):
    made = ensure(tmp_path, [], NOW)
    if content is None:  # the key of another authority
        content = (ensure(tmp_path / "other", [], NOW).ca_file.parent / name).read_bytes()
    (tmp_path / name).write_bytes(content)
    later = ensure(tmp_path, [], NOW)
    assert later.made
    later.server_context()
    certificate(later.server_file).verify_directly_issued_by(certificate(made.ca_file))


def test_a_server_certificate_of_another_authority_is_replaced(tmp_path):
    made, other = ensure(tmp_path / "a", [], NOW), ensure(tmp_path / "b", [], NOW)
    made.server_file.write_bytes(other.server_file.read_bytes())
    assert ensure(tmp_path / "a", [], NOW).made == ("server certificate: the authority is another one",)


@pytest.mark.parametrize("wrong", [["grün.example"], [""], ["x" * 254], [f"n{i}" for i in range(100)]])
def test_names_that_no_certificate_can_hold(tmp_path, wrong):
    with pytest.raises(CertificateError):
        ensure(tmp_path, wrong, NOW)


def test_openssl_verifies_it(tmp_path):
    made = ensure(tmp_path, ["orders.example"], time.time())
    for check in (["-verify_hostname", "orders.example"], ["-verify_ip", "127.0.0.1"], ["-verify_ip", "::1"]):
        command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", made.ca_file, *check]
        done = subprocess.run([*command, made.server_file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "orders.example"])
def test_python_verifies_it(tmp_path, name):
    made = ensure(tmp_path, ["orders.example"], time.time())
    client = ssl.create_default_context(cafile=str(made.ca_file))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    assert shake_hands(client, made.server_context(), name) in ("TLSv1.3", "TLSv1.2")


def test_python_refuses_another_name_or_authority(tmp_path):
    made = ensure(tmp_path / "a", [], time.time())
    other = ensure(tmp_path / "b", [], time.time())
    for trusted, name in ((made, "other.example"), (other, "localhost")):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(ssl.create_default_context(cafile=str(trusted.ca_file)), made.server_context(), name)


def test_old_tls_is_refused(tmp_path):
    made = ensure(tmp_path, [], time.time())
    assert made.server_context().minimum_version == ssl.TLSVersion.TLSv1_2


def shake_hands(client_context, server_context, name):
    """In memory, no socket."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        waiting = 0
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waiting += 1
        if not waiting:
            return client.version()
    raise AssertionError("no end to the handshake")
