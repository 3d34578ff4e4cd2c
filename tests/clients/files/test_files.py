"""Files of a folder, served by the edge, by an agent and by nginx: the same requests, and what each responds.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTP                      where the edge takes plain HTTP: address and port
CULVERT_AGENTS, CULVERT_PROGRAM   where it takes agents, and the program with ours
CULVERT_CA                        file with the authority of its certificates
CULVERT_FOLDER                    the folder whose folders it may serve
"""

import gzip
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

HTTP = os.environ["CULVERT_HTTP"].rsplit(":", 1)
FOLDER = pathlib.Path(os.environ["CULVERT_FOLDER"])
SITE = FOLDER / "site"
PATIENCE = 60
DATE = 1_700_000_000
EARLIER, LATER = "Tue, 14 Nov 2023 22:13:19 GMT", "Tue, 14 Nov 2023 22:13:21 GMT"

CONFIGURATION = """
daemon off;
{user}
pid {place}/pid;
error_log {place}/errors;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {place}/b;
    proxy_temp_path {place}/p;
    fastcgi_temp_path {place}/f;
    uwsgi_temp_path {place}/u;
    scgi_temp_path {place}/s;
    charset utf-8;
    charset_types text/plain text/javascript;
    types {{ text/html html; text/plain txt; text/javascript js; }}
    default_type application/octet-stream;
    server {{
        listen 127.0.0.1:{port};
        root {site};
        absolute_redirect off;
        if_modified_since before;
        gzip_static on;
        gzip_vary on;
        disable_symlinks on from=$document_root;
        location ~ /\\.(?!well-known/) {{ return 404; }}
        location / {{ try_files $uri $uri/index.html $uri/ =404; }}
    }}
}}
"""

# Name, target, fields, the status of culvert, that of nginx. Equal statuses mean equal responses. In fields, ETAG stands for
# the tag of `/data.bin`, and DATE for its date.
CASES = [
    ("index", "/", {}, 200, 200),
    ("index by name", "/index.html", {}, 200, 200),
    ("folder", "/folder/", {}, 200, 200),
    ("empty folder: no listing", "/empty/", {}, 404, 403),
    ("absent", "/absent", {}, 404, 404),
    ("file as a folder", "/data.bin/", {}, 404, 404),
    ("below a file", "/data.bin/x", {}, 404, 404),
    ("escaped", "/d%61ta%2Ebin", {}, 200, 200),
    ("two slashes", "//data.bin", {}, 200, 200),
    ("text", "/a.txt", {}, 200, 200),
    ("empty file", "/zero.txt", {}, 200, 200),
    ("name with blanks", "/with%20blank.txt", {}, 200, 200),
    ("long name", "/" + "a" * 300, {}, 404, 404),
    ("dots, which the edge resolves", "/folder/%2e%2e/data.bin", {}, 200, 200),
    ("dots above the root", "/%2e%2e/secret", {}, 404, 400),
    ("escaped slash", "/..%2fsecret", {}, 400, 400),
    ("backslash", "/..%5csecret", {}, 400, 404),
    ("dot file", "/.git/config", {}, 404, 404),
    ("well-known", "/.well-known/x.txt", {}, 200, 200),
    ("link that leads out", "/out", {}, 404, 404),
    ("link that leads in", "/in.txt", {}, 200, 404),
    ("FIFO", "/fifo", {}, 404, 404),
    ("one range", "/data.bin", {"Range": "bytes=0-9"}, 206, 206),
    ("to the end", "/data.bin", {"Range": "bytes=990-"}, 206, 206),
    ("the last", "/data.bin", {"Range": "bytes=-10"}, 206, 206),
    ("beyond the end", "/data.bin", {"Range": "bytes=990-5000"}, 206, 206),
    ("two ranges", "/data.bin", {"Range": "bytes=0-1,5-6"}, 206, 206),
    ("ranges that overlap to more than the file", "/data.bin", {"Range": "bytes=0-999,0-999"}, 200, 200),
    ("behind the end", "/data.bin", {"Range": "bytes=1000-"}, 416, 416),
    ("another unit", "/data.bin", {"Range": "lines=0-1"}, 200, 200),
    ("If-Range, the tag", "/data.bin", {"Range": "bytes=0-9", "If-Range": "ETAG"}, 206, 206),
    ("If-Range, another tag", "/data.bin", {"Range": "bytes=0-9", "If-Range": '"x"'}, 200, 200),
    ("If-Range, the date", "/data.bin", {"Range": "bytes=0-9", "If-Range": "DATE"}, 206, 206),
    ("If-Range, another date", "/data.bin", {"Range": "bytes=0-9", "If-Range": EARLIER}, 200, 200),
    ("If-None-Match, the tag", "/data.bin", {"If-None-Match": "ETAG"}, 304, 304),
    ("If-None-Match, weak", "/data.bin", {"If-None-Match": 'W/"x", W/ETAG'}, 304, 304),
    ("If-None-Match, any", "/data.bin", {"If-None-Match": "*"}, 304, 304),
    ("If-None-Match, another", "/data.bin", {"If-None-Match": '"x"'}, 200, 200),
    ("If-Modified-Since, the date", "/data.bin", {"If-Modified-Since": "DATE"}, 304, 304),
    ("If-Modified-Since, later", "/data.bin", {"If-Modified-Since": LATER}, 304, 304),
    ("If-Modified-Since, earlier", "/data.bin", {"If-Modified-Since": EARLIER}, 200, 200),
    ("both, another tag", "/data.bin", {"If-None-Match": '"x"', "If-Modified-Since": "DATE"}, 200, 200),
    ("If-Match, the tag", "/data.bin", {"If-Match": "ETAG"}, 200, 200),
    ("If-Match, another", "/data.bin", {"If-Match": '"x"'}, 412, 412),
    ("If-Unmodified-Since, earlier", "/data.bin", {"If-Unmodified-Since": EARLIER}, 412, 412),
    ("gzip beside the file", "/app.js", {"Accept-Encoding": "gzip"}, 200, 200),
    ("gzip beside the file, not wanted", "/app.js", {}, 200, 200),
    ("gzip refused", "/app.js", {"Accept-Encoding": "gzip;q=0"}, 200, 200),
    ("range of the encoded file", "/app.js", {"Accept-Encoding": "gzip", "Range": "bytes=0-4"}, 206, 200),
]


def call(path, body):
    """The status of an API call, and its answer."""
    request = urllib.request.Request(
        os.environ["CULVERT_API_URL"] + path,
        data=json.dumps(body).encode(),
        headers={
            "Authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def create(path, body):
    status, answer = call(path, body)
    assert status == 201, answer
    return answer


def host(name):
    return f"{name}.files.culvert.localhost"


def ask(address, name, target, fields=None, method="GET"):
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
    for field, value in {"Host": host(name), "Connection": "close", **(fields or {})}.items():
        connection.putheader(field, value)
    connection.endheaders()
    answer = connection.getresponse()
    answer.content = answer.read()
    connection.close()
    return answer


def facts(answer):
    """What a client learns from a response, without what differs between servers."""
    kind, content = answer.headers.get("content-type"), answer.content
    if answer.status >= 300:
        return {"status": answer.status, "location": answer.headers["location"],
                "range": answer.headers["content-range"], "vary": (answer.headers["vary"] or "").lower()}
    if kind and kind.startswith("multipart/byteranges"):
        boundary = re.search("boundary=(.*)", kind)[1].encode()
        parts = content.split(b"--" + boundary)[1:-1]
        content = [
            (re.search(rb"(?i)content-range: (.*)\r\n", part)[1], part.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n"))
            for part in parts
        ]
        kind, length = "multipart/byteranges", None
    else:
        length = answer.headers["content-length"]
    return {
        "status": answer.status, "type": kind, "length": length, "content": content,
        "range": answer.headers["content-range"], "coding": answer.headers["content-encoding"],
        "vary": (answer.headers["vary"] or "").lower(), "date": answer.headers["last-modified"],
    }


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        for folder in ("folder", "empty", ".git", ".well-known"):
            (SITE / folder).mkdir(parents=True)
        script = b"let a = 1;\n" * 100
        for name, content in {
            "index.html": b"<h1>root</h1>", "folder/index.html": b"<h1>folder</h1>", "data.bin": bytes(range(250)) * 4,
            "a.txt": "caf\u00e9\n".encode(), "zero.txt": b"", "with blank.txt": b"blank", ".git/config": b"secret",
            ".well-known/x.txt": b"x", "app.js": script, "app.js.gz": gzip.compress(script),
            "both.js": script, "both.js.gz": b"gzip", "both.js.br": b"brotli", "both.js.zst": b"zstd",
            "old.js": script, "large.bin": os.urandom(3_000_001),
        }.items():
            (SITE / name).write_bytes(content)
            os.utime(SITE / name, (DATE, DATE))
        (SITE / "old.js.gz").write_bytes(b"stale")
        os.utime(SITE / "old.js.gz", (DATE - 1, DATE - 1))
        (FOLDER / "secret").write_bytes(b"secret")
        (SITE / "out").symlink_to("../secret")
        (SITE / "in.txt").symlink_to("a.txt")
        os.mkfifo(SITE / "fifo")
        create("/endpoints", {"url": f"http://{host('edge')}", "upstream_url": f"file://{SITE}"})
        cls.log = open(pathlib.Path(cls.place.name) / "agent.log", "w+")
        cls.agent = subprocess.Popen(
            [os.environ["CULVERT_PROGRAM"], "http", f"file://{SITE}", "--url", f"http://{host('agent')}",
             "--server", os.environ["CULVERT_AGENTS"], "--ca", os.environ["CULVERT_CA"], "--log", "stdout",
             "--log-format", "json"],
            env={**os.environ, "HOME": cls.place.name, "CULVERT_AUTHTOKEN": create("/credentials", {})["token"]},
            stdin=subprocess.DEVNULL, stdout=cls.log, stderr=cls.log,
        )

    @classmethod
    def tearDownClass(cls):
        cls.agent.send_signal(signal.SIGTERM)
        cls.agent.wait()
        cls.log.close()
        cls.place.cleanup()

    def eventually(self, what, condition):
        deadline, last = time.monotonic() + PATIENCE, None
        while True:
            try:
                last = condition()
                if last:
                    return last
            except OSError as error:
                last = error
            if time.monotonic() > deadline:
                self.log.seek(0)
                self.fail(f"not in time: {what}: {last}\n{self.log.read()}")
            time.sleep(0.05)

    def live(self, name):
        self.eventually(name, lambda: ask(HTTP, name, "/").status == 200)

    def nginx(self):
        program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
        if program is None:
            print("skipped: nginx is not here")
            return None
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        place = pathlib.Path(self.place.name)
        settings = place / "nginx.conf"
        settings.write_text(CONFIGURATION.format(
            # Otherwise its workers could not read the folder.
            user="user root;" if os.geteuid() == 0 else "", place=place, port=port, site=SITE,
        ))
        process = subprocess.Popen([program, "-p", place, "-c", settings], stdout=self.log, stderr=self.log)

        def stop():
            process.terminate()
            process.wait()

        self.addCleanup(stop)
        address = ("127.0.0.1", port)
        self.eventually("nginx", lambda: ask(address, "nginx", "/").status == 200)
        return address

    def test_the_same_as_nginx(self):
        servers = {"edge": HTTP, "agent": HTTP}
        for name in servers:
            self.live(name)
        if nginx := self.nginx():
            servers["nginx"] = nginx
        found = {name: ask(address, name, "/data.bin") for name, address in servers.items()}
        self.assertEqual(found["edge"].headers["etag"], found["agent"].headers["etag"])
        wrong = []
        for case, target, fields, ours, theirs in CASES:
            seen = {}
            for name, address in servers.items():
                etag, date = found[name].headers["etag"], found[name].headers["last-modified"]
                own = {field: value.replace("ETAG", etag).replace("DATE", date) for field, value in fields.items()}
                seen[name] = facts(ask(address, name, target, own))
            expected = {"edge": ours, "agent": ours, "nginx": theirs}
            for name, one in seen.items():
                if one["status"] != expected[name]:
                    wrong.append((case, name, one["status"]))
                elif one["status"] == ours and one != seen["edge"]:
                    wrong.append((case, name, {it: (str(one[it])[:60], str(seen["edge"][it])[:60]) for it in one if one[it] != seen["edge"].get(it)}))
        self.assertFalse(wrong, "\n".join(map(str, wrong)))
        print(f"files: {len(CASES)} requests to {', '.join(servers)}")

    def test_further_responses(self):
        self.live("edge")
        for target, location in (("/folder", "/folder/"), ("/folder?a=%2F", "/folder/?a=%2F"), ("//folder", "/folder/")):
            moved = ask(HTTP, "edge", target)
            self.assertEqual((moved.status, moved.headers["location"]), (301, location))
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            refused = ask(HTTP, "edge", "/", {"Content-Length": "0"}, method)
            self.assertEqual((refused.status, refused.headers["allow"]), (405, "GET, HEAD"), method)
        for target, fields in (("/data.bin", {}), ("/app.js", {"Accept-Encoding": "gzip"})):
            got, head = (ask(HTTP, "edge", target, fields, method) for method in ("GET", "HEAD"))
            fields = ("content-length", "etag", "content-type", "content-encoding", "vary", "accept-ranges")
            self.assertEqual([head.headers[it] for it in fields], [got.headers[it] for it in fields])
            self.assertEqual((head.status, head.content), (200, b""))
        for accepted, content, coding in (
            ("gzip, br, zstd", b"brotli", "br"), ("gzip, br;q=0.1", b"gzip", "gzip"), ("*", b"brotli", "br"),
            ("zstd", b"zstd", "zstd"), ("identity, br;q=0.5", None, None), ("br;q=0", None, None),
        ):
            got = ask(HTTP, "edge", "/both.js", {"Accept-Encoding": accepted})
            self.assertEqual(got.headers["content-encoding"], coding, accepted)
            self.assertIn(content, (None, got.content))
            self.assertEqual(got.headers["vary"], "accept-encoding")
        tags = {ask(HTTP, "edge", "/both.js", {"Accept-Encoding": it}).headers["etag"] for it in ("br", "gzip", "x")}
        self.assertEqual(len(tags), 3)
        self.assertIsNone(ask(HTTP, "edge", "/old.js", {"Accept-Encoding": "gzip"}).headers["content-encoding"])
        many = ",".join(["0-0"] * 1_000)
        self.assertEqual(ask(HTTP, "edge", "/data.bin", {"Range": f"bytes={many}"}).status, 200)
        for name in ("edge", "agent"):
            self.live(name)
            self.assertEqual(ask(HTTP, name, "/large.bin").content, (SITE / "large.bin").read_bytes())
        print("files: redirects, methods, HEAD, codings and a large file")

    def test_a_file_that_shrinks_or_grows_meanwhile(self):
        self.live("edge")
        for change, is_whole in ((0, False), (400_000_000, True)):
            path = SITE / f"changing{change}"
            path.write_bytes(b"")
            os.truncate(path, 200_000_000)
            connection = http.client.HTTPConnection(*HTTP, timeout=60)
            connection.request("GET", f"/{path.name}", headers={"Host": host("edge")})
            answer = connection.getresponse()
            first = len(answer.read(1_000))
            os.truncate(path, change)
            try:
                length = first + len(answer.read())
            except (http.client.IncompleteRead, ConnectionError):
                length = None
            self.assertEqual(length, 200_000_000 if is_whole else None)
            connection.close()
            path.unlink()
        print("files: one that shrinks is cut off, one that grows is not")

    def test_refusals(self):
        (FOLDER / "elsewhere").symlink_to("/etc")
        for index, (url, why) in enumerate([
            ("file:///etc", "`edge.allow_file_upstreams` of this installation does not allow"),
            (f"file://{FOLDER}x", "`edge.allow_file_upstreams` of this installation does not allow"),
            (f"file://{FOLDER}/../etc", "must not contain `..`"),
            ("file://site", "must be absolute"),
        ]):
            status, answer = call("/endpoints", {"url": f"http://{host(f'refused{index}')}", "upstream_url": url})
            self.assertEqual((status, answer["error_code"]), (400, "ERR_NGROK_18014"), answer)
            self.assertIn(why, answer["msg"])
        for body in ({"url": f"http://{host('h2')}", "upstream_protocol": "http2"}, {"url": f"tls://{host('tls')}"}):
            status, answer = call("/endpoints", {**body, "upstream_url": f"file://{SITE}"})
            self.assertEqual((status, answer["error_code"]), (400, "ERR_NGROK_18014"), answer)
        # The path is allowed, and a link leads elsewhere.
        for name in ("elsewhere", "absent"):
            create("/endpoints", {"url": f"http://{host(name)}", "upstream_url": f"file://{FOLDER}/{name}"})
            self.eventually("the refusal", lambda: ask(HTTP, name, "/hostname").status == 502)
        print("files: refused where they are not allowed, also by a link")


if __name__ == "__main__":
    unittest.main()
