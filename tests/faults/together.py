"""A whole installation under traffic, and faults: each alone, and then all at once by a schedule that a seed decides."""
import collections, json, os, random, shutil, signal, subprocess, sys, tempfile, threading, time

from . import catalogue, held
from .report import FAILED, must
from .truth import LIVE_S, LOAD, SENDS_PER_S, Truth, policy
from .world import NAMESPACE, World

INSIDE = "FAULTS_INSIDE"
NEEDS = ["unshare", "ip", "iptables", "tc", "cc", "initdb", "nats-server", "ssh", "setpriv"]


def missing():
    """What this machine does not have; empty if the run is possible."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", *[f"/usr/lib/postgresql/{v}/bin" for v in (os.listdir("/usr/lib/postgresql") if os.path.isdir("/usr/lib/postgresql") else [])]])
    lacks = [name for name in NEEDS if not shutil.which(name, path=path)]
    return ["root"] * (os.geteuid() != 0) + lacks


def enter():
    """Starts this program again in namespaces of its own, and exits as it does."""
    if INSIDE in os.environ:
        return
    os.environ[INSIDE] = "1"
    command = [*NAMESPACE, sys.executable, *sys.argv]
    os.execvp(command[0], command)


class Round:
    """Runs faults and keeps the times."""

    def __init__(self, world, truth, dice, options):
        self.world, self.truth, self.dice = world, truth, dice
        self.faults = [fault for name, fault in catalogue.ALL.items() if name.startswith(options.only)]
        if options.quick:
            resources = sorted({fault.resource for fault in self.faults})
            self.faults = [dice.choice([fault for fault in self.faults if fault.resource == resource]) for resource in resources]
        self.done = []

    def play(self, fault, seconds, dice):
        began = time.monotonic()
        span = self.truth.excuses.begin(fault.tags, fault.settle, fault.name)
        try:
            steps = fault.make(self.world, self.truth, dice)
            next(steps)
            time.sleep(seconds)
            next(steps, None)
        except Exception as error:
            self.truth.note("the program itself", f"{fault.name}: {error!r}")
        finally:
            self.truth.excuses.end(span)
            self.done.append((fault.name, began, time.monotonic()))

    def alone(self, seconds, rest):
        """Each fault once, with a rest behind it. `seconds` bounds how long each lasts."""
        for fault in self.faults:
            began, broken = time.monotonic(), len(self.truth.broken)
            self.play(fault, min(seconds, self.dice.uniform(*fault.seconds)), self.dice)
            time.sleep(rest)
            print(f"{fault.name}: {time.monotonic() - began:.1f} s, not kept {len(self.truth.broken) - broken}", flush=True)

    def together(self, seconds):
        """As many resources as there are, each with its faults, until the time is over."""
        end = time.monotonic() + seconds
        resources = {}
        for fault in self.faults:
            resources.setdefault(fault.resource, []).append(fault)

        def keep(faults, dice):
            while time.monotonic() < end:
                time.sleep(min(dice.expovariate(1 / 12), max(0.0, end - time.monotonic())))
                if time.monotonic() < end:
                    fault = dice.choice(faults)
                    self.play(fault, dice.uniform(*fault.seconds), dice)
                    time.sleep(dice.uniform(2, 15))

        threads = [threading.Thread(target=keep, args=(faults, random.Random(f"{self.dice.random()} {name}"))) for name, faults in resources.items()]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            time.sleep(1)
            if int(time.monotonic() - began) % 60 == 0:
                counts = self.truth.counts
                print(f"  {time.monotonic() - began:5.0f} s: {len(self.done)} faults, {counts['requests answered']} requests, {counts['changes answered']} changes, "
                      f"{len(self.truth.broken)} not kept, load {os.getloadavg()[0]:.1f}", flush=True)


def finish(world, truth):
    """Everything is healed: is everything alive, and is the truth what was told?"""
    said, pending = [], []

    def wait_for(name, condition, what, seconds):
        end, kept, why = time.monotonic() + seconds, False, ""
        while not kept and time.monotonic() < end:
            try:
                kept = bool(condition())
            except (OSError, KeyError, TypeError, ValueError) as error:
                why = f": {error!r}"
            if not kept:
                time.sleep(0.5)
        if not kept:
            truth.note(name, what + why)
        said.append((name, what, kept))

    def check(name, condition, what, seconds=60):
        """Begins to wait for it; `settle` waits for all."""
        thread = threading.Thread(target=wait_for, args=(name, condition, what, seconds))
        thread.start()
        pending.append(thread)

    def settle():
        while pending:
            pending.pop().join()

    for node in world.all:
        check("ready", lambda node=node: node.ask("api", "GET", "/readyz")[0] == 200, f"{node.name} is ready", 120)
    settle()
    # Acknowledged writes.
    for place, nodes in (("cluster", world.nodes), ("alone", [world.alone])):
        there, page = set(), "/api_keys?limit=100"
        while page:
            status, body, _ = nodes[0].api("GET", page, timeout=30)
            must(status == 200, f"keys of {place} can be listed")
            there |= {key["id"] for key in body["keys"]}
            page = body.get("next_page_uri") and "/" + body["next_page_uri"].split("/", 3)[3]
        lost = {id_: at for id_, at in truth.writes[place].items() if id_ not in there}
        unexplained = [id_ for id_, at in lost.items() if not (place == "cluster" and truth.is_lossy(at))]
        truth.counts[f"acknowledged writes of {place}"] = len(truth.writes[place])
        truth.counts[f"of these taken by a fail-over, {place}"] = len(lost) - len(unexplained)
        if unexplained:
            truth.note("acknowledged writes are there", f"{len(unexplained)} of {place} are lost: {unexplained[:5]}")
        if len(lost) > len(unexplained):
            check("history", lambda nodes=nodes: nodes[0].api("GET", "/events?type=commits_lost.v0")[1]["events"], "lost commits are told")
        kept = set(truth.writes[place]) & there
        for way in ("healthy", "flaky", "moved"):
            check("told", lambda kept=kept, told=truth.sinks[place].told[way]: kept <= set(told), f"{place}: every acknowledged write is told to the {way} destination", 120)
    for node in world.all:
        counter = truth.counters[node.name]
        value = int(node.api("GET", f"/api_keys/{counter[0]}")[1]["metadata"])
        if not (counter[1] <= value <= counter[2]) and not (counter[3:] and truth.is_lossy(counter[3])):
            truth.note("acknowledged writes are there", f"the counter of {node.name} is {value}, {counter[1]} was acknowledged")
    for place, id_, token, at in truth.deleted:
        node = random.choice(world.nodes if place == "cluster" else [world.alone])
        if not truth.is_lossy(at) and truth.accepts(node, token):
            truth.note("deleted keys are dead", f"{node.name} accepts {id_} at the end")
    # Told events: those of traffic but for what was counted. Every destination may miss each.
    for way in ("healthy", "flaky", "moved"):
        for place in ("cluster", "alone"):
            check("counted", lambda way=way, place=place: len(truth.untold(way, place)) <= truth.counted(place),
                  f"{place}: requests that the {way} destination was not told of are counted", 120)
    settle()
    for place in ("cluster", "alone"):
        truth.counts[f"deliveries of {place} that its nodes counted as lost"] = int(truth.counted(place))
        for way in ("healthy", "flaky", "moved"):
            truth.counts[f"requests of {place} that the {way} destination was not told of"] = len(truth.untold(way, place))
    # Every loop. The names are those of the table.
    for node in world.all:
        for peer in world.installation_of(node):
            check("live", lambda node=node, peer=peer: is_live_everywhere(world, truth, node, peer), f"a change of {node.name}'s endpoint by {peer.name} is live")
        settle()
    failures = lambda nodes: sum(node.metrics().get("certificate_failures_total", 0) for node in nodes)
    for nodes in (world.nodes, [world.alone]):
        # Those that failed for long are tried once an hour.
        nodes[0].make("reserved_domains", {"domain": "later.example.com"})
        check("renewal", lambda nodes=nodes, before=failures(nodes): failures(nodes) > before, f"certificates are ordered by {nodes[0].name} or its peers", 90)
    for node in world.all:
        told, path = truth.sinks[truth.place(node)].told, f"/{node.name}/last/{random.randrange(10 ** 9)}"
        check("edge", lambda node=node, path=path: node.get(LOAD, path)[0] == 200, f"{node.name} answers a request")
        made = node.make("api_keys", {"description": "last"})
        for way in ("healthy", "flaky", "moved"):
            check("told", lambda told=told[way], path=path, id_=made["id"]: path in told and id_ in told, f"a request and a change at {node.name} are told to the {way} destination", 90)
        check("uses", lambda node=node, made=made: node.api("GET", "/api_keys?limit=1", token=made["token"])[0] == 200
              and node.api("GET", f"/api_keys/{made['id']}/restrictions")[1]["last_used_at"], f"the use of a key at {node.name} is noted", 120)
        check("logged", lambda node=node, path=path: path in json.dumps(node.api("GET", "/events?type=http_request_complete.v0&limit=100")[1]), f"a request at {node.name} is in the traffic log", 90)
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        check("statistics", lambda node=node, since=since: node.api("GET", f"/statistics?subject=node&id={node.name}&from={since}")[1]["points"], f"{node.name} keeps statistics", 90)
        check("metrics", lambda node=node: node.metrics()["process_memory_bytes"] > 0, f"{node.name} has metrics")
    for host in world.agents:
        for node in world.nodes:
            check("agent", lambda host=host, node=node: node.get(host)[0] == 200, f"{host} is reached through {node.name}")
    settle()
    for node in world.all:
        check("ready", lambda node=node: node.ask("api", "GET", "/readyz")[0] == 200, f"{node.name} is still ready")
    settle()
    for way in ("zero", "past", "huge", "hanging"):
        for place, sink in truth.sinks.items():
            rate, at = sink.fastest(way, truth.delay)
            truth.worst[f"requests/s to the {way} destination of {place}"] = rate
            if rate > SENDS_PER_S:
                truth.note("failing destinations are spared", f"{place}: {rate:.1f} requests/s to the {way} destination")
    for node in world.all:
        for at, code, was_expected in node.exits:
            if not was_expected:
                truth.note("processes live", f"{node.name} ended with {code}")
    return said


def is_live_everywhere(world, truth, node, peer):
    """Changes an endpoint and waits for all edges."""
    (host, id_), n = truth.probes[node.name], random.randrange(10 ** 8, 10 ** 9)
    if peer.api("PATCH", f"/endpoints/{id_}", {"traffic_policy": policy(n)})[0] != 200:
        return False
    answered = time.monotonic()
    while time.monotonic() - answered < LIVE_S:
        if all(other.get(host)[1] == str(n).encode() for other in world.installation_of(node)):
            return True
        time.sleep(0.1)
    return False


def go(options):
    lacks = missing()
    if lacks:
        print(f"skipped: a whole installation: {', '.join(lacks)}")
        return
    enter()
    seed = options.seed if options.seed is not None else random.randrange(10 ** 6)
    print(f"seed {seed}", flush=True)
    dice = random.Random(seed)
    folder = tempfile.mkdtemp(prefix="culvert-faults-")
    os.chmod(folder, 0o755)
    began = time.monotonic()
    binary = f"{folder}/culvert"
    shutil.copy(options.binary, binary)
    options.binary = binary
    world = None
    try:
        world = World(options, folder)
        truth = Truth(world, seed)
        truth.prepare()
        truth.begin()
        print(f"an installation of {len(world.nodes)} nodes and one of one node after {time.monotonic() - began:.1f} s", flush=True)
        time.sleep(2)
        round_ = Round(world, truth, dice, options)
        round_.alone(options.hold, options.rest)
        if options.minutes:
            round_.together(max(0.0, options.minutes * 60 - (time.monotonic() - began)))
        truth.end()
        report(world, truth, round_, finish(world, truth), seed, began)
    finally:
        if world:
            world.close()
        if options.keep or FAILED:
            print(f"logs are in {folder}")
            shutil.rmtree(f"{folder}/postgres0", ignore_errors=True)
            shutil.rmtree(f"{folder}/postgres1", ignore_errors=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def report(world, truth, round_, said, seed, began):
    print(f"\nseed {seed}, {time.monotonic() - began:.0f} s, {len(round_.done)} faults; the machine was late by at most {truth.delay.worst:.2f} s, load {os.getloadavg()[0]:.1f}")
    for what, n in sorted(truth.counts.items()):
        print(f"  {n:10}  {what}")
    for place in ("cluster", "alone"):
        during = collections.Counter()
        for path, at in truth.untold("healthy", place).items():
            node = path.split("/")[1]
            during.update(f"{node}, {name}" for name, since, until in round_.done if since - 1 <= at <= until + 1)
        for what, n in during.most_common(12):
            print(f"  {n:10}  requests that the healthy destination was not told of: {what}")
    for what, worst in sorted(truth.worst.items()):
        print(f"  {worst:10.2f}  at most: {what}")
    print("\nloop, cache or lease: what is seen of it, after which fault")
    ran = {name for name, _, _ in round_.done}
    kept = {name: all(ok for other, _, ok in said if other == name) for name, _, _ in said}
    for kind, name, faults, seen in held.ROWS:
        state = "in the suite" if seen.startswith("it:") else "alive" if kept.get(seen) else "NOT SEEN ALIVE"
        through = [it for it in ran if it.startswith(faults)]
        print(f"  {kind:5} {name:60} {state:14} ({seen.removeprefix('it:')}) after {len(through)} kinds of `{faults}`")
    for at, check, what in truth.broken:
        FAILED.append(f"{check}: {what}")
    print(f"\nnot kept: {len(FAILED)}")
    for what in sorted(set(FAILED)):
        print(f"  {what}")
