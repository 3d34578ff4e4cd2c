"""HAProxy on both sides of the edge: as load balancer in front of it, which announces clients with the PROXY protocol, as
service behind an agent that announces them in turn, and as upstream of HTTP/1.1 and HTTP/2.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTP, CULVERT_HTTPS       where the edge takes plain HTTP and TLS: address and port. It requires PROXY headers
CULVERT_AGENTS, CULVERT_PROGRAM   where it takes agents, and the program with ours
CULVERT_CA                        file with the authority of its certificates
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import unittest
import urllib.request

import h11

HTTP, HTTPS, CA = (os.environ["CULVERT_" + name] for name in ("HTTP", "HTTPS", "CA"))
NAMES = ["v1", "v2", "options", "tls", "passed", "sent1", "sent2", "plain", "h2c", "checked"]
# The source address of clients; the edge sees connections of 127.0.0.1.
CLIENT = "127.0.0.9"
PATIENCE = 60

CONFIGURATION = """
global
    stats socket {folder}/socket
defaults
    timeout connect 20s
    timeout client 60s
    timeout server 60s
    mode tcp
# In front of the edge.
listen v1
    bind 127.0.0.1:{v1}
    server edge {HTTP} send-proxy
listen v2
    bind 127.0.0.1:{v2}
    server edge {HTTP} send-proxy-v2
listen options
    bind 127.0.0.1:{options}
    unique-id-format %[uuid]
    server edge {HTTP} send-proxy-v2 proxy-v2-options unique-id,crc32c
listen tls
    bind 127.0.0.1:{tls} ssl crt {folder}/both.pem
    server edge {HTTP} send-proxy-v2-ssl-cn proxy-v2-options ssl,cert-cn,cert-key,cert-sig,ssl-cipher,authority,crc32c
listen passed
    bind 127.0.0.1:{passed}
    server edge {HTTPS} send-proxy-v2
# Health checks come from no client: the command LOCAL.
listen checked
    bind 127.0.0.1:{checked}
    option httpchk
    http-check send meth GET uri / ver HTTP/1.1 hdr host v2.haproxy.culvert.localhost
    http-check expect status 200
    server version1 {HTTP} check check-send-proxy send-proxy inter 200ms
    server version2 {HTTP} check check-send-proxy send-proxy-v2 inter 200ms
# Behind it.
frontend service
    mode http
    bind 127.0.0.1:{sent1} accept-proxy
    bind 127.0.0.1:{sent2} accept-proxy
    http-request return content-type text/plain lf-string "%[src]"
frontend upstream
    mode http
    bind 127.0.0.1:{plain}
    bind 127.0.0.1:{h2c} proto h2
    option http-buffer-request
    http-request return status 201 content-type text/plain lf-string "%[req.ver] %[method] %[path] %[req.fhdr(host)] %[req.fhdr(x-forwarded-for)] %[req.body]" hdr x-many a hdr x-many b
"""


def split(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


def create(path, body):
    request = urllib.request.Request(
        os.environ["CULVERT_API_URL"] + path,
        data=json.dumps(body).encode(),
        headers={
            "Authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def exchange(stream, host, method="GET", target="/", body=b""):
    """One request by h11, which accepts only answers that are correct."""
    peer = h11.Connection(h11.CLIENT)
    headers = [("host", host), ("connection", "close"), ("content-length", str(len(body)))]
    sent = peer.send(h11.Request(method=method, target=target, headers=headers))
    stream.sendall(sent + (peer.send(h11.Data(data=body)) if body else b"") + peer.send(h11.EndOfMessage()))
    status, fields, answer = None, None, b""
    while True:
        event = peer.next_event()
        if event is h11.NEED_DATA:
            peer.receive_data(stream.recv(65_536))
        elif isinstance(event, h11.Response):
            status, fields = event.status_code, event.headers
        elif isinstance(event, h11.Data):
            answer += event.data
        elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
            return status, fields, answer.decode()


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(CLIENT, 0))


class HAProxy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
        cls.is_here = program is not None and shutil.which("openssl") is not None
        if not cls.is_here:
            return print("skipped: haproxy or openssl is not here")
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
             "-subj", "/CN=haproxy", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
            check=True, capture_output=True,
        )
        (folder / "both.pem").write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
        free = [socket.create_server(("127.0.0.1", 0)) for _ in NAMES]
        cls.ports = {name: one.getsockname()[1] for name, one in zip(NAMES, free)}
        for one in free:
            one.close()
        settings = folder / "haproxy.cfg"
        settings.write_text(CONFIGURATION.format(folder=folder, HTTP=HTTP, HTTPS=HTTPS, **cls.ports))
        cls.errors = open(folder / "errors", "w+")
        cls.haproxy = subprocess.Popen([program, "-db", "-f", settings], stderr=cls.errors, stdout=cls.errors)
        policy = "on_http_request: [{actions: [{type: custom-response, config: {body: '${conn.client_ip}'}}]}]"
        for name in ("v1", "v2", "options", "tls", "passed"):
            scheme = "https" if name == "passed" else "http"
            create("/endpoints", {"url": f"{scheme}://{cls.host(name)}", "traffic_policy": policy})
        for name, version in (("plain", "http1"), ("h2c", "http2")):
            create("/endpoints", {
                "url": f"http://{cls.host(name)}", "upstream_url": f"http://127.0.0.1:{cls.ports[name]}",
                "upstream_protocol": version,
            })

    @classmethod
    def tearDownClass(cls):
        if cls.is_here:
            cls.haproxy.kill()
            cls.haproxy.wait()
            cls.errors.close()
            cls.folder.cleanup()

    def setUp(self):
        if not self.is_here:
            self.skipTest("haproxy is not here")

    @staticmethod
    def host(name):
        return f"{name}.haproxy.culvert.localhost"

    def eventually(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                found = condition()
            except (OSError, h11.RemoteProtocolError) as error:
                found, what = None, f"{what}: {error}"
            if found:
                return found
            if time.monotonic() > deadline or self.haproxy.poll() is not None:
                self.errors.seek(0)
                self.fail(f"not in time: {what}\n{self.errors.read()}")
            time.sleep(0.05)

    def get(self, name, wrap=None, via=None, **more):
        stream = connect(self.ports[via or name])
        with wrap(stream) if wrap else stream as stream:
            status, fields, body = exchange(stream, self.host(name), **more)
        return None if status in (404, 502, 503) else (status, fields, body)

    def test_in_front(self):
        anyone = ssl.create_default_context()
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
        edge = ssl.create_default_context(cafile=CA)
        ways = {
            "v1": None, "v2": None, "options": None,
            "tls": lambda stream: anyone.wrap_socket(stream, server_hostname=self.host("tls")),
            "passed": lambda stream: edge.wrap_socket(stream, server_hostname=self.host("passed")),
        }
        for name, wrap in ways.items():
            status, _, body = self.eventually(name, lambda: self.get(name, wrap))
            self.assertEqual((status, body), (200, CLIENT), name)
        print(f"haproxy: its client is known in {len(ways)} forms of the PROXY protocol")

    def test_health_checks(self):
        def states():
            with socket.socket(socket.AF_UNIX) as stream:
                stream.connect(f"{self.folder.name}/socket")
                stream.sendall(b"show stat\n")
                text = b"".join(iter(lambda: stream.recv(65_536), b"")).decode()
            rows = [line.split(",") for line in text.splitlines()]
            return {row[1]: row[36:38] for row in rows if row[0] == "checked" and row[1].startswith("version")}

        # Servers count as up until their first check.
        self.eventually("checks", lambda: set(map(tuple, states().values())) == {("L7OK", "200")})
        print("haproxy: checks without a client, in both versions")

    def test_behind_an_agent(self):
        program, place = os.environ["CULVERT_PROGRAM"], pathlib.Path(self.folder.name)
        for version in (1, 2):
            name = f"sent{version}"
            environment = {**os.environ, "HOME": str(place), "CULVERT_AUTHTOKEN": self.credential()}
            agent = subprocess.Popen(
                [program, "http", f"http://127.0.0.1:{self.ports[name]}", "--url", f"http://{self.host(name)}",
                 "--proxy-proto", str(version), "--server", os.environ["CULVERT_AGENTS"], "--ca", CA,
                 "--log", "stdout", "--inspect", "false"],
                env=environment, stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors,
            )
            try:
                status, _, body = self.eventually(name, lambda: self.get(name, via="v2"))
                self.assertEqual((status, body), (200, CLIENT), name)
            finally:
                agent.send_signal(signal.SIGTERM)
                agent.wait()
        print("haproxy: knows the client behind an agent, in both versions")

    @staticmethod
    def credential():
        return create("/credentials", {})["token"]

    def test_upstream(self):
        for name, version in (("plain", "1.1"), ("h2c", "2.0")):
            for method, body in (("GET", b""), ("POST", b"x" * 5_000), ("PUT", b"y")):
                status, fields, answer = self.eventually(
                    name, lambda: self.get(name, via="v2", method=method, target="/a%20b?c", body=body)
                )
                expected = f"{version} {method} /a%20b {self.host(name)} {CLIENT} {body.decode()}"
                self.assertEqual((status, answer), (201, expected))
                self.assertEqual([value for field, value in fields if field == b"x-many"], [b"a", b"b"])
        print("haproxy: answers as upstream of HTTP/1.1 and HTTP/2")


if __name__ == "__main__":
    unittest.main()
