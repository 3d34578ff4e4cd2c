"""What clients saw, and whether what they were promised holds.

Each check runs as threads beside the faults and notes what is not kept, unless a fault that was there at that time
excuses it. Which faults excuse what is said at each check. A bound has the delay added that the machine itself had at
that time: how late a process that only sleeps woke up."""
import collections, http.server, json, random, subprocess, sys, threading, time

LIVE_S = 5.0
"""A change that was answered is live everywhere after this, and a deleted key is dead."""
SENDS_PER_S = 2.0
WINDOW_S = 1.0
"""Traffic events of so many seconds may be in the memory of a process that is killed."""
LOAD, KIND_KEY, KIND_REQUEST = "load.culvert.localhost", "api_key_created.v0", "http_request_complete.v0"
KINDS = [{"type": KIND_KEY}, {"type": KIND_REQUEST, "fields": ["http.request.url.path", "conn.server_name"]}]
METRONOME = "import sys, time\nworst, since = 0.0, time.monotonic()\nwhile True:\n  began = time.monotonic()\n  time.sleep(0.01)\n  now = time.monotonic()\n  worst = max(worst, now - began - 0.01)\n  if now - since > 0.5:\n    print(now, worst, flush=True)\n    worst, since = 0.0, now\n"


def now():
    return time.monotonic()


class Delay:
    """How late the machine wakes a process up: what a bound must forgive."""

    def __init__(self):
        self.seen, self.worst = collections.deque(maxlen=200_000), 0.0
        self.process = subprocess.Popen([sys.executable, "-c", METRONOME], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            at, late = map(float, line.split())
            self.seen.append((at, late))
            self.worst = max(self.worst, late)

    def within(self, since, until):
        """Twice the sum of the worst delay of each half second, and no more than the time itself."""
        return 2 * sum(late for at, late in list(self.seen) if since <= at <= until + 1)


class Excuses:
    """When which faults were there. `settle` is how long after its end a fault may still be felt."""

    def __init__(self):
        self.spans, self.lock = [], threading.Lock()

    def begin(self, tags, settle, name=""):
        span = [frozenset(tags), now(), float("inf"), settle, name]
        with self.lock:
            self.spans.append(span)
        return span

    def end(self, span):
        span[2] = now()

    def named(self, since):
        """The faults that were there since then."""
        with self.lock:
            return [span[4] for span in self.spans if span[4] and span[2] >= since]

    def cover(self, since, until, *tags):
        with self.lock:
            return any(tag in span[0] and span[1] - 0.5 <= until and since <= span[2] + span[3] for span in self.spans for tag in tags)


class Sink:
    """Receives events as several destinations, one for each first part of the path, and is the upstream of traffic."""

    WAYS = ["healthy", "flaky", "moved", "zero", "past", "huge", "hanging"]

    def __init__(self):
        self.told = {way: collections.Counter() for way in self.WAYS}
        self.requests = {way: [] for way in self.WAYS}
        self.lock, self.flaky_is_away, self.twice = threading.Lock(), False, 0
        sink = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            seen = 0

            def answer(self, status=200, body=b"ok", **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                self.answer()

            def do_PUT(self):
                """A body that is read slowly."""
                left = int(self.headers.get("content-length", 0))
                while left > 0:
                    piece = self.rfile.read(min(left, 65536))
                    if not piece:
                        return
                    left -= len(piece)
                    time.sleep(0.05)
                self.answer()

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                way = self.path.strip("/").split("/")[0]
                self.seen += 1
                with sink.lock:
                    sink.requests[way].append(now())
                if way == "zero":
                    return self.answer(503, b"later", retry_after="0")
                if way == "past":
                    return self.answer(429, b"later", retry_after="Wed, 21 Oct 2015 07:28:00 GMT")
                if way == "huge":
                    return self.answer(503, b"later", retry_after="99999999999999999999")
                if way == "hanging":
                    time.sleep(600)
                    return
                if way == "flaky" and sink.flaky_is_away:
                    return self.answer(503, b"later")
                if way == "moved" and self.seen % 4 == 0:
                    return self.answer(421, b"elsewhere")
                events = json.loads(body)
                with sink.lock:
                    for event in events if isinstance(events, list) else [events]:
                        kind, thing = event["event_type"], event["object"]
                        name = thing["http"]["request"]["url"]["path"] if kind == KIND_REQUEST else thing.get("id") or event["event_id"]
                        sink.told[way][name] += 1
                self.answer()

            def log_message(self, *_):
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 256

            def handle_error(self, *_):
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, way):
        return f"http://127.0.0.1:{self.port}/{way}"

    def is_told(self, way, name):
        return name in self.told[way]

    def fastest(self, way, delay, seconds=10):
        """The most requests in any ten seconds, as a rate, and when."""
        times, begin, most = list(self.requests[way]), 0, (0.0, 0.0)
        for at, time_ in enumerate(times):
            while time_ - times[begin] > seconds:
                begin += 1
            most = max(most, ((at - begin + 1) / seconds, time_))
        return most


class Truth:
    def __init__(self, world, seed):
        self.world, self.random = world, random.Random(seed)
        self.delay, self.excuses, self.stop = Delay(), Excuses(), threading.Event()
        self.broken, self.counts, self.lock = [], collections.Counter(), threading.Lock()
        self.worst = collections.defaultdict(float)
        self.sinks = {"cluster": Sink(), "alone": Sink()}
        self.writes, self.counters, self.deleted = collections.defaultdict(dict), {}, []
        self.lossy = []
        """Spans of time whose acknowledged writes a fail-over may have taken."""
        self.requests = collections.defaultdict(dict)
        self.lost = collections.defaultdict(dict)
        """What each life of each node counted as lost."""
        self.probes = {}

    def note(self, check, what):
        during = ", ".join(self.excuses.named(now() - 15))
        what = f"{what} (during {during})" if during else what
        with self.lock:
            self.broken.append((now(), check, what))
        print(f"  NOT KEPT: {check}: {what}", flush=True)

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] += n

    def place(self, node):
        return "cluster" if self.world.is_of_cluster(node) else "alone"

    def peers(self, node):
        return self.world.installation_of(node)

    # What is there before the faults.

    def prepare(self):
        for first in (self.world.nodes[0], self.world.alone):
            sink = self.sinks[self.place(first)]
            for way in Sink.WAYS:
                destination = first.make("event_destinations", {"format": "json", "target": {"webhook": {"url": sink.url(way), "mode": "batch"}}})
                kinds = KINDS if way in ("healthy", "flaky", "moved") else KINDS[:1]
                first.make("event_subscriptions", {"destination_ids": [destination["id"]], "sources": kinds})
            first.make("endpoints", {"url": f"http://{LOAD}", "upstream_url": f"http://127.0.0.1:{sink.port}"})
            first.make("endpoints", {"url": "http://crowd.culvert.localhost", "upstream_url": f"http://127.0.0.1:{sink.port}"})
            # A certificate that no authority will ever issue.
            first.make("reserved_domains", {"domain": "renewal.example.com"})
        for node in self.world.all:
            host = f"probe-{node.name}.culvert.localhost"
            made = node.make("endpoints", {"url": f"http://{host}", "traffic_policy": policy(0)})
            self.probes[node.name] = (host, made["id"])
            self.counters[node.name] = [node.make("api_keys", {"description": "counter", "metadata": "0"})["id"], 0, 0]

    def begin(self):
        jobs = [(self.flake,), (self.watch_keys, "cluster"), (self.watch_keys, "cluster"), (self.watch_keys, "alone")]
        for node in self.world.all:
            jobs += [(self.watch_changes, node), (self.write, node), (self.increment, node), (self.send, node, 0), (self.send, node, 1), (self.sample, node)]
        jobs += [(self.watch_agent, host) for host in self.world.agents]
        self.threads = [threading.Thread(target=self.guarded, args=job, daemon=True) for job in jobs]
        for thread in self.threads:
            thread.start()

    def guarded(self, job, *arguments):
        while not self.stop.is_set():
            try:
                job(*arguments)
                return
            except Exception as error:  # A check that ends would vouch for nothing.
                self.note("the program itself", f"{job.__name__}: {error!r}")
                time.sleep(1)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(40)

    def flake(self):
        """A destination is away for a third of the time, so events wait in the event log."""
        while not self.stop.wait(10):
            for sink in self.sinks.values():
                sink.flaky_is_away = True
            self.stop.wait(5)
            for sink in self.sinks.values():
                sink.flaky_is_away = False

    # Changes are live. Excused by faults of the database, and of nodes that were down.

    def watch_changes(self, node):
        host, id_ = self.probes[node.name]
        n = 0
        while not self.stop.wait(self.random.uniform(0.3, 1.0)):
            n += 1
            by = self.random.choice(self.peers(node))
            began = now()
            try:
                status, _, heads = by.api("PATCH", f"/endpoints/{id_}", {"traffic_policy": policy(n)})
            except OSError:
                self.count("changes without an answer")
                continue
            if status != 200:
                self.refused(by, status, began, "change")
                continue
            self.count("changes answered")
            if heads.get("culvert-applied") == "pending":
                self.count("changes answered as pending")
            self.await_live(by, node, host, n, now())

    def await_live(self, by, of, host, n, answered):
        waiting = {peer.name: peer for peer in self.peers(by)}
        while waiting and not self.stop.is_set():
            for name, peer in list(waiting.items()):
                try:
                    status, text = peer.get(host, timeout=5)
                    if status == 200 and int(text) >= n:
                        del waiting[name]
                        took = now() - answered
                        if not self.excused(peer, answered, now(), "database"):
                            self.worst["a change is live"] = max(self.worst["a change is live"], took)
                except (OSError, ValueError):
                    pass
            took = now() - answered
            if waiting and took > LIVE_S + self.delay.within(answered, now()):
                for name, peer in waiting.items():
                    if not self.excused(peer, answered, now(), "database", *[f"database:{it}" for it in (name, by.name)]):
                        self.note("changes are live", f"{of.name}'s change {n} by {by.name} is not live at {name} after {took:.1f} s")
                return
            time.sleep(0.05)

    def excused(self, node, since, until, *tags):
        place = self.place(node)
        tags = [f"{tag}@{place}" if tag == "database" else tag for tag in tags] + [f"node:{node.name}"]
        return node.was_down(since, until) or self.excuses.cover(since, until, *tags)

    def refused(self, by, status, since, what):
        """A refusal of a good request must be a 503, and there must be a reason."""
        self.count(f"{what}s refused with {status}")
        if status != 503:
            self.note("refusals have their status", f"{by.name} refused a {what} with {status}")
        elif not self.excused(by, since, now(), "database", f"database:{by.name}", "disk", f"crowd:{by.name}"):
            self.note("changes are accepted", f"{by.name} refused a {what} with 503")

    # Acknowledged writes.

    def write(self, node):
        while not self.stop.wait(self.random.uniform(0.2, 1.0)):
            began = now()
            try:
                status, made, _ = node.api("POST", "/api_keys", {"description": "written"})
            except OSError:
                continue
            if status < 300:
                self.writes[self.place(node)][made["id"]] = now()
            else:
                self.refused(node, status, began, "write")

    def increment(self, node):
        """One object that only grows: a lost update is seen at the end."""
        counter = self.counters[node.name]
        while not self.stop.wait(self.random.uniform(0.2, 0.6)):
            counter[2] += 1
            by, began = self.random.choice(self.peers(node)), now()
            try:
                status, _, _ = by.api("PATCH", f"/api_keys/{counter[0]}", {"metadata": str(counter[2])})
            except OSError:
                # It may still be on its way, and must not overtake a later one.
                time.sleep(1)
                continue
            if status < 300:
                counter[1], counter_at = counter[2], now()
                counter[3:] = [counter_at]
            else:
                self.refused(by, status, began, "write")

    # Keys.

    def watch_keys(self, place):
        nodes = self.world.nodes if place == "cluster" else [self.world.alone]
        while not self.stop.wait(self.random.uniform(0.2, 1.0)):
            by, of = self.random.choice(nodes), self.random.choice(nodes)
            try:
                status, made, _ = by.api("POST", "/api_keys", {"description": "short"})
                if status >= 300:
                    continue
                made_at = now()
                while not self.accepts(of, made["token"]) and not self.stop.is_set():
                    if now() - made_at > LIVE_S + self.delay.within(made_at, now()):
                        if not self.excused(of, made_at, now(), "database", f"database:{of.name}", f"crowd:{of.name}", "disk") and not self.is_lossy(made_at):
                            self.note("new keys are accepted", f"{of.name} does not accept a key of {by.name} after {LIVE_S} s")
                        break
                    time.sleep(0.1)
                status, _, _ = by.api("DELETE", f"/api_keys/{made['id']}")
                if status >= 300:
                    continue
            except OSError:
                continue
            self.count("keys deleted")
            self.watch_deleted(nodes, by, made, now())

    def watch_deleted(self, nodes, by, made, deleted):
        """No fault excuses a dead key that is accepted, but a fail-over that lost its end."""
        while now() - deleted < LIVE_S + 2 and not self.stop.is_set():
            for node in nodes:
                asked = now()
                if self.accepts(node, made["token"]) and not self.is_lossy(deleted):
                    self.worst["a deleted key is accepted"] = max(self.worst["a deleted key is accepted"], asked - deleted)
                    if asked - deleted > LIVE_S + self.delay.within(deleted, asked):
                        self.note("deleted keys are dead", f"{node.name} accepts a key {asked - deleted:.1f} s after {by.name} deleted it")
                        return
            time.sleep(0.4)
        self.deleted.append((self.place(by), made["id"], made["token"], deleted))

    def accepts(self, node, token):
        try:
            return node.api("GET", "/api_keys?limit=1", token=token, timeout=6)[0] == 200
        except OSError:
            return False

    def is_lossy(self, at):
        return any(begin - 1 <= at <= end + 1 for begin, end in self.lossy)

    # Traffic. Only the node's own end excuses a request that fails.

    def send(self, node, client):
        n, place = 0, self.place(node)
        while not self.stop.wait(self.random.uniform(0.05, 0.2)):
            n += 1
            path, began = f"/{node.name}/{client}/{n}", now()
            try:
                status, _ = node.get(LOAD, path)
            except OSError as error:
                status = repr(error)
            if status == 200:
                self.requests[place][path] = now()
                self.count("requests answered")
                self.worst["a request"] = max(self.worst["a request"], now() - began)
                continue
            # Whoever starts it again may learn later that it has ended.
            time.sleep(2)
            if not node.was_down(began, now()) and not self.excuses.cover(began, now(), f"node:{node.name}", f"crowd:{node.name}"):
                self.note("the edge is up", f"{node.name} answered {status} after {now() - began:.1f} s")

    def watch_agent(self, host):
        """Excused while the link, or a node, is not what it should be."""
        while not self.stop.wait(0.4):
            node, began = self.random.choice(self.world.nodes), now()
            try:
                status, _ = node.get(host)
            except OSError as error:
                status = repr(error)
            if status == 200:
                self.count("requests to agents")
                continue
            tags = ["agents", f"crowd:{node.name}", *[f"node:{it.name}" for it in self.world.nodes]]
            if host.startswith("ssh"):
                # Nobody but its own loop connects it again, which needs the database.
                tags += ["database@cluster", *[f"database:{it.name}" for it in self.world.nodes]]
            if any(it.was_down(began, now(), 12) for it in self.world.nodes) or self.met_no_database(began) or self.excuses.cover(began, now(), *tags):
                self.count("requests to agents that failed, excused")
            else:
                self.note("agents are reached", f"{host} at {node.name} answered {status} after {now() - began:.1f} s")

    def met_no_database(self, at):
        """Whether an agent's node came back a short time ago, and the database went away before the agent had connected."""
        return any(
            end <= at <= end + 30 and self.excuses.cover(end, min(at, end + 12), "database@cluster")
            for it in self.world.nodes for _, end in it.downs
        )

    # The nodes' own words.

    def sample(self, node):
        names = ("events_dropped_total", "events_lost_total", "events_maybe_lost_total")
        while not self.stop.wait(0.5):
            began, life = now(), node.starts
            try:
                metrics = node.metrics()
                status, _, text = node.ask("api", "GET", "/readyz?role=edge", timeout=10)
            except OSError:
                continue
            if life == node.starts:
                self.lost[node.name][life] = sum(metrics.get(name, 0) for name in names)
            if status != 200 and not self.excused(node, began, now()):
                self.note("the edge is up", f"{node.name} says {text.decode()[:200]}")

    # The end.

    def untold(self, way, place):
        """Requests that this destination was not told of, and when: without those of a second before a kill, and those that
        a node held while its disk took no writes, if it ended because of that: it can write no count either."""
        told, found = self.sinks[place].told[way], {}
        for path, at in list(self.requests[place].items()):
            if path not in told:
                node = next(it for it in self.world.all if it.name == path.split("/")[1])
                window = WINDOW_S + 2 * self.delay.worst
                if node is self.world.alone and self.excuses.cover(at, at, "disk"):
                    window = 30
                if not any(at - 0.2 <= ended <= at + window for ended, _, _ in node.exits):
                    found[path] = at
        return found

    def counted(self, place):
        nodes = self.world.nodes if place == "cluster" else [self.world.alone]
        return sum(sum(self.lost[node.name].values()) for node in nodes)


def policy(n):
    return json.dumps({"on_http_request": [{"actions": [{"type": "custom-response", "config": {"status_code": 200, "body": str(n)}}]}]})
