"""Busy clients of HTTP/2 that do nothing wrong: none may be taken for a flood.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTP                      where the edge takes plain HTTP: address and port
CULVERT_HTTPS                     where the edge takes TLS: address and port
CULVERT_CA                        file with the authority of its certificates
CULVERT_H2LOAD_REQUESTS           how many requests h2load sends; 20000 without
"""

import contextlib
import http.server
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import unittest
import urllib.request

import h2.connection
import h2.events
import h2.exceptions

HOST = "http2.culvert.localhost"
# Answered by the edge itself.
QUICK = "quick.culvert.localhost"
POLICY = "on_http_request: [{actions: [{type: custom-response, config: {body: hello}}]}]"
ADDRESS, PORT = os.environ["CULVERT_HTTPS"].rsplit(":", 1)
# HTTP/2 in the clear, with prior knowledge.
CLEAR_ADDRESS, CLEAR_PORT = os.environ["CULVERT_HTTP"].rsplit(":", 1)
REQUESTS = int(os.environ.get("CULVERT_H2LOAD_REQUESTS", "20000"))
PIECES = 5_000
PIECE = b"twenty bytes a piece"


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        if self.path == "/pieces":
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for turn in range(PIECES):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(PIECE), PIECE))
                # In bursts, so that many frames are answered late and together.
                if turn % 1000 == 999:
                    self.wfile.flush()
                    time.sleep(0.005)
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("content-length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

    def log_message(self, *_):
        pass


class Client:
    """One connection that answers each DATA frame with all that a careful client could say."""

    def __init__(self, host, is_clear=False):
        self.host, self.scheme = host, "http" if is_clear else "https"
        self.h2 = h2.connection.H2Connection()
        self.h2.initiate_connection()
        if is_clear:
            self.stream = socket.create_connection((CLEAR_ADDRESS, int(CLEAR_PORT)), timeout=60)
            return
        tls = ssl.create_default_context(cafile=os.environ["CULVERT_CA"])
        tls.set_alpn_protocols(["h2"])
        stream = socket.create_connection((ADDRESS, int(PORT)))
        self.stream = tls.wrap_socket(stream, server_hostname=host)
        self.stream.settimeout(60)

    def get(self, path):
        of = self.h2.get_next_available_stream_id()
        fields = [(":method", "GET"), (":scheme", self.scheme), (":authority", self.host), (":path", path)]
        self.h2.send_headers(of, fields, end_stream=True)
        body, status, frames = b"", None, 0
        while True:
            self.stream.sendall(self.h2.data_to_send())
            for event in self.h2.receive_data(self.stream.recv(65_536)):
                if isinstance(event, h2.events.ResponseReceived):
                    status = dict(event.headers)[b":status"]
                elif isinstance(event, h2.events.DataReceived):
                    body += event.data
                    frames += 1
                    if event.flow_controlled_length:
                        self.h2.increment_flow_control_window(event.flow_controlled_length)
                        with contextlib.suppress(h2.exceptions.StreamClosedError):
                            self.h2.increment_flow_control_window(event.flow_controlled_length, of)
                    self.h2.ping(b"measured")
                elif isinstance(event, h2.events.StreamEnded):
                    self.stream.sendall(self.h2.data_to_send())
                    return status, body, frames
                elif isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)):
                    raise AssertionError(event)


class Http2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # What it prints of connections that the edge closes says nothing of the edge.
        http.server.ThreadingHTTPServer.handle_error = lambda *_: None
        cls.upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
        threading.Thread(target=cls.upstream.serve_forever, daemon=True).start()
        port = cls.upstream.server_address[1]
        for scheme in ("https", "http"):
            cls.endpoint({"url": f"{scheme}://{HOST}", "upstream_url": f"http://127.0.0.1:{port}"})
            cls.endpoint({"url": f"{scheme}://{QUICK}", "traffic_policy": POLICY})
        for host in (HOST, QUICK):
            for is_clear in (False, True):
                while cls.status(host, is_clear) in (b"404", b"301"):
                    time.sleep(0.02)

    @classmethod
    def tearDownClass(cls):
        cls.upstream.shutdown()
        cls.upstream.server_close()

    @staticmethod
    def status(host, is_clear):
        client = Client(host, is_clear)
        try:
            return client.get("/")[0]
        finally:
            client.stream.close()

    @staticmethod
    def endpoint(body):
        request = urllib.request.Request(
            os.environ["CULVERT_API_URL"] + "/endpoints",
            data=json.dumps(body).encode(),
            headers={
                "Authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 201

    def test_python_h2(self):
        for is_clear in (False, True):
            client = Client(HOST, is_clear)
            status, body, frames = client.get("/pieces")
            self.assertEqual((status, body), (b"200", PIECE * PIECES))
            for _ in range(1_000):
                self.assertEqual(client.get("/")[:2], (b"200", b"hello"))
            client.stream.close()
            print(f"h2, {client.scheme}: an answer of {frames} frames and 1000 more on one connection")

    def test_curl(self):
        curl = shutil.which("curl")
        if curl is None:
            return print("skipped: curl is not here")
        at = ["--parallel", "--parallel-max", "100", "--connect-to", f"{QUICK}:443:{ADDRESS}:{PORT}"]
        self.curl(curl, "--http2", 2000, [*at, f"https://{QUICK}/[1-2000]"])
        # curl 7.88 breaks a connection with prior knowledge when it uses it again (curl/curl issue 10634), so each
        # request has a connection.
        at = ["--connect-to", f"::{CLEAR_ADDRESS}:{CLEAR_PORT}"]
        for _ in range(20):
            self.curl(curl, "--http2-prior-knowledge", 1, [*at, f"http://{QUICK}/"])

    def curl(self, curl, way, count, at):
        done = subprocess.run(
            [
                curl, way, "--no-progress-meter", "--fail",
                "--cacert", os.environ["CULVERT_CA"], "--output", "/dev/null",
                "--write-out", "%{http_code} %{http_version}\n", *at,
            ],
            capture_output=True, text=True, timeout=300,
        )
        self.assertEqual(done.stderr, "")
        answers = done.stdout.split("\n")[:-1]
        self.assertEqual(answers, ["200 2"] * count)
        print(f"curl {way}: {count} requests")

    def test_h2load(self):
        h2load = shutil.which("h2load")
        if h2load is None:
            return print("skipped: h2load is not here")
        self.h2load(h2load, f"https://{QUICK}/", f"--connect-to={ADDRESS}:{PORT}")
        clear = f"--connect-to={CLEAR_ADDRESS}:{CLEAR_PORT}"
        self.h2load(h2load, f"http://{QUICK}/", "--no-tls-proto=h2c", clear)

    def h2load(self, h2load, *at):
        done = subprocess.run(
            [h2load, "-n", str(REQUESTS), "-c", "4", "-m", "100", *at],
            capture_output=True, text=True, timeout=900,
        )
        self.assertRegex(
            done.stdout,
            rf"{REQUESTS} done, {REQUESTS} succeeded, 0 failed, 0 errored, 0 timeout",
            done.stdout + done.stderr,
        )
        print("h2load:", at[0], re.search(r"finished in .*", done.stdout).group())


if __name__ == "__main__":
    unittest.main()
