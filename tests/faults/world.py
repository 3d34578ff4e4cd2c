"""An installation of three nodes and one of a single node, and all they depend on, in a network of its own.

PostgreSQL is a primary and a standby with synchronous replication; each node reaches whichever is the primary at an
address of its own, so one node can be cut off. Agents are in a further network behind a link. Everything a run starts
is in its own process, mount and network namespaces, and ends with it."""
import glob, http.client, json, mmap, os, re, shutil, signal, socket, struct, subprocess, threading, time

from .report import must, until

HERE = os.path.dirname(os.path.abspath(__file__))
NAMESPACE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
AGENTS_HERE, AGENTS_THERE = "10.9.0.1", ["10.9.0.2", "10.9.0.3"]
"""Addresses of the two ends of the agents' link; the other end has one of two."""


MEMORY_BYTES = 512 << 20
"""What each node may use."""


def run(*command, **more):
    more = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True} | more
    return subprocess.run(command, **more)


def prepare_network():
    """Inside the namespaces: the loopback interface and the agents' network."""
    run("mount", "--make-rprivate", "/")
    os.makedirs("/run/netns", exist_ok=True)
    run("mount", "-t", "tmpfs", "netns", "/run/netns")
    for command in ("ip link set lo up", "ip netns add agents", "ip link add here type veth peer name there",
                    "ip link set there netns agents", f"ip addr add {AGENTS_HERE}/24 dev here", "ip link set here up",
                    "ip netns exec agents ip link set lo up", f"ip -n agents addr add {AGENTS_THERE[0]}/24 dev there",
                    "ip -n agents link set there up"):
        run(*command.split())


def firewall(change, table, chain, *rule):
    """Adds (`-A`) or removes (`-D`) a rule. Removing one that is not there is fine."""
    run("iptables", "-w", "-t", table, change, chain, *rule, check=change == "-A")


class Shim:
    """The wall clock and the disk of one process; the other side is shim.c."""

    library = None
    WRITE, SYNC, CREATE = 1, 2, 4

    def __init__(self, folder, name):
        self.path = f"{folder}/{name}.shim"
        with open(self.path, "wb") as file:
            file.write(bytes(4096))
        with open(self.path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 4096)

    @classmethod
    def build(cls, folder):
        cls.library = f"{folder}/shim.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", cls.library, f"{HERE}/shim.c", "-ldl"], check=True)

    def environment(self):
        return {"LD_PRELOAD": self.library, "FAULTS_SHIM": self.path}

    def clock(self, seconds):
        self.map[0:8] = struct.pack("<q", int(seconds * 1e9))

    def disk(self, error=0, operations=WRITE | SYNC | CREATE, below=""):
        self.map[24:280] = below.encode().ljust(256, b"\0")
        self.map[8:16] = struct.pack("<ii", error, operations)

    def failed(self):
        return struct.unpack("<q", self.map[16:24])[0]


class Database:
    """Two PostgreSQL servers; one follows the other. Everybody reaches the primary at port 5432 of any loopback address."""

    ADDRESSES = "127.0.5.0/24"

    def __init__(self, folder):
        self.bin = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
        self.folders, self.ports = [f"{folder}/postgres{n}" for n in (0, 1)], [5401, 5402]
        for path in self.folders:
            os.mkdir(path, 0o700)
            shutil.chown(path, "postgres", "postgres")
        self.primary = None
        self.program(0, "initdb", "-U", "postgres", "-A", "trust", "--no-sync")
        self.start(0)
        self.lead(0)
        self.follow()

    def program(self, n, name, *arguments, check=True):
        command = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", f"{self.bin}/{name}"]
        return run(*command, "-D", f"{self.folders[n]}/data", *arguments, cwd="/", check=check, timeout=120)

    def start(self, n):
        options = f"-p {self.ports[n]} -k {self.folders[n]} -c listen_addresses=127.0.0.1 -c max_connections=200 -c fsync=off"
        self.program(n, "pg_ctl", "-l", f"{self.folders[n]}/log", "-o", options, "-w", "start")

    def stop(self, n, mode="immediate"):
        self.program(n, "pg_ctl", "-m", mode, "-w", "stop", check=False)

    def lead(self, n):
        """New connections reach this server; open ones stay where they are."""
        rule = lambda n: ["-d", self.ADDRESSES, "-p", "tcp", "--dport", "5432", "-j", "DNAT", "--to-destination", f"127.0.0.1:{self.ports[n]}"]
        if self.primary is not None:
            firewall("-D", "nat", "OUTPUT", *rule(self.primary))
        firewall("-A", "nat", "OUTPUT", *rule(n))
        self.primary = n

    def sql(self, text, n=None, timeout=20, check=True):
        """Runs statements, also on a server whose default is read only."""
        port = self.ports[self.primary if n is None else n]
        command = [f"{self.bin}/psql", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-qtA", "-v", "ON_ERROR_STOP=1"]
        for statement in text.split(";"):
            command += ["-c", statement]
        environment = os.environ | {"PGCONNECT_TIMEOUT": "5", "PGOPTIONS": "-c default_transaction_read_only=off -c synchronous_commit=local"}
        try:
            return run(*command, stdout=subprocess.PIPE, text=True, env=environment, timeout=timeout, check=check).stdout.strip()
        except subprocess.TimeoutExpired:
            if check:
                raise
            return ""

    def set(self, name, value, n=None):
        self.sql(f"ALTER SYSTEM SET {name} = {value};SELECT pg_reload_conf()", n)

    def follow(self):
        """Makes the other server a synchronous standby of the primary, from a new copy."""
        other = 1 - self.primary
        self.stop(other)
        self.set("synchronous_standby_names", "''")
        shutil.rmtree(f"{self.folders[other]}/data", ignore_errors=True)
        self.program(other, "pg_basebackup", "-h", "127.0.0.1", "-p", str(self.ports[self.primary]), "-U", "postgres", "-R", "-X", "stream", "-c", "fast", "--no-sync")
        self.start(other)
        until("the standby follows", lambda: self.sql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", check=False) == "1", 60)
        self.set("synchronous_standby_names", "'*'")

    def promote(self, away=0.0):
        """The primary is gone, and the standby takes its place."""
        old = self.primary
        self.stop(old)
        time.sleep(away)
        self.lead(1 - old)
        self.program(self.primary, "pg_ctl", "-w", "promote")
        self.set("synchronous_standby_names", "''")

    def detach(self):
        """From here on the standby gets nothing, and the primary does not wait for it."""
        self.set("synchronous_standby_names", "''")
        self.set("primary_conninfo", "''", 1 - self.primary)
        until("replication ends", lambda: self.sql("SELECT count(*) FROM pg_stat_replication", check=False) == "0", 20)

    def signal(self, number):
        """To every process of the primary."""
        with open(f"{self.folders[self.primary]}/data/postmaster.pid") as file:
            postmaster = int(file.readline())
        with open(f"/proc/{postmaster}/task/{postmaster}/children") as file:
            family = [postmaster, *map(int, file.read().split())]
        for pid in family:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass


class Stream:
    """A NATS server with JetStream, on every address."""

    def __init__(self, folder):
        self.folder, self.process = f"{folder}/nats", None
        self.start()

    def start(self):
        command = ["nats-server", "-a", "0.0.0.0", "-p", "4222", "-js", "-sd", self.folder]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until("NATS listens", self.listens, 20)

    def listens(self):
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", 4222)) == 0

    def kill(self):
        self.process.kill()
        self.process.wait()

    def request(self, subject, body=b""):
        """One request of NATS's text protocol, and its answer."""
        with socket.create_connection(("127.0.0.1", 4222), timeout=10) as s:
            file = s.makefile("rb")
            file.readline()
            s.sendall(b'CONNECT {"verbose":false}\r\nSUB _INBOX.faults 1\r\nPUB %s _INBOX.faults %d\r\n%s\r\n' % (subject.encode(), len(body), body))
            for line in file:
                if line.startswith(b"MSG"):
                    return json.loads(file.read(int(line.split()[-1])))
        raise OSError("NATS closed the connection")

    def delete_streams(self):
        names = self.request("$JS.API.STREAM.NAMES").get("streams") or []
        for name in names:
            self.request(f"$JS.API.STREAM.DELETE.{name}")
        return names


class Node:
    """A culvert server that is started again whenever it ends, as a supervisor does."""

    def __init__(self, world, number, name, database, event_log, data):
        self.world, self.number, self.name, self.data = world, number, name, data
        self.shim = Shim(world.folder, name)
        at = 8000 + 100 * number
        self.ports = {"api": at + 20, "edge-http": at + 80, "edge-https": at + 43, "agents": at + 41, "agents-ssh": at + 22, "nodes": at + 42, "metrics": at + 90}
        self.command = [world.binary, "serve", "--node-name", name, "--data-dir", data, "--secrets-key-file", f"{world.folder}/{'cluster' if database else name}.key",
                        "--database-url", database, "--event-log", event_log, "--destinations-allow-plain-http", "true", "--destinations-allow-networks", "127.0.0.0/8",
                        "--edge-tcp-ports", f"{20000 + 100 * number}-{20099 + 100 * number}", "--agents-names", AGENTS_HERE, "--log-level", "warn", "--log-format", "json",
                        # Nobody is there: its certificates are tried again and again.
                        "--acme-directory-url", "https://127.0.0.1:9/", "--acme-retry-after", "1s"]
        host = {"agents": "0.0.0.0", "agents-ssh": "0.0.0.0"}
        for flag, port in self.ports.items():
            self.command += [f"--{flag}-addr", f"{host.get(flag, '127.0.0.1')}:{port}"]
        self.cgroup = world.memory_limit(name)
        self.process, self.is_ready, self.wanted, self.ends_expected = None, False, True, False
        self.starts, self.downs, self.exits = 0, [], []
        """(from, until) when it was not ready; (time, code) of each end."""
        self.down_since = time.monotonic()
        threading.Thread(target=self.supervise, daemon=True).start()

    def supervise(self):
        while True:
            if not self.wanted:
                time.sleep(0.05)
                continue
            environment = {key: value for key, value in os.environ.items() if not key.startswith("CULVERT_")} | self.shim.environment()
            with open(f"{self.world.folder}/{self.name}.log", "ab") as log:
                self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=self.world.folder)
            if self.cgroup:
                with open(f"{self.cgroup}/cgroup.procs", "w") as file:
                    file.write(str(self.process.pid))
            self.starts += 1
            for line in self.process.stdout:
                if line.startswith(b"culvert ready"):
                    self.is_ready = True
                    self.downs.append((self.down_since, time.monotonic()))
                    self.down_since = None
            code = self.process.wait()
            now = time.monotonic()
            self.is_ready = False
            self.down_since = self.down_since or now
            self.exits.append((now, code, self.ends_expected))
            self.ends_expected = False
            time.sleep(0.2)

    def was_down(self, since, until, grace=1.0):
        """Whether it was not there, or had just begun, at some time."""
        downs = [*self.downs, *([(self.down_since, float("inf"))] if self.down_since else [])]
        return any(begin - 0.5 <= until and since <= end + grace for begin, end in downs)

    def end(self, number):
        self.ends_expected, self.is_ready = True, False
        self.down_since = self.down_since or time.monotonic()
        self.process.send_signal(number)

    def token(self):
        folder = self.data if not self.world.is_of_cluster(self) else self.world.nodes[0].data
        with open(f"{folder}/bootstrap-key") as file:
            return file.read().strip()

    def ask(self, port, method, path, body=None, headers=None, timeout=10):
        """Status, headers and body. OSError if there is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(repr(error)) from error
        finally:
            connection.close()

    def api(self, method, path, body=None, token=None, timeout=10):
        headers = {"authorization": f"Bearer {token or self.world.token(self)}", "content-type": "application/json"}
        status, heads, text = self.ask("api", method, path, json.dumps(body) if body is not None else None, headers, timeout)
        try:
            return status, json.loads(text) if text else None, heads
        except ValueError:
            return status, None, heads

    def make(self, collection, body):
        status, made, _ = self.api("POST", f"/{collection}", body, timeout=30)
        assert status < 300, (self.name, collection, status, made)
        return made

    def get(self, host, path="/", timeout=10):
        status, _, text = self.ask("edge-http", "GET", path, headers={"host": host, "connection": "close"}, timeout=timeout)
        return status, text

    def metrics(self):
        """The sum of each metric over its labels."""
        _, _, text = self.ask("metrics", "GET", "/metrics", timeout=5)
        sums = {}
        for name, value in re.findall(r"^culvert_(\w+?)(?:\{[^}]*\})? ([\d.e+-]+)$", text.decode(), re.M):
            sums[name] = sums.get(name, 0) + float(value)
        return sums


class Agent:
    """A program in the agents' network that is started again whenever it ends."""

    def __init__(self, world, name, command, environment=None):
        self.world, self.name, self.command = world, name, ["ip", "netns", "exec", "agents", *command]
        self.environment = os.environ | (environment or {})
        self.starts = 0
        threading.Thread(target=self.supervise, daemon=True).start()

    def supervise(self):
        while True:
            with open(f"{self.world.folder}/{self.name}.log", "ab") as log:
                self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, cwd=self.world.folder)
            self.starts += 1
            self.process.wait()
            time.sleep(0.5)


SERVICE = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "2"); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 7000), Handler).serve_forever()
"""


class World:
    def __init__(self, options, folder):
        self.binary, self.folder = options.binary, folder
        self.tokens = {}
        Shim.build(folder)
        prepare_network()
        self.database = Database(folder)
        self.stream = Stream(folder)
        self.nodes = []
        names = ["one", "two", "three"][:options.nodes]
        for number, name in enumerate(names, 1):
            url = f"postgres://postgres@127.0.5.{number}/postgres?sslmode=disable"
            node = Node(self, number, name, url, f"nats://127.0.5.{number}:4222", f"{folder}/{name}")
            self.nodes.append(node)
            # The first one makes the account.
            self.require(node)
        self.disk = f"{folder}/disk"
        os.mkdir(self.disk)
        run("mount", "-t", "tmpfs", "-o", "size=96m,mode=0700", "tmpfs", self.disk)
        self.alone = Node(self, 4, "alone", "", "embedded", f"{self.disk}/data")
        self.require(self.alone)
        self.all = [*self.nodes, self.alone]
        self.agents = self.start_agents()

    def memory_limit(self, name):
        """A control group that bounds the memory of a node; `None` where there are none that this program may make."""
        for top, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            path = f"{top}/{os.path.basename(self.folder)}-{name}"
            try:
                os.mkdir(path)
                with open(f"{path}/{file}", "w") as limit:
                    limit.write(str(MEMORY_BYTES))
                return path
            except OSError:
                if os.path.isdir(path):
                    os.rmdir(path)
        return None

    def close(self):
        """The namespaces end everything but the control groups."""
        for node in getattr(self, "all", self.nodes):
            node.wanted = False
            if node.process:
                node.process.kill()
                node.process.wait()
            if node.cgroup:
                time.sleep(0.1)
                os.rmdir(node.cgroup)

    def require(self, node):
        """Without its first start there is nothing to see."""
        end = time.monotonic() + 40
        while not node.is_ready:
            if time.monotonic() > end or len(node.exits) > 2:
                with open(f"{self.folder}/{node.name}.log") as log:
                    raise SystemExit(f"node {node.name} does not start: {log.read()[-2000:]}")
            time.sleep(0.05)

    def is_of_cluster(self, node):
        return node.number < 4

    def token(self, node):
        place = "cluster" if self.is_of_cluster(node) else "alone"
        if place not in self.tokens:
            self.tokens[place] = node.token()
        return self.tokens[place]

    def start_agents(self):
        Agent(self, "service", ["python3", "-c", SERVICE])
        first = self.nodes[0]
        token = first.make("credentials", {})["token"]
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{self.folder}/agent-key")
        with open(f"{self.folder}/agent-key.pub") as file:
            first.make("ssh_credentials", {"public_key": file.read().strip()})
        agents = {}
        # Behind a balancer: one address that leads to any node.
        for n, node in enumerate(self.nodes):
            host = f"agent{n}.culvert.localhost"
            environment = {"CULVERT_SERVER": f"{AGENTS_HERE}:{node.ports['agents']}", "CULVERT_AUTHTOKEN": token, "CULVERT_CA_FILE": f"{self.nodes[0].data}/ca.pem", "HOME": self.folder}
            agents[host] = Agent(self, f"agent{n}", [self.binary, "http", "127.0.0.1:7000", "--inspect=false", "--url", f"http://{host}"], environment)
        host = "ssh.culvert.localhost"
        ssh = ["ssh", "-F", "/dev/null", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "StrictHostKeyChecking=no", "-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=2",
               "-o", "ExitOnForwardFailure=yes", "-o", "UserKnownHostsFile=/dev/null", "-i", f"{self.folder}/agent-key", "-p", str(first.ports["agents-ssh"]),
               "-R", f"{host}:80:127.0.0.1:7000", f"v2@{AGENTS_HERE}", "http", "--scheme", "http"]
        agents[host] = Agent(self, "ssh", ssh)
        return agents

    def installation_of(self, node):
        return self.nodes if self.is_of_cluster(node) else [self.alone]
