"""Tokens and key sets of PyJWT, as the action `jwt-validation` sees them.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTP                      where the edge takes plain HTTP: address and port
CULVERT_ISSUER                    file with a certificate for 127.0.0.1 that the edge trusts, and its key
"""

import hmac
import http.server
import json
import os
import ssl
import threading
import time
import unittest
import urllib.error
import urllib.request

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.utils import base64url_encode

HOST = "token.culvert.localhost"
KEYS = {
    "rsa": (RSAAlgorithm, rsa.generate_private_key(65_537, 2_048)),
    "p256": (ECAlgorithm, ec.generate_private_key(ec.SECP256R1())),
    "p384": (ECAlgorithm, ec.generate_private_key(ec.SECP384R1())),
    "p521": (ECAlgorithm, ec.generate_private_key(ec.SECP521R1())),
    "ed": (OKPAlgorithm, ed25519.Ed25519PrivateKey.generate()),
}
ALGORITHMS = {
    "RS256": "rsa", "RS384": "rsa", "RS512": "rsa", "PS256": "rsa", "PS384": "rsa", "PS512": "rsa",
    "ES256": "p256", "ES384": "p384", "ES512": "p521", "EdDSA": "ed",
}
KEY_SET = json.dumps({
    "keys": [{**kind.to_jwk(key.public_key(), as_dict=True), "kid": name} for name, (kind, key) in KEYS.items()]
}).encode()


class Issuer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "application/jwk-set+json")
        self.send_header("content-length", str(len(KEY_SET)))
        self.end_headers()
        self.wfile.write(KEY_SET)

    def log_message(self, *_):
        pass


def claims(**changed):
    now = int(time.time())
    given = {"iss": "https://issuer.example", "aud": "app", "sub": "é", "iat": now, "nbf": now, "exp": now + 60, **changed}
    return {name: value for name, value in given.items() if value is not None}


def token(given, algorithm="EdDSA", **header):
    return jwt.encode(given, KEYS[ALGORITHMS[algorithm]][1], algorithm=algorithm, headers=header)


def status(bearer):
    headers = {"host": HOST, "authorization": f"Bearer {bearer}"}
    request = urllib.request.Request(f"http://{os.environ['CULVERT_HTTP']}/", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


class Jwt(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.issuer = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Issuer)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(os.environ["CULVERT_ISSUER"])
        cls.issuer.socket = tls.wrap_socket(cls.issuer.socket, server_side=True)
        threading.Thread(target=cls.issuer.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{cls.issuer.server_address[1]}/keys"
        validation = {
            "issuer": {"allow_list": [{"value": "https://issuer.example"}]},
            "audience": {"allow_list": [{"value": "app"}]},
            "http": {"tokens": [
                {"type": "jwt", "method": "header", "name": "authorization", "prefix": "Bearer "}
            ]},
            "jws": {"allowed_algorithms": list(ALGORITHMS), "keys": {"sources": {"additional_jkus": [url]}}},
        }
        policy = {"on_http_request": [{"actions": [
            {"type": "jwt-validation", "config": validation},
            {"type": "custom-response", "config": {"body": "in"}},
        ]}]}
        request = urllib.request.Request(
            os.environ["CULVERT_API_URL"] + "/endpoints",
            data=json.dumps({"url": f"http://{HOST}", "traffic_policy": json.dumps(policy)}).encode(),
            headers={
                "Authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 201
        while status("") == 404:
            time.sleep(0.02)

    @classmethod
    def tearDownClass(cls):
        cls.issuer.shutdown()
        cls.issuer.server_close()

    def test_all_algorithms(self):
        for algorithm, key in ALGORITHMS.items():
            with self.subTest(algorithm):
                made = token(claims(), algorithm, kid=key)
                self.assertEqual(status(made), 200)
                self.assertEqual(status(token(claims(), algorithm)), 200, "without a key ID")
                head, body, signature = made.split(".")
                other = token(claims(aud=["app"], sub="other"), algorithm, kid=key).split(".")[1]
                self.assertEqual(status(f"{head}.{other}.{signature}"), 403)
        print(f"PyJWT: tokens with {len(ALGORITHMS)} algorithms")

    def test_claims(self):
        now = time.time()
        for expected, changed in (
            (200, {"aud": ["other", "app"]}), (200, {"exp": now + 60.5}), (200, {"nbf": None, "iat": None}),
            (403, {"aud": "other"}), (403, {"aud": None}), (403, {"iss": "https://issuer.example/"}),
            (403, {"exp": int(now) - 120}), (403, {"exp": None}), (403, {"nbf": int(now) + 600}),
        ):
            with self.subTest(changed):
                self.assertEqual(status(token(claims(**changed))), expected)

    def test_weak_signatures(self):
        self.assertIn(status(jwt.encode(claims(), None, algorithm="none")), (401, 403))
        # A public key as the secret of a MAC.
        for name, (_, key) in KEYS.items():
            public = key.public_key().public_bytes(
                serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            # The library does not sign with such a secret.
            head = base64url_encode(json.dumps({"alg": "HS256", "kid": name}).encode())
            signed = b".".join([head, token(claims()).split(".")[1].encode()])
            mac = base64url_encode(hmac.digest(public, signed, "sha256"))
            self.assertEqual(status((signed + b"." + mac).decode()), 403)


if __name__ == "__main__":
    unittest.main()
