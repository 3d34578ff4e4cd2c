"""The running server against its own OpenAPI document: whatever a generator of requests sends, no answer
is a failure of the server, and each has the status, headers and body that the document promises.

Refusals are not judged: a request that the document allows may still name a host that is taken. The one
operation left out besides the endless streams is the deletion of API keys, because the generator learns
ids from answers and would delete the key it holds.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from openapi_spec_validator import OpenAPIV30SpecValidator, OpenAPIV31SpecValidator, validate

URL = os.environ["CULVERT_API_URL"]
TOKEN = os.environ["CULVERT_API_KEY"]
SECONDS_MAX = 40
EXAMPLES = 12

# Objects to begin with; the generator finds what else it needs.
SEEDS = [
    ("/api_keys", {}),
    ("/bot_users", {"name": "seed"}),
    ("/event_destinations", {"format": "json", "target": {"debug": {"log": True}}}),
    ("/event_subscriptions", {"sources": [{"type": "http_request_complete.v0"}]}),
    ("/endpoints", {"url": "http://seed.culvert.localhost", "upstream_url": "http://127.0.0.1:9"}),
]


def post(path, body):
    request = urllib.request.Request(URL + path, data=json.dumps(body).encode(), method="POST")
    request.add_header("authorization", "Bearer " + TOKEN)
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


class OpenApi(unittest.TestCase):
    def test_the_document_is_valid(self):
        for name, validator in [
            ("openapi.json", OpenAPIV31SpecValidator),
            ("openapi-3.0.json", OpenAPIV30SpecValidator),
        ]:
            with urllib.request.urlopen(URL + "/" + name) as answer:
                document = json.loads(answer.read())
            validate(document, cls=validator)
            print("openapi-spec-validator: %s, %d paths" % (document["openapi"], len(document["paths"])))

    def test_answers_are_what_the_document_promises(self):
        known = "".join(
            '[[operations]]\ninclude-path = "%s/{id}"\nexclude-method = "DELETE"\nparameters = { id = "%s" }\n\n'
            % (path, post(path, body)["id"])
            for path, body in SEEDS
        )
        checks = [
            "not_a_server_error",
            "status_code_conformance",
            "content_type_conformance",
            "response_headers_conformance",
            "response_schema_conformance",
            "unsupported_method",
            "allow_header_conformance",
            "ignored_auth",
            "use_after_free",
        ]
        with tempfile.TemporaryDirectory() as folder:
            settings = pathlib.Path(folder) / "schemathesis.toml"
            settings.write_text(known)
            command = [
                str(pathlib.Path(sys.executable).parent / "schemathesis"),
                "--config-file=%s" % settings,
                "run",
                URL + "/openapi.json",
                "--header=Authorization: Bearer " + TOKEN,
                "--exclude-path=/events/tail",
                "--exclude-path=/events/follow",
                "--exclude-operation-id=api_keys_delete",
                "--checks=" + ",".join(checks),
                "--phases=examples,coverage,fuzzing,stateful",
                "--max-examples=%d" % EXAMPLES,
                "--max-time=%d" % SECONDS_MAX,
                "--continue-on-failure",
                "--request-timeout=10",
                "--seed=1",
                "--generation-database=none",
                "--no-color",
                "--warnings=off",
            ]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        summary = done.stdout[done.stdout.rfind("= SUMMARY =") :]
        if done.returncode != 0:
            self.fail(done.stdout[-20000:] + done.stderr[-2000:])
        print("\n".join(line for line in summary.splitlines()[1:] if line.strip()))


if __name__ == "__main__":
    unittest.main()
