"""The engine of ClickHouse (chDB) behind its HTTP interface, on a free port of this machine.

The engine parses and runs each statement with the settings of the request; the HTTP part, users and statuses, is ours.
Prints one line of JSON: the port. Then each line of JSON on the standard input is a query that gets its rows for an
answer. Ends with its input.
"""

import gzip
import json
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

# The engine puts another file in the place of the standard output while it runs a statement.
answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")

from chdb import session  # noqa: E402

USER, PASSWORD = "culvert", "cl1ck-s3cr3t"
# Parameters of the interface that are no settings of the engine.
OF_HTTP = {"query", "wait_end_of_query"}
STATUS = {"60": 404, "81": 404, "516": 403}
# The table of the guide.
GUIDE = Path(__file__).parents[3] / "docs/how-to/destinations.md"
TABLE = re.search(r"CREATE TABLE culvert_events \(\n  event_id String.*?;", GUIDE.read_text(), re.S).group()
TABLE = TABLE.rstrip(";").replace("culvert_events", "events")
# A table whose column does not take what an event has.
STRICT = "CREATE TABLE strict (event_id DateTime) ENGINE = MergeTree ORDER BY event_id"

engine = session.Session()
one_at_a_time = threading.Lock()


def run(statement, form="CSV"):
    with one_at_a_time:
        return str(engine.query(statement, form))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        given = (self.headers.get("x-clickhouse-user"), self.headers.get("x-clickhouse-key"))
        if given != (USER, PASSWORD):
            return self.answer(403, "Code: 516. DB::Exception: Authentication failed", "516")
        fields = dict(parse_qsl(urlsplit(self.path).query))
        settings = ", ".join(f"{name} = '{value}'" for name, value in fields.items() if name not in OF_HTTP)
        insert = fields["query"].replace(" FORMAT ", f" SETTINGS {settings} FORMAT ")
        try:
            run(f"{insert} {body.decode()}")
        except Exception as error:
            code = re.search(r"Code: (\d+)", str(error)).group(1)
            return self.answer(STATUS.get(code, 400), str(error), code)
        self.answer(200, "")

    def answer(self, status, text, code=None):
        body = text.encode()
        self.send_response(status)
        if code:
            self.send_header("X-ClickHouse-Exception-Code", code)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    run(TABLE)
    run(STRICT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], file=answers, flush=True)
    for line in sys.stdin:
        rows = run(json.loads(line), "JSONEachRow").splitlines()
        print(json.dumps([json.loads(row) for row in rows]), file=answers, flush=True)


main()
