"""The agent's API under pyngrok, a published wrapper, which starts our program as it starts ngrok's and finds its API in
its log."""

import base64
import json
import os
import tempfile
import unittest
import urllib.request

from pyngrok import agent, conf, ngrok
from pyngrok.exception import PyngrokNgrokError, PyngrokNgrokHTTPError

from harness import PROGRAM, Service, ask, credential, environment, eventually


class Wrapper(unittest.TestCase):
    """Each case is an agent without endpoints. `version` is that of the configuration format."""

    def configure(self, version):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        path = os.path.join(self.folder.name, "ngrok.yml")
        with open(path, "w") as file:
            file.write('version: "3"\nagent:\n  web_addr: 127.0.0.1:0\n')
        os.environ.update(environment())
        config = conf.PyngrokConfig(
            ngrok_path=PROGRAM, config_path=path, auth_token=credential(), region="eu", config_version=version,
            monitor_thread=True, startup_timeout=60, request_timeout=30,
        )
        self.addCleanup(ngrok.kill, config)
        self.service = Service()
        self.addCleanup(self.service.stop)
        return config

    def test_tunnels_as_in_version_2(self):
        config = self.configure("2")
        tunnel = ngrok.connect(
            str(self.service.port), "http", "web", pyngrok_config=config, schemes=["http"],
            domain="web.culvert.localhost", host_header="rewrite",
        )
        self.assertTrue(tunnel.public_url.startswith("http://web.culvert.localhost"))
        self.assertEqual((tunnel.name, tunnel.proto), ("web", "http"))
        self.assertEqual(tunnel.config, {"addr": f"http://localhost:{self.service.port}", "inspect": True})
        raw = ngrok.connect("22", "tcp", "raw", pyngrok_config=config)
        self.assertTrue(raw.public_url.startswith("tcp://"))
        self.assertEqual({it.name for it in ngrok.get_tunnels(config)}, {"web", "raw"})
        with self.assertRaises(PyngrokNgrokHTTPError) as taken:
            ngrok.connect("80", "http", "web", pyngrok_config=config)
        self.assertEqual(taken.exception.status_code, 400)
        body = json.loads(taken.exception.body)
        self.assertEqual(set(body), {"error_code", "status_code", "msg", "details"})

        for path in ["/one", "/two", "/three"]:
            self.assertEqual(ask("web.culvert.localhost", path, "POST", b"hello")[0], 200)
        requests = eventually("all requests", lambda: len(found := agent.get_requests("web", config)) == 3 and found)
        self.assertEqual([it.request["uri"] for it in requests], ["/three", "/two", "/one"])
        first = requests[-1]
        self.assertEqual(first.tunnel_name, "web")
        self.assertEqual((first.request["method"], first.request["proto"]), ("POST", "HTTP/1.1"))
        self.assertEqual(first.request["headers"]["Content-Length"], ["5"])
        # `host_header` changes what the service sees.
        self.assertEqual(first.request["headers"]["Host"], [f"localhost:{self.service.port}"])
        self.assertTrue(base64.b64decode(first.request["raw"]).endswith(b"\r\n\r\nhello"))
        self.assertEqual((first.response["status"], first.response["status_code"]), ("200 OK", 200))
        self.assertEqual(first.response["headers"]["Content-Type"], ["application/json"])
        self.assertGreater(first.duration, 0)
        self.assertEqual(agent.get_requests("raw", config), [])
        api = ngrok.get_ngrok_process(config).api_url
        limited = ngrok.api_request(f"{api}/api/requests/http", params={"limit": 2})
        self.assertEqual([it["request"]["uri"] for it in limited["requests"]], ["/three", "/two"])
        with self.assertRaises(PyngrokNgrokHTTPError):
            ngrok.api_request(f"{api}/api/requests/http", params={"limit": "x"})

        agent.replay_request(first.id, pyngrok_config=config)
        again = agent.get_requests("web", config)[0]
        self.assertEqual(again.request["uri"], "/one")
        self.assertEqual(agent.get_request(again.id, config).data, again.data)
        tunnel.refresh_metrics()
        self.assertEqual(tunnel.metrics["http"]["count"], 4)
        conns = tunnel.metrics["conns"]
        self.assertEqual(set(conns), {"count", "gauge", "rate1", "rate5", "rate15", "p50", "p90", "p95", "p99"})
        self.assertGreaterEqual(conns["count"], 1)
        self.assertGreater(tunnel.metrics["http"]["p50"], 0)
        agent.delete_requests(config)
        self.assertEqual(agent.get_requests(pyngrok_config=config), [])

        # A request that the service does not answer.
        self.service.stop()
        self.assertEqual(ask("web.culvert.localhost", "/down")[0], 502)
        failed = eventually("the failed request", lambda: agent.get_requests("web", config))[0]
        self.assertEqual((failed.request["uri"], failed.response["status_code"]), ("/down", 502))

        status = agent.get_agent_status(config)
        self.assertEqual((status.status, status.uri), ("online", "/api/status"))
        ngrok.disconnect(tunnel.public_url, config)
        self.assertEqual([it.name for it in ngrok.get_tunnels(config)], ["raw"])
        self.assertEqual(ask("web.culvert.localhost", "/")[0], 404)
        # The name is free again.
        ngrok.connect("80", "http", "web", pyngrok_config=config, domain="web.culvert.localhost")

    def test_endpoints_as_in_version_3(self):
        config = self.configure("3")
        endpoint = ngrok.connect(
            str(self.service.port), name="three", pyngrok_config=config, url="http://three.culvert.localhost",
            traffic_policy={"on_http_response": [{"actions": [{"type": "add-headers", "config": {"headers": {"x-a": "b"}}}]}]},
        )
        self.assertEqual(endpoint.upstream, {"url": f"http://localhost:{self.service.port}"})
        self.assertEqual(ask("three.culvert.localhost", "/")[0], 200)
        raw = ngrok.connect("22", "tcp", "bytes", pyngrok_config=config)
        self.assertTrue(raw.public_url.startswith("tcp://"))
        self.assertEqual({it.name for it in ngrok.get_tunnels(config)}, {"three", "bytes"})
        endpoint.refresh_metrics()
        ngrok.disconnect(raw.public_url, config)
        self.assertEqual([it.name for it in ngrok.get_tunnels(config)], ["three"])

    def test_a_wrong_token_is_the_error_of_the_start(self):
        config = self.configure("2")
        config.auth_token = "wrong"
        with self.assertRaises(PyngrokNgrokError):
            ngrok.get_ngrok_process(config)


if __name__ == "__main__":
    unittest.main()
