"""Services at Unix sockets, behind the edge and behind agents: HAProxy over HTTP/1.1 and HTTP/2, grpcio, websockets, and
plain bytes.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTP, CULVERT_HTTPS       where the edge takes plain HTTP and TLS: address and port
CULVERT_AGENTS, CULVERT_PROGRAM   where it takes agents, and the program with ours
CULVERT_CA                        file with the authority of its certificates
CULVERT_SOCKETS                   the folder with the sockets that it may forward to
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from concurrent import futures

import grpc
import h11
from websockets.sync.client import connect
from websockets.sync.server import unix_serve

HTTP, HTTPS, CA = (os.environ["CULVERT_" + name] for name in ("HTTP", "HTTPS", "CA"))
FOLDER = pathlib.Path(os.environ["CULVERT_SOCKETS"])
PATIENCE = 60

CONFIGURATION = """
defaults
    timeout connect 20s
    timeout client 60s
    timeout server 60s
    mode http
frontend upstream
    bind {folder}/plain.sock
    bind {folder}/h2c.sock proto h2
    option http-buffer-request
    http-request return status 201 content-type text/plain lf-string "%[req.ver] %[method] %[path] %[req.fhdr(host)] %[req.body]"
"""


def split(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


def call(path, body=None):
    """The status of an API call, and its answer."""
    request = urllib.request.Request(
        os.environ["CULVERT_API_URL"] + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def create(path, body):
    status, answer = call(path, body)
    assert status == 201, answer
    return answer


def exchange(stream, host, method="GET", target="/", body=b""):
    """One request by h11, which accepts only answers that are correct."""
    peer = h11.Connection(h11.CLIENT)
    headers = [("host", host), ("connection", "close"), ("content-length", str(len(body)))]
    sent = peer.send(h11.Request(method=method, target=target, headers=headers))
    stream.sendall(sent + (peer.send(h11.Data(data=body)) if body else b"") + peer.send(h11.EndOfMessage()))
    status, answer = None, b""
    while True:
        event = peer.next_event()
        if event is h11.NEED_DATA:
            peer.receive_data(stream.recv(65_536))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            answer += event.data
        elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
            return status, answer.decode()


def echo(path):
    """A service that returns bytes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve(stream):
        with stream:
            while data := stream.recv(65_536):
                stream.sendall(data)

    def accept():
        while True:
            stream, _ = listener.accept()
            threading.Thread(target=serve, args=(stream,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == "/x/Bidi":
            return grpc.stream_stream_rpc_method_handler(lambda messages, _: messages)


class Sockets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
        cls.haproxy = None
        if program is None:
            return print("skipped: haproxy is not here")
        cls.elsewhere = tempfile.TemporaryDirectory()
        elsewhere = pathlib.Path(cls.elsewhere.name)
        settings = elsewhere / "haproxy.cfg"
        settings.write_text(CONFIGURATION.format(folder=FOLDER))
        cls.errors = open(elsewhere / "errors", "w+")
        cls.haproxy = subprocess.Popen([program, "-db", "-f", settings], stderr=cls.errors, stdout=cls.errors)
        echo(FOLDER / "echo.sock")
        # As one of Docker's would be.
        echo(elsewhere / "host.sock")
        (FOLDER / "link.sock").symlink_to(elsewhere / "host.sock")

    @classmethod
    def tearDownClass(cls):
        if cls.haproxy:
            cls.haproxy.kill()
            cls.haproxy.wait()
            cls.errors.close()
            cls.elsewhere.cleanup()

    def setUp(self):
        if not self.haproxy:
            self.skipTest("haproxy is not here")

    @staticmethod
    def host(name):
        return f"{name}.sockets.culvert.localhost"

    def eventually(self, what, condition):
        deadline, last = time.monotonic() + PATIENCE, None
        while True:
            try:
                last = condition()
                if last:
                    return last
            except (OSError, h11.RemoteProtocolError, grpc.RpcError) as error:
                last = error
            if time.monotonic() > deadline:
                self.errors.seek(0)
                self.fail(f"not in time: {what}: {last}\n{self.errors.read()}")
            time.sleep(0.05)

    def endpoint(self, name, url, protocol="http1", scheme="http", **more):
        upstream = {"upstream_url": url} if isinstance(url, str) else {"upstreams": [{"url": one} for one in url]}
        return create("/endpoints", {
            "url": f"{scheme}://{self.host(name)}", "upstream_protocol": protocol, **upstream, **more,
        })

    def get(self, name, **more):
        with socket.create_connection(split(HTTP), timeout=60) as stream:
            return exchange(stream, self.host(name), **more)

    def served(self, name, **more):
        """The answer of the service once the edge knows the endpoint and HAProxy listens."""
        def answer():
            status, body = self.get(name, **more)
            return body if status == 201 else None
        return self.eventually(name, answer)

    def test_spellings_and_versions_of_http(self):
        path = FOLDER / "plain.sock"
        for index, spelled in enumerate([
            f"unix:{path}", f"unix://{path}", f"unix/{path}", f"unix@{path}", f"http://unix:{path}:/",
            "http+unix://" + str(path).replace("/", "%2F"),
        ]):
            self.endpoint(f"spelled{index}", spelled)
            for method, body in (("GET", b""), ("POST", b"x" * 300_000), ("PUT", b"y")):
                # HAProxy shows at most what its buffer holds.
                shown = self.served(f"spelled{index}", method=method, target="/a%20b?c", body=body)
                self.assertTrue(shown.startswith(f"1.1 {method} /a%20b {self.host(f'spelled{index}')} "), shown)
        self.endpoint("h2c", f"unix:{FOLDER}/h2c.sock", "http2")
        shown = self.served("h2c", method="POST", target="/a", body=b"body")
        self.assertEqual(shown, f"2.0 POST /a {self.host('h2c')} body")
        print("sockets: HAProxy over HTTP/1.1 in six spellings, and over HTTP/2")

    def test_grpc(self):
        server = grpc.server(futures.ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((Echo(),))
        server.add_insecure_port(f"unix:{FOLDER}/grpc.sock")
        server.start()
        self.addCleanup(server.stop, None)
        self.endpoint("grpc", f"unix:{FOLDER}/grpc.sock", "http2", "https")
        credentials = grpc.ssl_channel_credentials(pathlib.Path(CA).read_bytes())
        options = [("grpc.ssl_target_name_override", self.host("grpc"))]
        with grpc.secure_channel(HTTPS, credentials, options=options) as channel:
            messages = [b"m" * length for length in (0, 20, 100_000)]
            echoed = self.eventually(
                "grpc", lambda: list(channel.stream_stream("/x/Bidi")(iter(messages), timeout=60))
            )
        self.assertEqual(echoed, messages)
        print("sockets: grpcio")

    def test_websockets(self):
        def back(connection):
            for message in connection:
                connection.send(message)

        server = unix_serve(back, str(FOLDER / "ws.sock"))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.shutdown)
        self.endpoint("ws", f"unix:{FOLDER}/ws.sock")
        self.eventually("websockets", lambda: self.get("ws")[0] == 426)
        with socket.create_connection(split(HTTP), timeout=60) as stream:
            with connect(f"ws://{self.host('ws')}/", sock=stream) as client:
                for message in ("first", "x" * 100_000):
                    client.send(message)
                    self.assertEqual(client.recv(timeout=60), message)
        print("sockets: websockets")

    def echoes(self, address):
        with socket.create_connection(address, timeout=60) as stream:
            sent = b"bytes" * 50_000
            threading.Thread(target=lambda: (stream.sendall(sent), stream.shutdown(socket.SHUT_WR))).start()
            received = b"".join(iter(lambda: stream.recv(65_536), b""))
        return received == sent

    def test_bytes(self):
        reserved = create("/reserved_addrs", {})["addr"]
        create("/endpoints", {"url": f"tcp://{reserved}", "upstream_url": f"unix:{FOLDER}/echo.sock"})
        self.eventually("tcp", lambda: self.echoes(("127.0.0.1", split(reserved)[1])))
        print("sockets: bytes of a TCP endpoint")

    def test_lists(self):
        policy = {"consecutive_failures": 1, "ejection_time": "1h", "ejection_time_max": "1h"}
        made = self.endpoint(
            "list", [f"unix:{FOLDER}/absent.sock", f"unix:{FOLDER}/plain.sock"],
            upstream_health={"active": {"interval": "1s"}, "passive": policy},
        )
        self.served("list")
        for _ in range(20):
            self.assertEqual(self.get("list")[0], 201)

        def states():
            found = call(f"/endpoints/{made['id']}/upstreams")[1]["upstreams"]
            return {one["url"]: one for one in found}

        def checked(name):
            return states()[f"unix:{FOLDER}/{name}.sock"]["last_check"] or {"passed": None, "failure": ""}

        self.eventually("the check of the absent one", lambda: "no such file" in checked("absent")["failure"])
        self.eventually("the check of the other", lambda: checked("plain")["passed"])
        status, answer = call("/endpoints", {
            "url": f"http://{self.host('double')}",
            "upstreams": [{"url": f"unix:{FOLDER}/plain.sock"}, {"url": f"unix://{FOLDER}//plain.sock"}],
        })
        self.assertEqual((status, answer["error_code"]), (400, "ERR_NGROK_18014"))
        self.assertIn("twice", answer["msg"])
        print("sockets: a list goes on without the absent one")

    def test_refusals(self):
        for index, (url, why) in enumerate([
            ("unix:/run/docker.sock", "`edge.allow_unix_upstreams` of this installation does not allow"),
            (f"unix:{FOLDER}x/a.sock", "`edge.allow_unix_upstreams` of this installation does not allow"),
            (f"unix:{FOLDER}/../host.sock", "must not contain `..`"),
            ("unix:app.sock", "must be absolute"),
            (f"unix+tls:{FOLDER}/a.sock", "TLS"),
        ]):
            for body in ({"upstream_url": url}, {"upstreams": [{"url": url}]}):
                status, answer = call("/endpoints", {"url": f"http://{self.host(f'refused{index}')}", **body})
                self.assertEqual((status, answer["error_code"]), (400, "ERR_NGROK_18014"), answer)
                self.assertIn(why, answer["msg"])
        # The path is allowed, and a link leads elsewhere.
        self.endpoint("link", f"unix:{FOLDER}/link.sock")
        self.eventually("the refusal", lambda: self.get("link")[0] == 502)
        print("sockets: refused where they are not allowed, also by a link")

    def agent(self, *arguments):
        log = open(pathlib.Path(self.elsewhere.name) / f"agent{time.monotonic_ns()}", "w+")
        agent = subprocess.Popen(
            [os.environ["CULVERT_PROGRAM"], *arguments, "--server", os.environ["CULVERT_AGENTS"], "--ca", CA,
             "--log", "stdout", "--log-format", "json"],
            env={**os.environ, "HOME": self.elsewhere.name,
                 "CULVERT_AUTHTOKEN": create("/credentials", {})["token"]},
            stdin=subprocess.DEVNULL, stdout=log, stderr=self.errors,
        )

        def stop():
            agent.send_signal(signal.SIGTERM)
            agent.wait()
            log.close()

        self.addCleanup(stop)
        return log

    def test_agents(self):
        self.agent("http", f"unix:{FOLDER}/plain.sock", "--url", f"http://{self.host('agent')}", "--inspect", "false")
        shown = self.served("agent", method="POST", target="/a", body=b"body")
        self.assertEqual(shown, f"1.1 POST /a {self.host('agent')} body")
        self.agent(
            "http", f"http://unix:{FOLDER}/h2c.sock", "--url", f"http://{self.host('agent2')}",
            "--upstream-protocol", "http2", "--host-header", "rewrite", "--inspect", "false",
        )
        self.assertEqual(self.served("agent2", target="/a"), "2.0 GET /a localhost ")
        log = self.agent("tcp", f"unix:{FOLDER}/echo.sock", "--inspect", "false")

        def port():
            log.seek(0)
            return re.search(r"tcp://[^\"]*:(\d+)", log.read())

        found = int(self.eventually("the URL of the agent", port)[1])
        self.eventually("bytes", lambda: self.echoes(("127.0.0.1", found)))
        log = self.agent("http", f"unix:{FOLDER}/absent.sock", "--url", f"http://{self.host('away')}", "--inspect", "false")

        def cause():
            self.get("away")
            log.seek(0)
            return "no such file" in log.read()

        self.eventually("the cause in the log", cause)
        print("sockets: behind agents, over HTTP/1.1, HTTP/2 and as bytes")

    def test_agent_file_and_local_api(self):
        place = pathlib.Path(self.elsewhere.name) / "agent.yml"
        place.write_text(
            "version: 3\n"
            "agent: {web_addr: '127.0.0.1:0'}\n"
            "endpoints:\n"
            f"  - {{name: a, url: 'http://{self.host('file')}', upstream: {{url: 'unix://{FOLDER}/plain.sock'}}}}\n"
        )
        log = self.agent("start", "--all", "--config", str(place))
        self.assertTrue(self.served("file").startswith("1.1 GET / "))

        def interface():
            log.seek(0)
            return re.search(r"127\.0\.0\.1:(\d+)", log.read())

        local = int(self.eventually("the local API", interface)[1])
        for addr, status in ((f"unix:{FOLDER}/plain.sock", 201), ("unix:app.sock", 400)):
            request = urllib.request.Request(
                f"http://127.0.0.1:{local}/api/tunnels",
                data=json.dumps({"name": f"b{status}", "proto": "http", "addr": addr, "domain": self.host("local"), "schemes": ["http"]}).encode(),
                headers={"Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    made = answer.status
            except urllib.error.HTTPError as error:
                made = error.code
                self.assertIn("must be absolute", error.read().decode())
            self.assertEqual(made, status)
        self.assertTrue(self.served("local").startswith("1.1 GET / "))
        print("sockets: from an agent's file, and by its local API")


if __name__ == "__main__":
    unittest.main()
