"""The agent under test and its server, named by CULVERT_PROGRAM, CULVERT_AGENTS, CULVERT_API_URL and CULVERT_API_KEY."""

import http.server
import json
import os
import threading
import time
import urllib.request

PROGRAM = os.environ["CULVERT_PROGRAM"]


def credential():
    """A new token for agents."""
    request = urllib.request.Request(os.environ["CULVERT_API_URL"] + "/credentials", b"{}", method="POST")
    request.add_header("authorization", "Bearer " + os.environ["CULVERT_API_KEY"])
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())["token"]


def environment(**more):
    """Variables of an agent."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CULVERT_")}
    own |= {"CULVERT_SERVER": os.environ["CULVERT_AGENTS"], "CULVERT_CA_FILE": os.environ["CULVERT_CA"]}
    return own | more


def eventually(what, check, seconds=60):
    """What `check` returns, once it returns something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited in vain: {what}")


def ask(host, path, method="GET", body=None, headers=None):
    """A request through the edge: status and body."""
    import http.client

    address, port = os.environ["CULVERT_HTTP"].split(":")
    connection = http.client.HTTPConnection(address, int(port), timeout=30)
    connection.request(method, path, body, {"host": host} | (headers or {}))
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


class Service:
    """An HTTP service that answers with its name, as JSON."""

    def __init__(self, name="one"):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def answer(self):
                length = int(self.headers.get("content-length", 0))
                got = self.rfile.read(length).decode()
                body = json.dumps({"service": name, "path": self.path, "got": got}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
