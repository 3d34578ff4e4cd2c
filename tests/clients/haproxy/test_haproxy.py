"""HAProxy on both sides of the edge: as load balancer in front of it, which announces clients with the PROXY protocol, as
service behind an agent that announces them in turn, and as upstream of HTTP/1.1 and HTTP/2. As upstream that expects a PROXY
header from the edge, nginx too.

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
NAMES = ["v1", "v2", "options", "tls", "passed", "sent1", "sent2", "senttls", "senth2c", "nginx", "plain", "h2c", "checked"]
# The source address of clients; the edge sees connections of 127.0.0.1.
CLIENT = "127.0.0.9"
OTHERS = ["127.0.0.10", "127.0.0.11"]
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
    bind 127.0.0.1:{senttls} ssl crt {folder}/both.pem accept-proxy
    bind 127.0.0.1:{senth2c} proto h2 accept-proxy
    http-request return content-type text/plain lf-string "%[src]"
frontend upstream
    mode http
    bind 127.0.0.1:{plain}
    bind 127.0.0.1:{h2c} proto h2
    option http-buffer-request
    http-request return status 201 content-type text/plain lf-string "%[req.ver] %[method] %[path] %[req.fhdr(host)] %[req.fhdr(x-forwarded-for)] %[req.body]" hdr x-many a hdr x-many b
"""

NGINX = """
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder};
    proxy_temp_path {folder};
    fastcgi_temp_path {folder};
    uwsgi_temp_path {folder};
    scgi_temp_path {folder};
    server {{
        listen 127.0.0.1:{nginx} proxy_protocol;
        location / {{ default_type text/plain; return 200 "$proxy_protocol_addr"; }}
    }}
}}
"""


def split(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


def get(path):
    return create(path, None)


def create(path, body):
    request = urllib.request.Request(
        os.environ["CULVERT_API_URL"] + path,
        data=None if body is None else json.dumps(body).encode(),
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


def connect(port, client=CLIENT):
    return socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(client, 0))


def program(name):
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


class HAProxy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        haproxy = program("haproxy")
        cls.is_here = haproxy is not None and shutil.which("openssl") is not None
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
        cls.haproxy = subprocess.Popen([haproxy, "-db", "-f", settings], stderr=cls.errors, stdout=cls.errors)
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

    def get(self, name, wrap=None, via=None, client=CLIENT, **more):
        stream = connect(self.ports[via or name], client)
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

    def expects(self, name, place, **fields):
        """An endpoint whose upstream knows its clients by the header."""
        kind, scheme = fields.pop("kind", "http"), fields.pop("scheme", "http")
        endpoint = create("/endpoints", {
            "url": f"{kind}://{self.host(name)}", "upstream_url": f"{scheme}://127.0.0.1:{self.ports[place]}",
            **fields,
        })
        for client in (CLIENT, *OTHERS, CLIENT):
            status, _, body = self.eventually(name, lambda: self.get(name, via="v2", client=client))
            self.assertEqual((status, body), (200, client), name)
        return endpoint

    def test_upstream_that_expects_a_header(self):
        one, two = {"upstream_proxy_protocol": "1"}, {"upstream_proxy_protocol": "2"}
        self.expects("head1", "sent1", **one)
        self.expects("head2", "sent2", **two)
        self.expects("headtls", "senttls", scheme="https", upstream_tls={"verify": False}, **two)
        self.expects("headh2c", "senth2c", upstream_protocol="http2", **one)
        anyone = ssl.create_default_context()
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
        for version in (one, two):
            name = "passedon" + version["upstream_proxy_protocol"]
            create("/endpoints", {
                "url": f"tls://{self.host(name)}", "upstream_url": f"tcp://127.0.0.1:{self.ports['senttls']}", **version,
            })
            wrap = lambda stream: anyone.wrap_socket(stream, server_hostname=self.host(name))
            status, _, body = self.eventually(name, lambda: self.get(name, wrap, via="passed"))
            self.assertEqual((status, body), (200, CLIENT), name)
        print("haproxy: knows the clients of the edge over HTTP/1.1, HTTP/2 and TLS, in both versions")

    def test_health_checks_with_a_header(self):
        for version in ("1", "2"):
            name = f"checked{version}"
            endpoint = create("/endpoints", {
                "url": f"http://{self.host(name)}", "upstream_proxy_protocol": version,
                "upstreams": [{"url": f"http://127.0.0.1:{self.ports[place]}"} for place in ("sent1", "sent2")],
                "upstream_health": {"active": {"interval": "1s", "timeout": "1s"}},
            })

            def checks():
                listed = get(f"/endpoints/{endpoint['id']}/upstreams")["upstreams"]
                return all(one["last_check"] and one["last_check"]["passed"] for one in listed)

            self.eventually(name, checks)
            status, _, body = self.eventually(name, lambda: self.get(name, via="v2"))
            self.assertEqual((status, body), (200, CLIENT))
        print("haproxy: passes checks whose header has no client, in both versions")

    def test_nginx(self):
        nginx = program("nginx")
        if nginx is None:
            self.skipTest("nginx is not here")
        place = pathlib.Path(self.folder.name)
        (place / "nginx.conf").write_text(NGINX.format(folder=place, **self.ports))
        command = [nginx, "-p", place, "-c", place / "nginx.conf", "-g", "daemon off;", "-e", "stderr"]
        running = subprocess.Popen(command, stdout=self.errors, stderr=self.errors)
        try:
            for version in ("1", "2"):
                self.expects(f"nginx{version}", "nginx", upstream_proxy_protocol=version)
        finally:
            running.terminate()
            running.wait()
        print("nginx: knows the clients of the edge, in both versions")

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
