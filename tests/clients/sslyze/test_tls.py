"""TLS of the edge, as sslyze sees it, held against Mozilla's intermediate profile, and client certificates of OpenSSL and
GnuTLS.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTPS                     where the edge takes TLS: address and port
CULVERT_CA                        file with the authority of its certificates
"""

import datetime
import itertools
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

HOST = "tls.culvert.localhost"
POLICY = "on_http_request: [{actions: [{type: custom-response, config: {body: hello}}]}]"


MUTUAL = "mutual.culvert.localhost"
ADDRESS, PORT = os.environ["CULVERT_HTTPS"].rsplit(":", 1)
REQUEST = f"GET / HTTP/1.1\r\nhost: {MUTUAL}\r\nconnection: close\r\n\r\n".encode()


def endpoint(host, policy):
    request = urllib.request.Request(
        os.environ["CULVERT_API_URL"] + "/endpoints",
        data=json.dumps({"url": f"https://{host}", "traffic_policy": policy}).encode(),
        headers={
            "Authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 201


def certificate(folder, name, key, issuer=None):
    """Writes a certificate with its key to two files and returns its name and key, as the issuer of others."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    by, by_key = issuer or (subject, key)
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(by_key, hashes.SHA256())
    )
    (folder / f"{name}.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ))
    return subject, by_key


class Tls(unittest.TestCase):
    def test_client_certificates(self):
        with tempfile.TemporaryDirectory() as folder:
            self.client_certificates(pathlib.Path(folder))

    def client_certificates(self, folder):
        issuer = certificate(folder, "issuer", ec.generate_private_key(ec.SECP256R1()))
        certificate(folder, "stranger", ec.generate_private_key(ec.SECP256R1()))
        keys = {
            "p256": ec.generate_private_key(ec.SECP256R1()),
            "p384": ec.generate_private_key(ec.SECP384R1()),
            "ed25519": ed25519.Ed25519PrivateKey.generate(),
            "rsa": rsa.generate_private_key(65_537, 2_048),
        }
        for name, key in keys.items():
            certificate(folder, name, key, issuer)
        endpoint(MUTUAL, json.dumps({
            "on_tcp_connect": [{"actions": [{"type": "terminate-tls", "config": {
                "mutual_tls_certificate_authorities": [(folder / "issuer.crt").read_text()],
            }}]}],
            "on_http_request": [{"actions": [{"type": "custom-response", "config": {
                "body": "${conn.tls.client.subject.common_name} with ${conn.tls.version}",
            }}]}],
        }))
        # Unknown hosts are served too, so the first responses may be those of a host without an endpoint.
        while b" 404 " in self.by_openssl(folder, "p256", "1.3"):
            pass
        for name, version in itertools.product(keys, ("1.2", "1.3")):
            expected = f"{name} with {version}".encode()
            self.assertTrue(self.by_openssl(folder, name, version).endswith(expected), (name, version))
            if shutil.which("gnutls-cli"):
                self.assertIn(expected, self.by_gnutls(folder, name, version))
        for name, version in itertools.product((None, "stranger"), ("1.2", "1.3")):
            with self.assertRaises((ssl.SSLError, ConnectionError), msg=(name, version)):
                self.by_openssl(folder, name, version)
        if not shutil.which("gnutls-cli"):
            return print("skipped: gnutls-cli is not here")
        print(f"client certificates: {len(keys)} kinds of keys, by OpenSSL and GnuTLS")

    @staticmethod
    def by_openssl(folder, name, version):
        tls = ssl.create_default_context(cafile=os.environ["CULVERT_CA"])
        tls.minimum_version = tls.maximum_version = getattr(ssl.TLSVersion, "TLSv" + version.replace(".", "_"))
        if name:
            tls.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
        stream = socket.create_connection((ADDRESS, int(PORT)), timeout=60)
        with tls.wrap_socket(stream, server_hostname=MUTUAL) as stream:
            stream.sendall(REQUEST)
            return b"".join(iter(lambda: stream.recv(65_536), b""))

    @staticmethod
    def by_gnutls(folder, name, version):
        client = subprocess.Popen(
            [
                "gnutls-cli", "--x509cafile", os.environ["CULVERT_CA"], f"--priority=NORMAL:-VERS-ALL:+VERS-TLS{version}",
                f"--sni-hostname={MUTUAL}", f"--verify-hostname={MUTUAL}", "--x509certfile", folder / f"{name}.crt",
                "--x509keyfile", folder / f"{name}.key", f"--port={PORT}", ADDRESS,
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        # Its input stays open until the edge closes the connection.
        client.stdin.write(REQUEST)
        client.stdin.flush()
        said = client.stdout.read()
        client.stdin.close()
        client.stdout.close()
        client.wait()
        return said

    def test_it_is_as_the_profile_wants_it(self):
        endpoint(HOST, POLICY)
        scan = subprocess.run(
            [
                sys.executable, "-m", "sslyze", "--mozilla_config=intermediate",
                "--certinfo_ca_file", os.environ["CULVERT_CA"], f"{HOST}:{PORT}{{{ADDRESS}}}",
            ],
            capture_output=True, text=True, timeout=600,
        )
        self.assertIn("OK - Compliant.", scan.stdout, scan.stdout + scan.stderr)
        self.assertEqual(scan.returncode, 0)
        print("compliant with Mozilla's intermediate profile")


if __name__ == "__main__":
    unittest.main()
