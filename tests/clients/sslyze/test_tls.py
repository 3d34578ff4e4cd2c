"""TLS of the edge, as sslyze sees it, held against Mozilla's intermediate profile.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTPS                     where the edge takes TLS: address and port
CULVERT_CA                        file with the authority of its certificates
"""

import json
import os
import subprocess
import sys
import unittest
import urllib.request

HOST = "tls.culvert.localhost"
POLICY = "on_http_request: [{actions: [{type: custom-response, config: {body: hello}}]}]"


class Tls(unittest.TestCase):
    def test_it_is_as_the_profile_wants_it(self):
        request = urllib.request.Request(
            os.environ["CULVERT_API_URL"] + "/endpoints",
            data=json.dumps({"url": f"https://{HOST}", "traffic_policy": POLICY}).encode(),
            headers={
                "Authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.assertEqual(answer.status, 201)
        address, port = os.environ["CULVERT_HTTPS"].rsplit(":", 1)
        scan = subprocess.run(
            [
                sys.executable, "-m", "sslyze", "--mozilla_config=intermediate",
                "--certinfo_ca_file", os.environ["CULVERT_CA"], f"{HOST}:{port}{{{address}}}",
            ],
            capture_output=True, text=True, timeout=600,
        )
        self.assertIn("OK - Compliant.", scan.stdout, scan.stdout + scan.stderr)
        self.assertEqual(scan.returncode, 0)
        print("compliant with Mozilla's intermediate profile")


if __name__ == "__main__":
    unittest.main()
