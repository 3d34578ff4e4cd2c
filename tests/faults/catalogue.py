"""The faults: what each does, whom it may touch, and how it ends.

A fault is a generator: it makes the fault, yields while it lasts, and takes it back. `tags` say what it excuses (see
truth.py), `settle` for how many seconds after its end; a fault without tags excuses nothing. Faults with the same
`resource` never overlap."""
import errno, os, random, signal, socket, threading, time

from .report import until
from .world import AGENTS_HERE, AGENTS_THERE, firewall, run

ALL = {}


class Fault:
    def __init__(self, name, make, resource, tags, settle, seconds):
        self.name, self.make, self.resource, self.tags, self.settle, self.seconds = name, make, resource, tags, settle, seconds


def fault(name, resource, tags=(), settle=0.0, seconds=(3, 12)):
    def add(make):
        ALL[name] = Fault(name, make, resource, tags, settle, seconds)
        return make
    return add


DATABASE = {"resource": "database", "tags": ["database@cluster"], "settle": 10}


@fault("database: killed and restarted", **DATABASE)
def _(world, truth, dice):
    world.database.stop(world.database.primary)
    yield
    world.database.start(world.database.primary)


@fault("database: fast restart", **DATABASE | {"seconds": (0, 1)})
def _(world, truth, dice):
    world.database.stop(world.database.primary, "fast")
    world.database.start(world.database.primary)
    yield


@fault("database: connections ended", **DATABASE | {"seconds": (0, 1)})
def _(world, truth, dice):
    world.database.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
    yield


@fault("database: fail-over that loses nothing", **DATABASE | {"seconds": (0, 2)})
def _(world, truth, dice):
    world.database.promote(away=dice.uniform(0, 2))
    yield
    world.database.follow()


@fault("database: fail-over that loses commits", **DATABASE | {"seconds": (0, 2)})
def _(world, truth, dice):
    began = time.monotonic()
    span = [began, float("inf")]
    truth.lossy.append(span)
    world.database.detach()
    time.sleep(dice.uniform(1, 3))
    world.database.promote(away=dice.uniform(0, 1))
    span[1] = time.monotonic()
    yield
    world.database.follow()


@fault("database: hangs", **DATABASE)
def _(world, truth, dice):
    world.database.signal(signal.SIGSTOP)
    yield
    world.database.signal(signal.SIGCONT)


@fault("database: read only", **DATABASE)
def _(world, truth, dice):
    world.database.set("default_transaction_read_only", "on")
    yield
    world.database.set("default_transaction_read_only", "off")


@fault("database: standby gone", **DATABASE)
def _(world, truth, dice):
    """Commits wait for it."""
    world.database.stop(1 - world.database.primary)
    yield
    world.database.start(1 - world.database.primary)


@fault("database: tables locked", **DATABASE | {"seconds": (2, 5)})
def _(world, truth, dice):
    tables = world.database.sql("SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')")
    seconds = dice.uniform(2, 6)
    thread = threading.Thread(target=world.database.sql, args=(f"BEGIN;SET LOCAL lock_timeout = '10s';LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE;SELECT pg_sleep({seconds});COMMIT",), kwargs={"check": False, "timeout": 30})
    thread.start()
    yield
    thread.join()


def cut(world, truth, node, *rule):
    span = truth.excuses.begin([f"database:{node.name}"], 10)
    firewall("-A", "mangle", "OUTPUT", *rule)
    yield
    firewall("-D", "mangle", "OUTPUT", *rule)
    truth.excuses.end(span)


@fault("database: a node is cut off", "database", seconds=(5, 25))
def _(world, truth, dice):
    """Packets vanish; no connection is closed."""
    node = dice.choice(world.nodes)
    yield from cut(world, truth, node, "-d", f"127.0.5.{node.number}", "-p", "tcp", "--dport", "5432", "-j", "DROP")


@fault("database: a node loses packets", "database", seconds=(5, 15))
def _(world, truth, dice):
    node = dice.choice(world.nodes)
    yield from cut(world, truth, node, "-d", f"127.0.5.{node.number}", "-p", "tcp", "--dport", "5432", "-m", "statistic", "--mode", "random", "--probability", "0.3", "-j", "DROP")


@fault("event log: killed and restarted", "event log")
def _(world, truth, dice):
    world.stream.kill()
    yield
    world.stream.start()


@fault("event log: hangs", "event log")
def _(world, truth, dice):
    world.stream.process.send_signal(signal.SIGSTOP)
    yield
    world.stream.process.send_signal(signal.SIGCONT)


@fault("event log: stream deleted", "event log", seconds=(1, 2))
def _(world, truth, dice):
    world.stream.delete_streams()
    yield


@fault("event log: a node is cut off", "event log")
def _(world, truth, dice):
    node = dice.choice(world.nodes)
    rule = ["-d", f"127.0.5.{node.number}", "-p", "tcp", "--dport", "4222", "-j", "DROP"]
    firewall("-A", "mangle", "OUTPUT", *rule)
    yield
    firewall("-D", "mangle", "OUTPUT", *rule)


def failing_disk(name, error, operations=7):
    @fault(name, "disk", ["disk"], 8)
    def _(world, truth, dice):
        world.alone.shim.disk(error, operations, world.disk)
        # It ends by itself, to be started again, once the disk takes writes.
        world.alone.ends_expected = True
        yield
        world.alone.shim.disk()
        until("the node on SQLite is ready", lambda: world.alone.is_ready, 60)


failing_disk("disk: EIO", errno.EIO)
failing_disk("disk: EIO at syncs", errno.EIO, 2)
failing_disk("disk: EROFS", errno.EROFS)
failing_disk("disk: EDQUOT", errno.EDQUOT)


@fault("disk: full", "disk", ["disk"], 8)
def _(world, truth, dice):
    filler = open(f"{world.disk}/filler", "wb", buffering=0)
    for size in (1 << 16, 1 << 12, 1):
        try:
            while True:
                filler.write(bytes(size))
        except OSError:
            pass
    filler.close()
    yield
    os.remove(f"{world.disk}/filler")
    until("the node on SQLite is ready", lambda: world.alone.is_ready, 60)


@fault("disk: EIO at a node on PostgreSQL", "disk")
def _(world, truth, dice):
    node = dice.choice(world.nodes)
    node.shim.disk(errno.EIO, 7, node.data)
    yield
    node.shim.disk()


def stepped_clock(name, sign):
    @fault(name, "clock", seconds=(4, 15))
    def _(world, truth, dice):
        node = dice.choice(world.all)
        node.shim.clock(sign * dice.choice([10, 120, 3600, 7200]))
        yield
        node.shim.clock(0)


stepped_clock("clock: set forward, then back", 1)
stepped_clock("clock: set back, then forward", -1)


@fault("memory: a crowd of slow uploads", "memory", seconds=(5, 10))
def _(world, truth, dice):
    """The node has a memory limit; it may refuse requests, but it is not killed."""
    node = dice.choice([it for it in world.all if it.cgroup] or world.all)
    span = truth.excuses.begin([f"crowd:{node.name}"], 5)
    sockets = []
    for _ in range(200):
        try:
            s = socket.create_connection(("127.0.0.1", node.ports["edge-http"]), timeout=2)
            s.sendall(b"PUT /crowd HTTP/1.1\r\nhost: crowd.culvert.localhost\r\ncontent-length: 1048576\r\n\r\n")
            s.setblocking(False)
            sockets.append(s)
        except OSError:
            pass
    piece, stop = bytes(1 << 14), threading.Event()

    def push():
        while not stop.wait(0.05):
            for s in sockets:
                try:
                    s.send(piece)
                except OSError:
                    pass
    thread = threading.Thread(target=push)
    thread.start()
    yield
    stop.set()
    thread.join()
    for s in sockets:
        s.close()
    truth.excuses.end(span)


LINK = {"resource": "link", "tags": ["agents"], "settle": 12}


@fault("link of agents: cut", **LINK)
def _(world, truth, dice):
    rules = [("INPUT", "-i", "here", "-j", "DROP"), ("OUTPUT", "-o", "here", "-j", "DROP")]
    for rule in rules:
        firewall("-A", "filter", *rule)
    yield
    for rule in rules:
        firewall("-D", "filter", *rule)


@fault("link of agents: slow", **LINK)
def _(world, truth, dice):
    run("tc", "qdisc", "add", "dev", "here", "root", "tbf", "rate", "256kbit", "burst", "4kb", "latency", "300ms")
    yield
    run("tc", "qdisc", "del", "dev", "here", "root")


@fault("link of agents: loses packets", **LINK)
def _(world, truth, dice):
    rule = ["INPUT", "-i", "here", "-m", "statistic", "--mode", "random", "--probability", "0.15", "-j", "DROP"]
    firewall("-A", "filter", *rule)
    yield
    firewall("-D", "filter", *rule)


@fault("link of agents: another address", **LINK | {"seconds": (1, 3)})
def _(world, truth, dice):
    run("ip", "-n", "agents", "addr", "del", f"{AGENTS_THERE[0]}/24", "dev", "there")
    AGENTS_THERE.reverse()
    run("ip", "-n", "agents", "addr", "add", f"{AGENTS_THERE[0]}/24", "dev", "there")
    yield


@fault("node: killed", "node", seconds=(0, 1))
def _(world, truth, dice):
    node = dice.choice(world.all)
    node.end(signal.SIGKILL)
    yield
    until(f"node {node.name} is ready", lambda: node.is_ready or truth.excuses.cover(time.monotonic(), time.monotonic(), "database@cluster", "disk"), 60)


@fault("node: stopped in order and started", "node", seconds=(0, 1))
def _(world, truth, dice):
    node = dice.choice(world.all)
    starts = node.starts
    node.end(signal.SIGTERM)
    yield
    until(f"node {node.name} is started again", lambda: node.starts > starts, 60)


@fault("node: paused", "node", seconds=(2, 8))
def _(world, truth, dice):
    node = dice.choice(world.all)
    span = truth.excuses.begin([f"node:{node.name}"], 8)
    process = node.process
    process.send_signal(signal.SIGSTOP)
    yield
    process.send_signal(signal.SIGCONT)
    truth.excuses.end(span)
