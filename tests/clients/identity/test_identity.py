"""Services of the guide `docs/how-to/forward-identity.md` verify the edge's assertions with libraries that others wrote.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTP                      where the edge takes plain HTTP: address and port
CULVERT_ISSUER                    file with a certificate for 127.0.0.1 that the edge trusts, and its key

Packages of Node are below target/node-clients/identity, those of Go below /usr/share/gocode.
"""

import http.server
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

ROOT = pathlib.Path(__file__).parents[3]
GUIDE = (ROOT / "docs/how-to/forward-identity.md").read_text()
GOPATH = pathlib.Path("/usr/share/gocode")
PACKAGES = ROOT / "target/node-clients/identity"
HOST = "{}.identity.culvert.localhost"
KEY = ec.generate_private_key(ec.SECP256R1())


def serve(handler, tls=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def answering(content):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = content(self.path)
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Answer


def ask(address, path="/", host=None, **headers):
    if host:
        headers["host"] = host
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def edge(path, host, **headers):
    return ask(os.environ["CULVERT_HTTP"], path, host, **headers)


class Identity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        keys = json.dumps({"keys": [{**ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "a"}]}).encode()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(os.environ["CULVERT_ISSUER"])
        cls.issuer = serve(answering(lambda _: keys), tls)

    @classmethod
    def tearDownClass(cls):
        cls.issuer.shutdown()
        cls.issuer.server_close()

    def program(self, language, host, port, folder):
        """The program of the guide, for this endpoint."""
        # Hosts of the edge have no addresses here.
        key_set = serve(answering(lambda path: edge(path, host)[1].encode()))
        self.addCleanup(key_set.server_close)
        self.addCleanup(key_set.shutdown)
        [text] = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.S | re.M)
        for old, new in (
            ("https://app.example.com/culvert/jwks.json", f"http://127.0.0.1:{key_set.server_address[1]}/culvert/jwks.json"),
            ("https://app.example.com", f"http://{host}"),
            ("8080", str(port)),
            ("github.com/golang-jwt/jwt/v5", "github.com/golang-jwt/jwt"),
        ):
            text = text.replace(old, new)
        file = folder / {"go": "main.go", "js": "main.mjs", "python": "main.py"}[language]
        file.write_text(text)
        return file

    def check(self, language, start):
        host, port = HOST.format(language), free_port()
        validation = {
            "issuer": {"allow_list": [{"value": "https://issuer.example"}]},
            "audience": {"allow_list": [{"value": "app"}]},
            "http": {"tokens": [{"type": "jwt", "method": "header", "name": "authorization", "prefix": "Bearer "}]},
            "jws": {
                "allowed_algorithms": ["ES256"],
                "keys": {"sources": {"additional_jkus": [f"https://127.0.0.1:{self.issuer.server_address[1]}/keys"]}},
            },
            "forward_identity": {"assertion": {"claims": ["email"]}},
        }
        # Without a token, a request passes without a user.
        rule = {"expressions": ["hasReqHeader('authorization')"], "actions": [{"type": "jwt-validation", "config": validation}]}
        endpoint = {
            "url": f"http://{host}",
            "upstream_url": f"http://127.0.0.1:{port}",
            "traffic_policy": json.dumps({"on_http_request": [rule]}),
        }
        request = urllib.request.Request(
            os.environ["CULVERT_API_URL"] + "/endpoints",
            data=json.dumps(endpoint).encode(),
            headers={"Authorization": "Bearer " + os.environ["CULVERT_API_KEY"], "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.assertEqual(answer.status, 201)
        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        service = subprocess.Popen(start(self.program(language, host, port, folder)), cwd=folder)
        self.addCleanup(service.wait)
        self.addCleanup(service.kill)
        while True:
            try:
                status, text = ask(f"127.0.0.1:{port}")
                break
            except (ConnectionError, urllib.error.URLError):
                self.assertIsNone(service.poll(), "the service ended")
                time.sleep(0.05)
        self.assertEqual(status, 401, text)
        while edge("/", host)[0] in (404, 502):
            time.sleep(0.02)

        def token(sub):
            now = int(time.time())
            claims = {"iss": "https://issuer.example", "aud": "app", "sub": sub, "email": "a@x.example", "exp": now + 600}
            return jwt.encode(claims, KEY, algorithm="ES256", headers={"kid": "a"})

        # The service is behind the edge, and the edge says who the user is.
        self.assertEqual(edge("/", host, authorization=f"Bearer {token('anna')}"), (200, "hello anna"))
        self.assertEqual(edge("/", host)[0], 401, "without a user")
        forged = jwt.encode({"sub": "mallory", "aud": f"http://{host}", "exp": time.time() + 60}, KEY, algorithm="ES256")
        self.assertEqual(edge("/", host, **{"culvert-assertion": forged})[0], 401)
        # Past the edge, nobody believes anybody.
        published = json.loads(edge("/culvert/jwks.json", host)[1])["keys"]
        self.assertEqual({key["alg"] for key in published}, {"ES256"})
        for wrong in (forged, jwt.encode({"sub": "mallory"}, KEY, algorithm="ES256", headers={"kid": published[0]["kid"]}), "", "x.y.z"):
            self.assertEqual(ask(f"127.0.0.1:{port}", **{"culvert-assertion": wrong})[0], 401)
        print(f"{language}: the service of the guide knows its user")

    def test_python(self):
        self.check("python", lambda file: [sys.executable, str(file)])

    def test_node(self):
        if not (PACKAGES / "made").exists() or not shutil.which("node"):
            self.skipTest("no packages of Node; scripts/node-clients gets them")

        def start(file):
            (file.parent / "node_modules").symlink_to(PACKAGES / "node_modules")
            return ["node", str(file)]

        self.check("js", start)

    def test_go(self):
        if not (GOPATH / "src/github.com/golang-jwt/jwt").exists() or not shutil.which("go"):
            self.skipTest("golang-github-golang-jwt-jwt-dev is not here")

        def start(file):
            program = file.parent / "service"
            cache = ROOT / "target/go-clients/cache"
            settings = {"GO111MODULE": "off", "GOPATH": str(GOPATH), "GOFLAGS": "", "GOCACHE": str(cache)}
            subprocess.run(["go", "build", "-o", program, file], env={**os.environ, **settings}, check=True)
            return [str(program)]

        self.check("go", start)


if __name__ == "__main__":
    unittest.main()
