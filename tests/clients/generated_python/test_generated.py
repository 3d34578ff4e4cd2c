"""A client that openapi-python-client makes of the server's OpenAPI 3.1 document, against that server.

The generator must understand the whole document: what it leaves out, it warns of.
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.request

URL = os.environ["CULVERT_API_URL"]
TOKEN = os.environ["CULVERT_API_KEY"]


def generate(folder):
    """Makes the package `culvert_client` in a folder. Returns what the generator says."""
    document = pathlib.Path(folder) / "openapi.json"
    with urllib.request.urlopen(URL + "/openapi.json") as answer:
        document.write_bytes(answer.read())
    settings = pathlib.Path(folder) / "settings.yml"
    # The hook would format the package.
    settings.write_text(json.dumps({"post_hooks": []}))
    command = [
        str(pathlib.Path(sys.executable).parent / "openapi-python-client"),
        "generate",
        "--path=%s" % document,
        "--config=%s" % settings,
        "--meta=none",
        "--fail-on-warning",
        "--output-path=%s" % (pathlib.Path(folder) / "culvert_client"),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


class Generated(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        status, said = generate(cls.folder.name)
        if status != 0:
            raise AssertionError(said[-20000:])
        sys.path.insert(0, cls.folder.name)
        cls.client = importlib.import_module("culvert_client").AuthenticatedClient(
            base_url=URL, token=TOKEN, raise_on_unexpected_status=True
        )

    def call(self, tag, operation, *args, **kwargs):
        module = importlib.import_module("culvert_client.api.%s.%s" % (tag, operation))
        answer = module.sync_detailed(*args, client=self.client, **kwargs)
        self.assertIn(answer.status_code, (200, 201, 204), answer.content)
        return answer.parsed

    def test_ten_operations(self):
        models = importlib.import_module("culvert_client.models")
        me = self.call("root", "self_")
        self.assertEqual(me.role.value, "admin")

        policy = self.call("ip_policies", "ip_policies_create", body=models.IpPolicyCreate(description="generated"))
        self.assertEqual(policy.description, "generated")
        rule = self.call(
            "ip_policy_rules",
            "ip_policy_rules_create",
            body=models.IpPolicyRuleCreate(
                cidr="192.0.2.0/24", ip_policy_id=policy.id, action=models.IpPolicyRuleCreateAction.ALLOW
            ),
        )
        self.assertEqual((rule.action.value, rule.ip_policy.id), ("allow", policy.id))
        changed = self.call(
            "ip_policies", "ip_policies_update", policy.id, body=models.IpPolicyUpdate(description="changed")
        )
        self.assertEqual(changed.description, "changed")
        self.assertEqual(self.call("ip_policies", "ip_policies_get", policy.id).description, "changed")
        page = self.call("ip_policies", "ip_policies_list", limit=1, filter_='obj.description == "changed"')
        self.assertEqual([one.id for one in page.ip_policies], [policy.id])
        self.assertIsNone(page.next_page_uri)

        # A union, an enumeration, times and a list of references.
        endpoint = self.call(
            "endpoints",
            "endpoints_create",
            body=models.EndpointCreate(url="https://python.culvert.localhost", upstream_url="http://127.0.0.1:9"),
        )
        self.assertEqual((endpoint.scheme.value, endpoint.port), ("https", 443))
        self.assertEqual(endpoint.created_at.utcoffset().total_seconds(), 0)
        key = self.call("api_keys", "api_keys_create", body=models.ApiKeyCreate(description="generated"))
        self.assertTrue(key.token)
        # What a query parameter makes another response is an operation of its own.
        shown = self.call("api_keys", "api_keys_dry_run", body=models.ApiKeyCreate())
        self.assertEqual(shown.role.value, "admin")
        condition = models.AlertConditionCreate(type_=models.AlertConditionCreateType.KEY_EXPIRING, within="7d")
        rule = models.AlertRuleCreate(name="generated", condition=condition)
        rule = self.call("alert_rules", "alert_rules_create", body=rule)
        self.assertEqual((rule.condition.type_, rule.condition.within), ("key_expiring", "7d"))

        events = self.call("events", "events_list", order=models.EventsListOrder.OLDEST, type_=["ip_policy_created.v0"])
        self.assertIn("generated", [one.event["object"]["description"] for one in events.events])

        self.assertIsNone(self.call("endpoints", "endpoints_delete", endpoint.id))
        get = importlib.import_module("culvert_client.api.endpoints.endpoints_get")
        gone = get.sync_detailed(endpoint.id, client=self.client)
        self.assertEqual((gone.status_code, gone.parsed.status_code), (404, 404))


if __name__ == "__main__":
    unittest.main()
