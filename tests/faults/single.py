"""One fault at a time at one server, and what it costs."""
import atexit, collections, glob, http.client, os, random, re, shutil, signal, socket, subprocess, tempfile, threading, time

from .report import must, say, until
from .servers import Nats, Postgres, Server, Sink


def places(options):
    """The name and URL of each store there is here."""
    yield "sqlite", ""
    if options.postgres:
        yield "postgres", options.postgres.database()


HOST = "load.culvert.localhost"
KINDS = [{"type": "api_key_created.v0"}, {"type": "http_request_complete.v0", "fields": ["http.request.url.path", "conn.server_name"]}]


class Load:
    """Writers that make keys and clients that make requests, until the server is gone."""

    def __init__(self, server, writers=4, clients=4, pause=0.0):
        self.keys, self.paths, self.refused, self.writes_failed, self.stop = [], [], collections.Counter(), 0, False
        self.server, self.pause = server, pause
        self.threads = [threading.Thread(target=self.write, daemon=True) for _ in range(writers)]
        self.threads += [threading.Thread(target=self.request, args=(n,), daemon=True) for n in range(clients)]
        for thread in self.threads:
            thread.start()

    def write(self):
        while not self.stop:
            try:
                status, made = self.server.api("POST", "/api_keys", {"description": "load"})
            except (OSError, ValueError):
                if self.server.process.poll() is not None:
                    return
                self.writes_failed += 1
                time.sleep(0.05)
                continue
            if status < 300:
                self.keys.append(made["id"])
            else:
                self.refused[(status, (made or {}).get("error_code"))] += 1
                time.sleep(0.05)
            time.sleep(self.pause)

    def request(self, client):
        n = 0
        while not self.stop:
            path = f"/n/{id(self)}/{client}/{n}"
            n += 1
            try:
                status = self.server.get(HOST, path)
            except OSError:
                if self.server.process.poll() is not None:
                    return
                self.refused["traffic"] += 1
                continue
            if status == 200:
                self.paths.append(path)
            else:
                self.refused["traffic", status] += 1
            time.sleep(self.pause)

    def join(self):
        self.stop = True
        for thread in self.threads:
            thread.join(30)


def begin(options, sink, data, database, **more):
    server = Server(options.binary, data, database, **more)
    if server.ready:
        server.subscribe(f"http://127.0.0.1:{sink.port}/", KINDS)
        server.make("endpoints", {"url": f"http://{HOST}", "upstream_url": f"http://127.0.0.1:{sink.port}"})
        until("the endpoint is live", lambda: server.get(HOST, "/") == 200)
    return server


def counted_as_lost(data):
    """Records that the lives of a server said the ones before them lost. The metric goes with each life."""
    with open(data + ".log", errors="replace") as f:
        return sum(int(lost) for lost in re.findall(r'"lost":(\d+)', f.read()))


def account(name, options, sink, data, database, keys, paths, deaths, extra=()):
    """Starts the server once more and counts. Promises: reliability R1, R2, R15."""
    server = Server(options.binary, data, database, extra)
    missing = sum(server.api("GET", f"/api_keys/{key}")[0] != 200 for key in keys)
    told = lambda: {event["object"]["id"] for event in sink.of("api_key_created.v0").values()}
    until("every acknowledged change has its event", lambda: set(keys) <= told())
    untold = len(set(keys) - told())
    until("nothing waits", lambda: server.metric("events_waiting") == 0, 120)
    unseen, lost = len(sink.without(paths)), counted_as_lost(data)
    with sink.lock:
        batch = max((len(ids) for _, ids in sink.requests), default=0)
    verify = subprocess.run([options.binary, "audit", "verify", "--data-dir", data, "--database-url", database], capture_output=True, text=True)
    say(name, deaths=deaths, changes_acknowledged=len(keys), changes_lost=missing, audit_events_lost=untold, requests=len(paths),
        traffic_events_lost=unseen, counted_as_lost=lost, in_no_count=max(0, unseen - lost), events_sent_twice=sink.repeated(), largest_batch=batch, audit_log="whole" if verify.returncode == 0 else verify.stderr.strip())
    must(missing == 0, f"{name}: acknowledged changes lost 0")
    must(untold == 0, f"{name}: audit events lost 0")
    must(verify.returncode == 0, f"{name}: the audit log verifies")
    # What happened in the last few milliseconds before a death is in no count.
    must(unseen - lost <= 2 * deaths, f"{name}: traffic events lost are counted")
    must(sink.repeated() <= deaths * batch, f"{name}: at most one batch is sent twice for each death")
    server.stop()


def faults_kill(options):
    for place, database in places(options):
        sink, folder = Sink(), tempfile.mkdtemp(prefix="culvert-faults-")
        data, keys, paths = f"{folder}/data", [], []
        for n in range(options.rounds):
            server = begin(options, sink, data, database) if n == 0 else Server(options.binary, data, database)
            if n > 0:
                until("the endpoint is live", lambda: server.get(HOST, "/") == 200)
            load = Load(server)
            time.sleep(random.uniform(0.3, 2.0))
            server.kill()
            load.join()
            keys += load.keys
            paths += load.paths
        account(f"kill {place}", options, sink, data, database, keys, paths, options.rounds)
        shutil.rmtree(folder, ignore_errors=True)


def faults_steps(options):
    if not shutil.which("strace"):
        return print("skipped: steps: strace is not installed")
    for place, database in places(options):
        sink, folder = Sink(), tempfile.mkdtemp(prefix="culvert-faults-")
        data, keys, paths, deaths = f"{folder}/data", [], [], 0
        server = begin(options, sink, data, database)
        server.stop()
        call = "fdatasync,fsync" if not database else "sendto,sendmsg,write,writev"
        for n in range(1, options.steps + 1):
            # Every call of SQLite's sync is a step of a commit or a checkpoint; of PostgreSQL's, a message.
            when = 3 * n if not database else 40 + 3 * n
            wrap = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={when}"]
            server = Server(options.binary, data, database, wrap=wrap)
            if not server.ready:
                server.kill()
                deaths += 1
                continue
            load = Load(server, writers=2, clients=1)
            end = time.time() + 20
            while server.process.poll() is None and time.time() < end:
                time.sleep(0.02)
            server.kill()
            load.join()
            deaths += 1
            keys += load.keys
            paths += load.paths
        account(f"steps {place} ({call}, {options.steps} points)", options, sink, data, database, keys, paths, deaths)
        shutil.rmtree(folder, ignore_errors=True)


def faults_disk(options):
    full(options)
    if not shutil.which("strace"):
        return print("skipped: EIO: strace is not installed")
    sink, folder = Sink(), tempfile.mkdtemp(prefix="culvert-faults-")
    data, keys, paths, deaths, codes = f"{folder}/data", [], [], 0, collections.Counter()
    begin(options, sink, data, "").stop()
    for n in range(1, options.steps + 1):
        wrap = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", f"inject=fdatasync,fsync:error=EIO:when={3 * n}"]
        server = Server(options.binary, data, "", wrap=wrap)
        if not server.ready:
            codes[server.ended()] += 1
            deaths += 1
            continue
        load = Load(server, writers=3, clients=1)
        end = time.time() + 20
        while server.process.poll() is None and time.time() < end:
            time.sleep(0.05)
        if server.process.poll() is None:
            must(False, f"disk: the server stops after EIO at sync {3 * n}")
            server.kill()
        else:
            codes[server.ended()] += 1
        load.join()
        deaths += 1
        keys += load.keys
        paths += load.paths
    account(f"disk: EIO at every third sync up to {3 * options.steps}, exit codes {dict(codes)}", options, sink, data, "", keys, paths, deaths)
    shutil.rmtree(folder, ignore_errors=True)


def full(options):
    sink, folder = Sink(), tempfile.mkdtemp(prefix="culvert-faults-")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=0700", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        os.rmdir(folder)
        return print("skipped: a full disk: a tmpfs cannot be mounted here")
    try:
        data = f"{folder}/data"
        server = begin(options, sink, data, "")
        ballast = open(f"{folder}/ballast", "wb")
        load = Load(server, writers=3, clients=2)
        until("some changes", lambda: len(load.keys) > 20)
        try:
            while True:
                ballast.write(b"\0" * 65536)
                ballast.flush()
        except OSError:
            pass
        until("writes are refused or the server stops", lambda: load.refused or server.process.poll() is not None)
        time.sleep(1)
        before, slowest, traffic = len(load.paths), 0.0, 0
        alive = server.process.poll() is None
        if alive:
            began = time.time()
            status, body = server.api("POST", "/api_keys", {"metadata": "x" * 4000})
            slowest = time.time() - began
            until("traffic goes on", lambda: len(load.paths) > before + 20)
            traffic = len(load.paths) - before
            must(status in (201, 503) and slowest < 6, f"disk full: the API answers 503 in time ({status}, {slowest:.1f} s)")
        ballast.truncate(0)
        ballast.close()
        if alive:
            n = len(load.keys)
            until("changes are taken again", lambda: len(load.keys) > n + 5)
        load.join()
        refused = {str(key): value for key, value in load.refused.items()}
        print(f"disk full: refusals {refused}, slowest {slowest:.2f} s, requests answered meanwhile {traffic}, server {'went on' if alive else 'stopped'}")
        server.kill()
        account("disk: full", options, sink, data, "", load.keys, load.paths, 1)
    finally:
        subprocess.run(["umount", "-l", folder])
        os.rmdir(folder)


def faults_postgres(options):
    if not options.postgres:
        return
    sink, folder = Sink(), tempfile.mkdtemp(prefix="culvert-faults-")
    data, database = f"{folder}/data", options.postgres.database()
    server = begin(options, sink, data, database)
    load = Load(server, writers=2, clients=2, pause=0.01)
    until("some changes", lambda: len(load.keys) > 20)
    options.postgres.stop()
    time.sleep(0.5)
    load.refused.clear()
    before, slowest, codes, began = len(load.paths), 0.0, collections.Counter(), time.time()
    while time.time() - began < options.away:
        asked = time.time()
        try:
            status, body = server.api("GET", "/api_keys")
            codes[status, (body or {}).get("error_code")] += 1
        except OSError as error:
            codes[str(error)] += 1
        slowest = max(slowest, time.time() - asked)
        time.sleep(0.2)
    answered = len(load.paths) - before
    failed = sum(value for key, value in load.refused.items() if "traffic" in key)
    options.postgres.start()
    back = time.time()
    n = len(load.keys)
    until("changes are taken again", lambda: len(load.keys) > n)
    back = time.time() - back
    load.join()
    say(f"postgres away for {options.away} s", requests_answered=answered, requests_failed=failed, api_answers=dict(codes), slowest=f"{slowest:.1f} s", writes_again_after=f"{back:.1f} s")
    must(failed == 0 and answered > 0, "postgres: traffic goes on")
    must(all(isinstance(key, tuple) and key[0] == 503 and key[1] for key in codes), "postgres: the API answers 503 with a code")
    until("nothing waits", lambda: server.metric("events_waiting") == 0, 120)
    dropped = server.metric("events_dropped_total")
    # The last ones are not in line before their flush.
    until("postgres: traffic losses are counted", lambda: len(sink.without(load.paths)) <= dropped, 10)
    say("postgres back", events_dropped_and_counted=dropped, traffic_events_missing=len(sink.without(load.paths)))
    server.stop()
    # What was sent when PostgreSQL went away could not be settled: as after a death.
    account("postgres", options, sink, data, database, load.keys, [], 1)
    shutil.rmtree(folder, ignore_errors=True)


def faults_nats(options):
    if not shutil.which("nats-server"):
        return print("skipped: nats: nats-server is not installed")
    for place, database in places(options):
        nats_killed(place, database, options)
    nats_away(options)


def nats_killed(place, database, options):
    """Every batch goes through the log: half of the time the receiver is away."""
    sink, folder, nats = Sink(), tempfile.mkdtemp(prefix="culvert-faults-"), Nats()
    data, keys, paths, deaths = f"{folder}/data", [], [], 0
    for n in range(options.rounds):
        server = begin(options, sink, data, database, extra=nats.options()) if n == 0 else Server(options.binary, data, database, nats.options())
        if n > 0:
            until("the endpoint is live", lambda: server.get(HOST, "/") == 200)
        load = Load(server)
        time.sleep(random.uniform(0.3, 1.0))
        sink.status = 503
        time.sleep(random.uniform(0.8, 2.0))
        if n % 3 == 1:
            # Both at once, in either order: what the log acknowledged is on its disk.
            nats.kill()
            deaths += 1
        if n % 2 == 1:
            sink.status = 200
            time.sleep(random.uniform(0.0, 1.0))
        server.kill()
        deaths += 1
        load.join()
        if nats.process.poll() is not None:
            nats.start()
        sink.status = 200
        keys += load.keys
        paths += load.paths
    account(f"nats: kill {place}", options, sink, data, database, keys, paths, deaths, nats.options())
    nats.kill()
    shutil.rmtree(folder, ignore_errors=True)


def nats_away(options):
    sink, folder, nats = Sink(), tempfile.mkdtemp(prefix="culvert-faults-"), Nats()
    data = f"{folder}/data"
    server = begin(options, sink, data, "", extra=nats.options())
    load = Load(server, writers=1, clients=2, pause=0.01)
    until("some requests", lambda: len(load.paths) > 50)
    sink.status = 503
    time.sleep(3)
    nats.process.send_signal(signal.SIGSTOP)
    before, began, codes, slowest = len(load.paths), time.time(), collections.Counter(), 0.0
    while time.time() - began < options.silent:
        if time.time() - began > options.silent / 3:
            sink.status = 200
        if time.time() - began > options.silent / 2 and nats.process.poll() is None:
            nats.kill()
        connection = http.client.HTTPConnection("127.0.0.1", server.api_port, timeout=20)
        asked = time.time()
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        codes[answer.status, "event_log" in answer.read().decode()] += 1
        connection.close()
        slowest = max(slowest, time.time() - asked)
        time.sleep(0.5)
    answered = len(load.paths) - before
    failed = sum(value for key, value in load.refused.items() if "traffic" in key)
    fallbacks = server.metric("event_log_fallbacks_total")
    nats.start()
    until("it is ready again", lambda: server.metric("event_log_up") == 1)
    time.sleep(1)
    load.join()
    say(f"nats hangs, then is gone, for {options.silent} s", requests_answered=answered, requests_failed=failed, readiness=dict(codes), slowest_readiness=f"{slowest:.1f} s", events_to_the_database=fallbacks)
    must(failed == 0 and answered > 0, "nats: traffic goes on")
    must((503, True) in codes, "nats: readiness names the event log")
    until("nothing waits", lambda: server.metric("events_waiting") == 0, 120)
    dropped = server.metric("events_dropped_total")
    # The last ones are not in line before their flush.
    until("nats: traffic losses are counted", lambda: len(sink.without(load.paths)) <= dropped, 10)
    say("nats back", events_dropped_and_counted=dropped, traffic_events_missing=len(sink.without(load.paths)), events_sent_twice=sink.repeated())
    server.stop()
    nats.kill()
    shutil.rmtree(folder, ignore_errors=True)


class Sick:
    """A destination that misbehaves in one way on every connection."""

    def __init__(self, way):
        self.way = way
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            if self.way == "reset":
                connection.recv(100)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return connection.close()
            if self.way == "bad TLS":
                connection.recv(1000)
                connection.sendall(b"\x15\x03\x01\x00\x02\x02\x28" * 3)
                return connection.close()
            connection.recv(65536)
            if self.way == "hang":
                time.sleep(3600)
            elif self.way == "500":
                connection.sendall(b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\nconnection: close\r\n\r\noops")
                connection.close()
            elif self.way == "drip":
                for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + b"x" * 1000:
                    connection.sendall(bytes([byte]))
                    time.sleep(1)
            elif self.way == "huge":
                connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                while True:
                    connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        except OSError:
            pass


def faults_sick(options):
    results = {}
    ways = ["hang", "500", "reset", "drip", "bad TLS", "huge"]
    sink, folder = Sink(), tempfile.mkdtemp(prefix="culvert-faults-")
    data = f"{folder}/data"
    server = begin(options, sink, data, "")

    def measure(seconds):
        """Times from a request's end to its event's arrival, in milliseconds, sorted."""
        asked, end, n = {}, time.time() + seconds, 0
        while time.time() < end:
            path = f"/n/{random.getrandbits(40)}/{n}"
            n += 1
            server.get(HOST, path)
            asked[path] = time.time()
            time.sleep(0.02)
        found = {}
        def all_came():
            for i, event in sink.of("http_request_complete.v0").items():
                found[event["object"]["http"]["request"]["url"]["path"]] = sink.times[i][0]
            return set(asked) <= set(found)
        until("the healthy destination gets everything", all_came)
        return sorted(max(0.0, found[path] - at) * 1e3 for path, at in asked.items() if path in found)

    at = lambda times, share: times[min(len(times) - 1, int(len(times) * share))]
    alone = measure(options.measured)
    sick = [Sick(ways[n % len(ways)]) for n in range(50)]
    for one in sick:
        scheme = "https" if one.way == "bad TLS" else "http"
        server.subscribe(f"{scheme}://127.0.0.1:{one.port}/", KINDS)
    measure(3)
    among = measure(options.measured)
    say("sick", events_alone=len(alone), p50_alone=f"{at(alone, .5):.0f} ms", p99_alone=f"{at(alone, .99):.0f} ms", events_among_50_sick=len(among),
        p50_among=f"{at(among, .5):.0f} ms", p99_among=f"{at(among, .99):.0f} ms", ratio=f"{at(among, .99) / at(alone, .99):.2f}")
    must(at(among, .99) <= 1.2 * at(alone, .99), "sick: p99 of the healthy one within 1.2 of being alone")
    server.kill()
    shutil.rmtree(folder, ignore_errors=True)


SOAK_NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_max_body_size 16m; client_body_temp_path {folder}/body;
  keepalive_requests 1000000000; keepalive_timeout 1h;
  server {{ listen 127.0.0.1:{port}; location / {{ return 200 "ok"; }} }}
}}
"""


def faults_soak(options):
    missing = [name for name in ("nginx", "wrk") if not shutil.which(name)]
    if missing:
        return print(f"skipped: soak: not installed: {', '.join(missing)}")
    folder = tempfile.mkdtemp(prefix="culvert-faults-")
    data, ports = f"{folder}/data", []
    for _ in range(2):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            ports.append(s.getsockname()[1])
    port, closed = ports
    with open(f"{folder}/nginx.conf", "w") as f:
        f.write(SOAK_NGINX.format(folder=folder, port=port))
    nginx = subprocess.Popen(["nginx", "-c", f"{folder}/nginx.conf"])
    atexit.register(nginx.kill)
    server = Server(options.binary, data)
    every_field = [{"type": "http_request_complete.v0"}]
    server.subscribe(f"http://127.0.0.1:{port}/sink", every_field)
    server.subscribe(f"http://127.0.0.1:{closed}/closed", every_field)
    server.make("endpoints", {"url": f"http://{HOST}", "upstream_url": f"http://127.0.0.1:{port}"})
    until("the endpoint is live", lambda: server.get(HOST, "/") == 200)
    # Each of 64 connections pauses after a request.
    pause = max(1, 64_000 // options.rate)
    with open(f"{folder}/pace.lua", "w") as f:
        f.write(f"function delay() return {pause} end\n")
    seconds = int(options.minutes * 60)
    wrk = subprocess.Popen(["wrk", "-t1", "-c64", f"-d{seconds}s", "-s", f"{folder}/pace.lua", "-H", f"Host: {HOST}", f"http://127.0.0.1:{server.http_port}/soak"],
                           stdout=subprocess.DEVNULL)
    atexit.register(wrk.kill)
    began, samples = time.time(), []
    while wrk.poll() is None:
        time.sleep(min(10, seconds / 30))
        with open(f"/proc/{server.process.pid}/statm") as f:
            resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        disk = sum(os.path.getsize(path) for path in glob.glob(f"{data}/events.db*")) / 2**20
        samples.append((time.time() - began, resident, disk))
        if len(samples) % 30 == 1:
            print(f"  {samples[-1][0]:5.0f} s: {resident:.1f} MiB resident, {disk:.1f} MiB of queue on disk", flush=True)
    elapsed = time.time() - began
    until("the healthy destination has everything", lambda: server.metric("events_waiting") <= 10_000)
    # What the first fifth of the time fills: pools, caches, the queue of the one that is down.
    settled = samples[len(samples) // 5:]
    third = max(1, len(settled) // 3)
    mean = lambda part: sum(resident for _, resident, _ in part) / len(part)
    early, late = mean(settled[:third]), mean(settled[-third:])
    delivered, dropped = server.metric("events_delivered_total"), server.metric("events_dropped_total")
    say(f"soak of {elapsed / 60:.0f} min", events_per_second=round(delivered / elapsed), delivered=delivered, dropped_and_counted=dropped,
        resident_at_first=f"{samples[0][1]:.1f} MiB", after_a_fifth=f"{settled[0][1]:.1f} MiB", last=f"{samples[-1][1]:.1f} MiB", most=f"{max(r for _, r, _ in samples):.1f} MiB",
        early_mean=f"{early:.1f} MiB", late_mean=f"{late:.1f} MiB", slope=f"{(late - early) / (elapsed * 0.8 * 2 / 3) * 3600:+.1f} MiB/h", queue_on_disk=f"{samples[-1][2]:.1f} MiB")
    must(late <= 1.05 * early + 1, "soak: memory stays flat")
    must(server.process.poll() is None, "soak: the server lives")
    server.kill()
    nginx.kill()
    shutil.rmtree(folder, ignore_errors=True)
