"""What nginx, HAProxy and the edge make of the same bytes, cell by cell: targets, framing, upgrades and responses.

The table of docs/explanation/peers.md has the results. The column of the edge must be as there; those of the others
depend on their versions, and are compared if they are the ones of the table.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTP                      where the edge takes plain HTTP: address and port
PEERS_WRITE                       writes the table instead, with the reasons it has
"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/explanation/peers.md"
HOST = "peers.culvert.localhost"
PATIENCE = 60
# A proxy that responds to nothing closes the connection, or keeps it. Both are the same to a client that waits.
SILENT = 10

PLAIN = f"Host: {HOST}\r\n"


def get(target, fields=PLAIN, method=b"GET", version=b"1.1"):
    if isinstance(target, str):
        target = target.encode()
    return method + b" " + target + b" HTTP/" + version + b"\r\n" + fields.encode() + b"\r\n"


def post(fields, body):
    return get("/", PLAIN + fields, b"POST") + body


# Section, name, bytes of the client, what the origin does.
CASES = []
for name, target in [
    ("`/a//b`", "/a//b"),
    ("`/a/../b`", "/a/../b"),
    ("`/a/%2e%2e/b`", "/a/%2e%2e/b"),
    ("`/a%2Fb`", "/a%2Fb"),
    ("`/a/..%2fb`", "/a/..%2fb"),
    ("`/%61`", "/%61"),
    ('`/a"b`', '/a"b'),
    ("`/a<b>`", "/a<b>"),
    ("`/a{b}`", "/a{b}"),
    ("`/a\\b`", "/a\\b"),
    ("`/café`, UTF-8", "/caf\u00e9".encode()),
    ("`/a?b=<c>`", "/a?b=<c>"),
    ("`/a?b=é`, UTF-8", "/a?b=\u00e9".encode()),
    ("`/a;b/c`", "/a;b/c"),
    ("`/a#b`", "/a#b"),
    ("`/%00`", "/%00"),
    ("`/a b`, a blank", "/a b"),
    (f"`http://{HOST}/a`", f"http://{HOST}/a"),
    ("`a`, no slash", "a"),
]:
    CASES.append(("Targets", name, get(target), "answer"))
CASES.append(("Targets", "`*` of OPTIONS", get("*", method=b"OPTIONS"), "answer"))

for name, data in [
    ("chunked", post("Transfer-Encoding: chunked\r\n", b"2\r\nab\r\n0\r\n\r\n")),
    ("chunked with extension", post("Transfer-Encoding: chunked\r\n", b"2;x=y\r\nab\r\n0\r\n\r\n")),
    ("chunked with trailer", post("Transfer-Encoding: chunked\r\n", b"2\r\nab\r\n0\r\nx: y\r\n\r\n")),
    ("length and chunked", post("Content-Length: 12\r\nTransfer-Encoding: chunked\r\n", b"2\r\nab\r\n0\r\n\r\n")),
    ("length twice, equal", post("Content-Length: 2\r\nContent-Length: 2\r\n", b"ab")),
    ("length twice, different", post("Content-Length: 2\r\nContent-Length: 3\r\n", b"abc")),
    ("length `+2`", post("Content-Length: +2\r\n", b"ab")),
    ("length `2,2`", post("Content-Length: 2,2\r\n", b"ab")),
    ("`Transfer-Encoding: xchunked`", post("Transfer-Encoding: xchunked\r\n", b"2\r\nab\r\n0\r\n\r\n")),
    ("`Transfer-Encoding: gzip, chunked`", post("Transfer-Encoding: gzip, chunked\r\n", b"2\r\nab\r\n0\r\n\r\n")),
    ("a chunk size with a sign", post("Transfer-Encoding: chunked\r\n", b"+2\r\nab\r\n0\r\n\r\n")),
    ("chunks that end with LF", post("Transfer-Encoding: chunked\r\n", b"2\nab\n0\n\n")),
    ("a body without length", get("/", PLAIN, b"POST")),
    ("GET with a body", get("/", PLAIN + "Content-Length: 2\r\n") + b"ab"),
    ("a folded field", get("/", PLAIN + "x: a\r\n b\r\n")),
    ("a blank before the colon", get("/", PLAIN + "x : a\r\n")),
    ("lines that end with LF", get("/").replace(b"\r\n", b"\n")),
    ("two empty lines first", b"\r\n\r\n" + get("/")),
    ("no host", get("/", "")),
    ("two hosts", get("/", PLAIN + PLAIN)),
    ("HTTP/1.0", get("/", PLAIN, version=b"1.0")),
    ("HTTP/1.0, chunked", get("/", PLAIN + "Transfer-Encoding: chunked\r\n", b"POST", b"1.0") + b"2\r\nab\r\n0\r\n\r\n"),
    ("HTTP/2.0 in the line", get("/", PLAIN, version=b"2.0")),
    ("`Expect: 100-continue`", post("Content-Length: 2\r\nExpect: 100-continue\r\n", b"ab")),
    ("`Connection: x-secret`", get("/", PLAIN + "X-Secret: 1\r\nConnection: x-secret\r\n")),
    ("a field with a NUL", get("/", PLAIN + "x: a\0b\r\n")),
    ("a field with `_`", get("/", PLAIN + "x_y: a\r\n")),
]:
    CASES.append(("Framing and fields", name, data, "answer"))

for protocol in ["websocket", "tcp", "SPDY/3.1", "DERP", "h2c"]:
    fields = PLAIN + f"Connection: Upgrade\r\nUpgrade: {protocol}\r\n"
    if protocol == "websocket":
        fields += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    CASES.append(("Upgrades", f"`{protocol}`, accepted", get("/", fields), "switch"))
    CASES.append(("Upgrades", f"`{protocol}`, answered with 200", get("/", fields), "answer"))

for name, response in [
    ("200 with a length", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    ("200 to the end of the connection", b"HTTP/1.1 200 OK\r\n\r\nok"),
    ("HTTP/1.0 200", b"HTTP/1.0 200 OK\r\n\r\nok"),
    ("204", b"HTTP/1.1 204 No Content\r\n\r\n"),
    ("204 with a length", b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok"),
    ("304", b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n"),
    ("103 and 200", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    ("101 that was not asked for", b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"),
    ("299", b"HTTP/1.1 299 Odd\r\nContent-Length: 0\r\n\r\n"),
    ("599", b"HTTP/1.1 599 Odd\r\nContent-Length: 0\r\n\r\n"),
    ("999", b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n"),
    ("42", b"HTTP/1.1 42 Odd\r\nContent-Length: 0\r\n\r\n"),
    ("no reason", b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"),
    ("length and chunked", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    ("lengths that differ", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok"),
    ("a body that is too short", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok"),
    ("a folded field", b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\nContent-Length: 0\r\n\r\n"),
    ("a blank before the colon", b"HTTP/1.1 200 OK\r\nx : a\r\nContent-Length: 0\r\n\r\n"),
    ("no head", b"hello\r\n\r\n"),
    ("nothing", b""),
]:
    CASES.append(("Responses", name, get("/"), response))


class Origin:
    """Responds as the case says, and keeps what it received."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.does = "answer"
        self.received = None
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection:
            connection.settimeout(PATIENCE)
            data = b""
            while b"\r\n\r\n" not in data:
                more = connection.recv(65536)
                if not more:
                    return
                data += more
            head, _, body = data.partition(b"\r\n\r\n")
            does, fields = self.does, head.decode("latin-1").split("\r\n")
            named = dict(line.lower().split(":", 1) for line in fields[1:] if ":" in line)
            if "100-continue" in named.get("expect", ""):
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            if "chunked" in named.get("transfer-encoding", ""):
                framing = "chunked"
                while not re.search(rb"(^|\r\n)0\r\n([^\r]+\r\n)*\r\n$", body):
                    more = connection.recv(65536)
                    if not more:
                        return
                    body += more
            else:
                framing = "length" if "content-length" in named else ""
                length = int(named.get("content-length", "0"))
                while len(body) < length:
                    more = connection.recv(65536)
                    if not more:
                        return
                    body += more
            self.received = (fields[0], named, framing)
            if does == "switch":
                protocol = named.get("upgrade", "none").strip()
                # For the key of the example in RFC 6455 1.3.
                accept = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" if protocol == "websocket" else ""
                connection.sendall(
                    f"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: {protocol}\r\n{accept}\r\nfirst".encode()
                )
                while more := connection.recv(65536):
                    connection.sendall(more)
                return
            response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" if does == "answer" else does
            connection.sendall(response)


def exchange(port, data, switches):
    """What a client receives: as much as comes until the end, or until nothing comes for a while."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(data)
        client.settimeout(SILENT)
        received, has_sent = b"", False
        try:
            while True:
                if switches and b"first" in received and not has_sent:
                    client.sendall(b"second")
                    has_sent = True
                if (switches and b"second" in received) or is_whole(received):
                    break
                more = client.recv(65536)
                if not more:
                    return received, True
                received += more
        except (TimeoutError, ConnectionError):
            return received, False
    return received, False


def is_whole(received):
    """Whether these are the interim responses and the whole response with a known length."""
    rest = received
    while match := re.match(rb"HTTP/1\.[01] 1(?!01)\d\d.*?\r\n\r\n", rest, re.S):
        rest = rest[match.end():]
    head, end, body = rest.partition(b"\r\n\r\n")
    if not end or rest.startswith((b"HTTP/1.1 101", b"HTTP/1.0 101")):
        return False
    if re.match(rb"HTTP/1\.. (204|304)", head):
        return True
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.I)
    if length:
        return len(body) >= int(length[1])
    return re.search(rb"\r\ntransfer-encoding: *chunked", head, re.I) and body.endswith(b"0\r\n\r\n")


def cell(section, origin, port, data, does):
    origin.does, origin.received = does, None
    received, _ = exchange(port, data, does == "switch")
    statuses = [int(one) for one in re.findall(rb"HTTP/1\.[01] (\d+)", received)]
    status = ", ".join(map(str, statuses)) or "no response"
    seen = origin.received
    if seen is None:
        return status
    line, named, framing = seen
    if section == "Targets":
        target = line.split(" ")[1].encode("latin-1")
        return "`" + re.sub(r"\\\\", r"\\", target.decode("utf-8", "backslashreplace")) + "`"
    if section == "Upgrades":
        asked = "passes" if named.get("upgrade") else "removed"
        if does != "switch":
            return f"{asked}; {status}"
        if status == "101":
            return "relayed" if b"second" in received else "101, then silent"
        return f"{asked}; {status}"
    if section == "Responses":
        body = received.rpartition(b"\r\n\r\n")[2]
        if re.search(rb"transfer-encoding: *chunked", received, re.I):
            return f"{status}, chunked" + ("" if b"0\r\n\r\n" in received else ", cut")
        if re.search(rb"content-length: *5", received, re.I) and len(body) < 5:
            return f"{status}, cut"
        return status
    kept = [name for name in ("x", "x_y", "x-secret") if name in named]
    parts = [status, framing, "with " + " ".join(f"`{one}`" for one in kept) if kept else ""]
    return ", ".join(part for part in parts if part)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_for(port):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"nothing listens on port {port}")


NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/a;
    proxy_temp_path {folder}/b;
    fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d;
    scgi_temp_path {folder}/e;
    map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{origin};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
        }}
    }}
}}
"""

HAPROXY = """
global
defaults
    mode http
    timeout connect 20s
    timeout client 60s
    timeout server 60s
listen one
    bind 127.0.0.1:{port}
    server origin 127.0.0.1:{origin}
"""


class Peers(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.origin = Origin()
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.processes = []
        self.addCleanup(lambda: [process.kill() or process.wait() for process in self.processes])

    def start(self, name, configuration, command):
        port = free_port()
        file = self.folder / name
        file.write_text(configuration.format(folder=self.folder, port=port, origin=self.origin.port))
        self.processes.append(
            subprocess.Popen([*command, file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        wait_for(port)
        return port

    def edge(self):
        # Responses come as they are, also those that the edge would leave out by default.
        body = {"url": f"http://{HOST}", "upstream_url": f"http://127.0.0.1:{self.origin.port}"}
        request = urllib.request.Request(
            os.environ["CULVERT_API_URL"] + "/endpoints",
            json.dumps(body).encode(),
            {
                "Authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
                "Content-Type": "application/json",
            },
        )
        urllib.request.urlopen(request, timeout=PATIENCE).close()
        return int(os.environ["CULVERT_HTTP"].rsplit(":", 1)[1])

    def test_each_cell_is_as_the_page_says(self):
        nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
        haproxy = shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")
        ports = {"culvert": self.edge()}
        if nginx:
            ports["nginx"] = self.start("nginx.conf", NGINX, [nginx, "-p", self.folder, "-c"])
        if haproxy:
            ports["HAProxy"] = self.start("haproxy.cfg", HAPROXY, [haproxy, "-db", "-f"])
        found = {}
        for section, name, data, does in CASES:
            for proxy, port in ports.items():
                found[section, name, proxy] = cell(section, self.origin, port, data, does)
        page = PAGE.read_text() if PAGE.exists() else ""
        rows, versions = read(page)
        if os.environ.get("PEERS_WRITE"):
            write(page, found, rows)
            return
        checked = ["culvert"]
        for proxy, command in [("nginx", [nginx, "-v"]), ("HAProxy", [haproxy, "-v"])]:
            if proxy in ports and versions.get(proxy) == version(command):
                checked.append(proxy)
        wrong = [
            f"{section}, {name}, {proxy}: {found[section, name, proxy]}, on the page {rows.get((section, name), {}).get(proxy)}"
            for section, name, _, _ in CASES
            for proxy in checked
            if rows.get((section, name), {}).get(proxy) != found[section, name, proxy]
        ]
        self.assertEqual(wrong, [])
        for row, cells in rows.items():
            differs = cells["culvert"] not in (cells["nginx"], cells["HAProxy"])
            self.assertTrue(cells["why"] or not differs, f"{row}: a difference has a reason")


COLUMNS = ["nginx", "HAProxy", "culvert", "why"]


def version(command):
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    return re.search(r"\d+\.\d+\.\d+", shown.stdout + shown.stderr)[0]


def read(page):
    rows, section = {}, ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 5 and not set(cells[0]) <= set("- "):
            rows[section, cells[0]] = dict(zip(COLUMNS, cells[1:]))
    versions = dict(re.findall(r"(nginx|HAProxy) (\d+\.\d+\.\d+)", page))
    return {key: row for key, row in rows.items() if row["culvert"] != "culvert"}, versions


def write(page, found, rows):
    intro = page.split("\n## ")[0].rstrip() if page else "# What nginx, HAProxy and culvert make of the same bytes"
    text = [intro]
    for section in dict.fromkeys(case[0] for case in CASES):
        text.append(f"\n## {section}\n\n| {'sent' if section != 'Responses' else 'the upstream responds'} | nginx | HAProxy | culvert | why |\n|---|---|---|---|---|")
        for _, name, _, _ in (case for case in CASES if case[0] == section):
            why = rows.get((section, name), {}).get("why", "")
            cells = [found.get((section, name, proxy), "") for proxy in COLUMNS[:3]]
            cells = [one.replace("|", "\\|") for one in [name, *cells, why]]
            text.append("| " + " | ".join(cells) + " |")
    PAGE.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    unittest.main()
