"""Metrics as their readers see them: the parsers of Prometheus' Python client, `promtool`, and a Prometheus that scrapes
the server and answers every query of the Grafana dashboard.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTP                      where the edge takes plain HTTP: address and port
CULVERT_METRICS                   where it serves metrics: address and port
"""

import contextlib
import http.client
import http.server
import json
import math
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

METRICS = os.environ["CULVERT_METRICS"]
HOST = "measured.culvert.localhost"
POLICY = "on_http_request: [{actions: [{type: custom-response, config: {body: hello}}]}]"
DASHBOARD = pathlib.Path(__file__).resolve().parents[3] / "docs/grafana/culvert.json"
PATIENCE = 120


def eventually(what, condition):
    """Waits until the condition returns something true, and returns that."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.05)


def create(path, body):
    request = urllib.request.Request(
        os.environ["CULVERT_API_URL"] + path,
        data=json.dumps(body).encode(),
        headers={
            "Authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def scrape(accept):
    headers = {"accept": accept} if accept else {}
    with urllib.request.urlopen(urllib.request.Request(f"http://{METRICS}/metrics", headers=headers)) as answer:
        return answer.headers["content-type"], answer.read().decode()


def visit():
    connection = http.client.HTTPConnection(os.environ["CULVERT_HTTP"], timeout=60)
    connection.request("GET", "/", headers={"host": HOST})
    with contextlib.closing(connection):
        return connection.getresponse().status


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        threading.Thread(target=cls.hook.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{cls.hook.server_address[1]}/"
        destination = create("/event_destinations", {"format": "json", "target": {"webhook": {"url": url}}})
        create("/event_subscriptions", {
            "destination_ids": [destination["id"]], "sources": [{"type": "http_request_complete.v0"}],
        })
        create("/endpoints", {"url": f"http://{HOST}", "traffic_policy": POLICY})
        eventually("the endpoint is live", lambda: visit() == 200)
        eventually("an event is sent", lambda: "culvert_destination_latency_seconds_count{" in scrape(None)[1])

    @classmethod
    def tearDownClass(cls):
        cls.hook.shutdown()
        cls.hook.server_close()

    def test_openmetrics(self):
        kind, text = scrape("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2")
        self.assertEqual(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8")
        families = list(openmetrics(text))
        for family in families:
            self.assertTrue(family.documentation, family.name)
            self.assertNotEqual(family.type, "unknown", family.name)
        print(f"openmetrics: {len(families)} metrics")

    def test_classic(self):
        # Without a wish, too.
        for accept in ("text/plain;version=0.0.4;q=1,*/*;q=0.1", "*/*", None):
            kind, text = scrape(accept)
            self.assertEqual(kind, "text/plain; version=0.0.4; charset=utf-8")
            families = list(classic(text))
            for family in families:
                self.assertTrue(family.documentation, family.name)
                self.assertNotEqual(family.type, "unknown", family.name)
        promtool = shutil.which("promtool")
        if promtool is None:
            return print("skipped: promtool is not here")
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        print(f"promtool: {len(families)} metrics and nothing to say")

    def test_prometheus(self):
        prometheus = shutil.which("prometheus")
        if prometheus is None:
            return print("skipped: prometheus is not here")
        with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
            settings = pathlib.Path(folder) / "prometheus.yml"
            settings.write_text(json.dumps({
                "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms"},
                "scrape_configs": [{"job_name": "culvert", "static_configs": [{"targets": [METRICS]}]}],
            }))
            free.close()
            server = subprocess.Popen([
                prometheus, f"--config.file={settings}", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={address}", "--log.level=error",
            ])
            try:
                self.dashboard(f"http://{address}/api/v1/")
            finally:
                server.kill()
                server.wait()

    def dashboard(self, api):
        def ask(path, **parameters):
            visit()
            try:
                with urllib.request.urlopen(api + path + "?" + urllib.parse.urlencode(parameters)) as answer:
                    return json.loads(answer.read())["data"]
            except urllib.error.HTTPError as refused:
                if refused.code == 503:
                    # It is still starting.
                    return None
                raise AssertionError(f"{parameters}: {refused.read().decode()}") from refused
            except urllib.error.URLError:
                return None

        def value(query):
            """The numbers that a query finds, if it finds some."""
            data = ask("query", query=query)
            numbers = [float(series["value"][1]) for series in data["result"]] if data else []
            return [number for number in numbers if not math.isnan(number)]

        eventually("the server is scraped", lambda: value("up{job='culvert'}") == [1.0])
        dashboard = json.loads(DASHBOARD.read_text())
        queries = [
            target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
        ]
        self.assertGreater(len(queries), 25)
        for query in queries:
            query = query.replace("$instance", ".*").replace("$__rate_interval", "15s")
            eventually(f"a number for {query}", lambda: value(query))
        # Its types are those of the metrics.
        types = {name: entry[0]["type"] for name, entry in ask("metadata").items()}
        self.assertEqual(types["culvert_endpoint_latency_seconds"], "histogram")
        self.assertNotIn("unknown", types.values())
        [variable] = dashboard["templating"]["list"]
        metric, label = variable["definition"].removeprefix("label_values(").removesuffix(")").split(", ")
        self.assertEqual(ask(f"label/{label}/values", **{"match[]": metric}), [METRICS])
        print(f"prometheus: numbers for {len(queries)} queries of the dashboard")


if __name__ == "__main__":
    unittest.main()
