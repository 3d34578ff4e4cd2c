"""A culvert, a PostgreSQL and a NATS server of our own, and a receiver of events."""
import atexit, collections, glob, http.client, http.server, json, os, re, shutil, signal, socket, subprocess, tempfile, threading, time

from .report import must, until


class Sink:
    """An HTTP server that remembers every event. `answer` decides what a path gets."""

    def __init__(self):
        sink = self
        self.lock = threading.Lock()
        self.requests = []          # (path, [event ids])
        self.events = {}            # id -> event, of the last time
        self.times = collections.defaultdict(list)
        self.status = 200

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                now = time.time()
                status = sink.status
                if status == 200:
                    events = json.loads(body)
                    events = events if isinstance(events, list) else [events]
                    with sink.lock:
                        sink.requests.append((self.path, [event["event_id"] for event in events]))
                        for event in events:
                            sink.events[event["event_id"]] = event
                            sink.times[event["event_id"]].append(now)
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def do_GET(self):
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_):
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_):
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, kind):
        with self.lock:
            return {i: e for i, e in self.events.items() if e["event_type"] == kind}

    def without(self, paths):
        """Of these requests those whose event has not come."""
        return set(paths) - {event["object"]["http"]["request"]["url"]["path"] for event in self.of("http_request_complete.v0").values()}

    def repeated(self):
        """Events that came more than once, by how often."""
        with self.lock:
            return sum(len(times) - 1 for times in self.times.values())


class Server:
    def __init__(self, binary, data, database="", extra=(), wrap=(), preexec=None):
        env = {key: value for key, value in os.environ.items() if not key.startswith("CULVERT_")}
        env.update(CULVERT_LOG__LEVEL="warn")
        addresses = ["api-addr", "edge-http-addr", "edge-https-addr", "agents-addr", "agents-ssh-addr", "nodes-addr", "metrics-addr"]
        command = [*wrap, binary, "serve", "--data-dir", data, "--destinations-allow-plain-http", "true",
                   "--destinations-allow-networks", "127.0.0.1/32", "--database-url", database]
        for name in addresses:
            command += [f"--{name}", "127.0.0.1:0"]
        self.log = open(data + ".log", "ab")
        self.process = subprocess.Popen([*command, *extra], stdout=subprocess.PIPE, stderr=self.log, env=env, cwd=os.path.dirname(data), preexec_fn=preexec)
        atexit.register(self.kill)
        self.ready = None
        for line in self.process.stdout:
            if line.startswith(b"culvert ready"):
                self.ready = dict(part.split("=", 1) for part in line.decode().split()[2:])
                break
        if self.ready:
            self.api_port = int(self.ready["api"].rsplit(":", 1)[1])
            self.http_port = int(self.ready["http"].rsplit(":", 1)[1])
            self.metrics_port = int(self.ready["metrics"].rsplit(":", 1)[1])
            self.token = open(f"{data}/bootstrap-key").read().strip()

    def api(self, method, path, body=None, timeout=20):
        """Status and body; raises OSError if there is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.api_port, timeout=timeout)
        try:
            headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()

    def make(self, collection, body):
        status, made = self.api("POST", f"/{collection}", body)
        assert status < 300, (status, made)
        return made

    def subscribe(self, url, kinds, **target):
        destination = self.make("event_destinations", {"format": "json", "target": {"webhook": {"url": url, "mode": "batch", **target}}})
        self.make("event_subscriptions", {"destination_ids": [destination["id"]], "sources": kinds})
        return destination["id"]

    def get(self, host, path, timeout=10):
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=timeout)
        try:
            connection.request("GET", path, headers={"host": host})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=10)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found = re.findall(rf"^culvert_{name}(?:\{{[^}}]*\}})? ([\d.e+]+)$", text, re.M)
        return int(sum(float(value) for value in found))

    def kill(self):
        atexit.unregister(self.kill)
        if self.process.returncode is not None:
            return
        for pid in family(self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.ended()

    def stop(self):
        for pid in family(self.process.pid)[-1:]:
            os.kill(pid, signal.SIGTERM)
        return self.ended()

    def ended(self, seconds=60):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            must(False, "the server ends")
            self.process.kill()
            code = self.process.wait()
        atexit.unregister(self.kill)
        self.process.stdout.close()
        self.log.close()
        return code


def family(pid):
    """A process and its children; a traced server is the child of its tracer."""
    found = [pid]
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as f:
                found += [int(child) for child in f.read().split()]
    except FileNotFoundError:
        pass
    return found


class Postgres:
    """A PostgreSQL of our own, in a temporary folder, run by an unprivileged user if we are root."""

    def __init__(self):
        where = [os.path.dirname(shutil.which("initdb") or "")]
        # Where Debian puts them.
        where += sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        where = [folder for folder in where if folder and os.path.exists(f"{folder}/initdb")]
        if not where:
            raise FileNotFoundError("PostgreSQL's programs are not installed")
        self.bin = where[-1]
        self.folder = tempfile.mkdtemp(prefix="culvert-faults-pg-")
        self.user = []
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
            self.user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
        self.run("initdb", "-D", f"{self.folder}/data", "-U", "postgres", "-A", "trust", "--no-sync")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.start()
        self.names = 0

    def run(self, program, *arguments):
        subprocess.run([*self.user, f"{self.bin}/{program}", *arguments], check=True, stdout=subprocess.DEVNULL, cwd=self.folder)

    def start(self):
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=200"
        self.run("pg_ctl", "-D", f"{self.folder}/data", "-l", f"{self.folder}/log", "-o", options, "-w", "start")

    def stop(self, mode="immediate"):
        self.run("pg_ctl", "-D", f"{self.folder}/data", "-m", mode, "-w", "stop")

    def database(self):
        self.names += 1
        name = f"faults{self.names}"
        self.run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", name)
        return f"postgres://postgres@127.0.0.1:{self.port}/{name}"

    def remove(self):
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


class Nats:
    """A NATS server of our own with JetStream, in a temporary folder."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="culvert-faults-nats-")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.start()
        atexit.register(self.kill)

    def start(self):
        command = ["nats-server", "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", self.folder]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until("NATS listens", self.listens, 20)

    def listens(self):
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self):
        self.process.kill()
        self.process.wait()

    def options(self):
        return ["--event-log", f"nats://127.0.0.1:{self.port}"]
