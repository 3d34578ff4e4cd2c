"""The Helm chart: linted and rendered by Helm's own library, validated against the schemas of Kubernetes, and
compared with what it rendered before."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import helm_python
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "packaging/chart/culvert"
GOLDEN = pathlib.Path(__file__).with_name("golden")
# The oldest and a recent version of Kubernetes.
KUBERNETES = ["1.30", "1.34"]

CASES = {
    # One node with SQLite.
    "volume": {},
    # Three nodes with PostgreSQL.
    "database": {
        "replicaCount": 3,
        "database": {"existingSecret": "culvert-database"},
        "masterKey": {"existingSecret": "culvert-master-key"},
        "bootstrap": {"existingSecret": "culvert-bootstrap"},
        "settings": {
            "event_log": "nats://nats:4222",
            "api": {"base_url": "https://culvert.example.com"},
            "edge": {
                "domain": "example.com",
                "memory_bytes": 1073741824,
                "redirect_http": False,
                "trusted_proxies": ["10.0.0.0/8", "fd00::/8"],
            },
        },
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "service": {
            "api": {"annotations": {"example.com/internal": "true"}},
            "kubernetes": {"enabled": True},
        },
    },
    # Everything that may be left out is, and everything that may be added is.
    "bare": {
        "image": {"repository": "registry.example.com/culvert", "tag": "1.2.3", "pullSecrets": [{"name": "pull"}]},
        "service": {
            "edge": {"type": "ClusterIP", "tcpPorts": {"count": 0}},
            "agents": {"type": "ClusterIP"},
        },
        "networkPolicy": {"enabled": False},
        "extraEnv": [
            {"name": "CULVERT_OAUTH__PROVIDERS__GITHUB__CLIENT_ID", "value": "culvert"},
            {"name": "CULVERT_OAUTH__PROVIDERS__GITHUB__CLIENT_SECRET",
             "valueFrom": {"secretKeyRef": {"name": "github", "key": "secret"}}}
        ],
        "extraVolumes": [{"name": "certificates", "secret": {"secretName": "tls"}}],
        "extraVolumeMounts": [{"name": "certificates", "mountPath": "/run/certificates"}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "edge", "operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
        "podAnnotations": {"example.com/team": "edge"},
    },
}


def render(values):
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values=values, name="demo", namespace="ingress")
    return {name.split("/", 1)[1]: text.strip() for name, text in sorted(files.items()) if text.strip()}


def objects(files):
    return [
        document
        for name, text in files.items()
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]


def the(found, kind, name="demo-culvert"):
    [one] = [item for item in found if item["kind"] == kind and item["metadata"]["name"] == name]
    return one


def container(found, kind):
    [one] = the(found, kind)["spec"]["template"]["spec"]["containers"]
    return one


class Chart(unittest.TestCase):
    maxDiff = None

    def test_lint(self):
        for name, values in CASES.items():
            with self.subTest(name):
                report = helm_python.lint(CHART, values, strict=True)
                serious = [message for message in report["messages"] if message["severity"] > 1]
                self.assertEqual((serious, report["errors"]), ([], []))

    def test_kubernetes_accepts_all_objects(self):
        for name, values in CASES.items():
            for item in objects(render(values)):
                # A resource of the Prometheus Operator, which Kubernetes does not define.
                if item["kind"] == "ServiceMonitor":
                    continue
                for version in KUBERNETES:
                    with self.subTest(case=name, kind=item["kind"], version=version):
                        kubernetes_validate.validate(item, version, strict=True)

    def test_golden(self):
        stale = []
        for name, values in CASES.items():
            text = "".join(f"# Source: {file}\n{content}\n\n" for file, content in render(values).items())
            golden = GOLDEN / f"{name}.txt"
            if not golden.exists() or golden.read_text() != text:
                GOLDEN.mkdir(exist_ok=True)
                golden.write_text(text)
                stale.append(golden.name)
        self.assertEqual(stale, [], "rewritten, look at them and commit them")

    def test_every_variable_is_a_setting(self):
        for name, values in CASES.items():
            kind = "Deployment" if values.get("database") else "StatefulSet"
            given = container(objects(render(values)), kind)["env"]
            names = [item["name"] for item in given]
            self.assertEqual(len(names), len(set(names)), "a variable is set twice")
            # What the pod would see, with samples for what secrets and the pod contribute.
            samples = {
                "CULVERT_NODE_NAME": "pod",
                "CULVERT_DATABASE_URL": "postgres://u:p@host/d",
                "CULVERT_OAUTH__PROVIDERS__GITHUB__CLIENT_SECRET": "secret",
            }
            environment = {
                item["name"]: item.get("value", samples.get(item["name"])).replace("$(POD_IP)", "10.0.0.7")
                for item in given
                if item["name"] not in ("POD_IP", "CULVERT_BOOTSTRAP__API_KEY")
            }
            with tempfile.TemporaryDirectory() as folder, self.subTest(name):
                shown = subprocess.run(
                    [os.environ["CULVERT_BINARY"], "config", "show"],
                    env=environment | {"PATH": os.environ["PATH"]},
                    cwd=folder,
                    capture_output=True,
                    text=True,
                )
                self.assertEqual(shown.returncode, 0, shown.stderr)
                settings = json.loads(shown.stdout)
                self.assertEqual(settings["data_dir"], "/var/lib/culvert/data")
                if kind == "Deployment":
                    self.assertEqual(settings["nodes"]["advertised_addr"], "10.0.0.7:8442")
                    self.assertEqual(settings["edge"]["memory_bytes"], 1073741824)
                    self.assertEqual(settings["edge"]["trusted_proxies"], ["10.0.0.0/8", "fd00::/8"])
                    self.assertEqual(settings["edge"]["redirect_http"], False)

    def test_services_lead_to_every_listener(self):
        for name, values in CASES.items():
            found = objects(render(values))
            kind = "Deployment" if values.get("database") else "StatefulSet"
            ports = {port["name"]: port["containerPort"] for port in container(found, kind)["ports"]}
            reached = {
                port["targetPort"]
                for item in found
                if item["kind"] == "Service"
                for port in item["spec"]["ports"]
            }
            self.assertEqual({port for port in reached if isinstance(port, str)}, set(ports), name)

    def test_a_rolling_update_waits_for_the_load_balancer(self):
        found = objects(render(CASES["database"]))
        spec = the(found, "Deployment")["spec"]
        self.assertEqual(spec["strategy"]["rollingUpdate"], {"maxSurge": 1, "maxUnavailable": 0})
        pod = spec["template"]["spec"]
        one = container(found, "Deployment")
        notice = one["lifecycle"]["preStop"]["sleep"]["seconds"]
        drain = next(item["value"] for item in one["env"] if item["name"] == "CULVERT_SHUTDOWN__DRAIN")
        self.assertGreater(pod["terminationGracePeriodSeconds"], notice + int(drain.rstrip("s")))
        self.assertFalse(pod["enableServiceLinks"])

    def test_values_that_could_not_work_are_refused(self):
        for values, why in [
            ({"replicaCount": 2}, "more than one node needs a database"),
            ({"database": {"existingSecret": "db"}}, "the same master key"),
            ({"replicas": 2}, "replicas"),
            ({"service": {"edge": {"httpPort": 0}}}, "httpPort"),
        ]:
            with self.subTest(why), self.assertRaises(helm_python.HelmError) as refused:
                with helm_python.Chart.load(CHART) as chart:
                    chart.validate_schema(values)
                render(values)
            self.assertIn(why, str(refused.exception))


if __name__ == "__main__":
    unittest.main()
