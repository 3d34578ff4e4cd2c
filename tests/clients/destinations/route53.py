"""Amazon Route 53 (moto) over TLS on a free port of this machine, with one hosted zone.

moto cannot authenticate requests to Route 53, so signatures are checked here, with the vendor's library. Prints one
line of JSON: where it is, the keys, and the certificate to trust. Then each line of JSON on the standard input names a
record set, whose values are the answer. Ends with its input.
"""

import datetime
import io
import ipaddress
import json
import logging
import os
import ssl
import sys
import tempfile

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from moto.server import ThreadedMotoServer
from moto.moto_server.threaded_moto_server import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

KEYS = {"aws_access_key_id": "AKIACULVERT", "aws_secret_access_key": "the secret of the tests"}
REFUSED = (
    "<ErrorResponse><Error><Code>SignatureDoesNotMatch</Code>"
    "<Message>The signature does not match.</Message></Error></ErrorResponse>"
)


class Signed:
    """Passes requests with a valid signature on."""

    def __init__(self, app):
        self.app = app

    def __call__(self, environ, start_response):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if self.is_signed(environ, body):
            return self.app(environ, start_response)
        start_response("403 Forbidden", [("content-type", "text/xml")])
        return [REFUSED.encode()]

    def is_signed(self, environ, body):
        given = environ.get("HTTP_AUTHORIZATION", "")
        fields = dict(part.strip().split("=", 1) for part in given.partition(" ")[2].split(",") if "=" in part)
        headers = {}
        for name in fields.get("SignedHeaders", "").split(";"):
            variable = name.upper().replace("-", "_")
            headers[name] = environ.get("HTTP_" + variable, environ.get(variable, ""))
        url = f"https://{environ['HTTP_HOST']}{environ['PATH_INFO']}"
        if environ["QUERY_STRING"]:
            url += "?" + environ["QUERY_STRING"]
        request = AWSRequest(method=environ["REQUEST_METHOD"], url=url, data=body, headers=headers)
        request.context["timestamp"] = environ.get("HTTP_X_AMZ_DATE", "")
        auth = SigV4Auth(Credentials(*KEYS.values()), "route53", "us-east-1")
        text = auth.string_to_sign(request, auth.canonical_request(request))
        return fields.get("Signature") == auth.signature(text, request)


def certificate(folder):
    """A certificate for this machine, in files: its own and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "route53")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    paths = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    for path, text in zip(paths, (pem, private)):
        with open(path, "wb") as file:
            file.write(text)
    return paths, pem.decode()


class SecureServer(ThreadedMotoServer):
    """The same server, with TLS."""

    context = None

    def _server_entry(self):
        app = Signed(DomainDispatcherApplication(create_backend_app))
        self._server = make_server(
            self._ip_address,
            self._port,
            app,
            True,
            request_handler=MotoRequestHandler,
            ssl_context=self.context,
        )
        self._server_ready_event.set()
        self._server.serve_forever()


def main():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        (cert, key), pem = certificate(folder)
        SecureServer.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        SecureServer.context.load_cert_chain(cert, key)
        server = SecureServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        url = f"https://{host}:{port}"
        client = boto3.client("route53", region_name="us-east-1", endpoint_url=url, verify=cert, **KEYS)
        zone = client.create_hosted_zone(Name="near.example", CallerReference="1")
        zone_id = zone["HostedZone"]["Id"].rsplit("/", 1)[1]
        print(json.dumps({"url": url, "zone_id": zone_id, "certificate": pem, **KEYS}), flush=True)
        for line in sys.stdin:
            name = json.loads(line)["name"]
            sets = client.list_resource_record_sets(HostedZoneId=zone_id)["ResourceRecordSets"]
            values = [
                record["Value"]
                for one in sets
                if one["Type"] == "TXT" and one["Name"].rstrip(".") == name
                for record in one["ResourceRecords"]
            ]
            print(json.dumps(values), flush=True)
        server.stop()


main()
