"""What benches/measure knows of agents: beside other reverse tunnels, latency, and many sessions.

Peers are looked for in `$PEERS/bin`, then in the PATH:

    cargo install --root "$PEERS" rathole --no-default-features --features server,client,tls
    cargo install --root "$PEERS" --locked bore-cli

Their sockets are plain TCP for the client, so culvert's edge is spoken to in plain HTTP. CPU is that of a
peer's server and agent together, with all of their processes. What is missing is passed over with a line.
The published agent is PyPI's, whose core is the one in Rust; `scripts/python-clients` makes its environment.
"""
import asyncio, json, os, re, resource, shutil, socket, ssl, statistics, struct, subprocess, sys, time
from __main__ import ROOT, cpu_seconds, family, free_port, resident_kib, wait_for, wrk

HOST = "bench.culvert.localhost"
IDLE_SESSIONS = 10_000
STORM_SESSIONS = 2_000
GIBIBYTE = 1 << 30


def families(processes):
    """The processes with all of their descendants."""
    found, wanted = [], [process.pid for process in processes]
    while wanted:
        pid = wanted.pop()
        if pid not in found:
            found.append(pid)
            wanted += family(pid)
    return found


def program(name):
    own = os.path.join(os.environ.get("PEERS", ""), "bin", name)
    return own if os.access(own, os.X_OK) else shutil.which(name)


def write(path, text, mode=0o600):
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, mode)
    return path


def start(run, command, **kwargs):
    process = subprocess.Popen([*run.within, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **kwargs)
    run.processes.append(process)
    return process


class Rival:
    """A server and an agent, the last of `processes`, whose service is reached at `port` with `host`."""

    def __init__(self, name, processes, port, host=HOST):
        self.name, self.processes, self.port, self.host = name, processes, port, host
        self.url = f"http://127.0.0.1:{port}/"
        self.per_cpu, self.rate, self.down, self.alone = [], [], [], []

    def measure_requests(self, seconds):
        headers = [f"Host: {self.host}"]
        wrk(self.url, 1, headers=headers)
        pids, agent = families(self.processes), families(self.processes[-1:])
        before, before_alone = cpu_seconds(pids), cpu_seconds(agent)
        requests, elapsed = wrk(self.url, seconds, headers=headers)
        self.per_cpu.append(requests / (cpu_seconds(pids) - before))
        self.alone.append(1e6 * (cpu_seconds(agent) - before_alone) / requests)
        self.rate.append(requests / elapsed)

    def measure_download(self):
        pids = families(self.processes)
        before = cpu_seconds(pids)
        length = subprocess.run(["curl", "-sS", "-H", f"Host: {self.host}", "-o", "/dev/null", "-w", "%{size_download}", self.url + "file"],
                                capture_output=True, text=True, check=True).stdout
        if int(length) != GIBIBYTE:
            sys.exit(f"{self.name}: {length} bytes came of {GIBIBYTE}")
        # What the connection leaves behind belongs to it.
        time.sleep(0.3)
        self.down.append(1 / (cpu_seconds(pids) - before))


def certificate(folder):
    """An authority, and a certificate of it for localhost with its key as PKCS #12."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "peer-ca.key", "-out", "peer-ca.pem", "-days", "2", "-subj", "/CN=authority")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "peer.key", "-out", "peer.csr", "-subj", "/CN=localhost")
    write(f"{folder}/peer.ext", "subjectAltName=DNS:localhost\n")
    openssl("x509", "-req", "-in", "peer.csr", "-CA", "peer-ca.pem", "-CAkey", "peer-ca.key", "-CAcreateserial", "-days", "2", "-extfile", "peer.ext", "-out", "peer.pem")
    openssl("pkcs12", "-export", "-inkey", "peer.key", "-in", "peer.pem", "-certfile", "peer-ca.pem", "-passout", "pass:peer", "-out", "peer.p12",
            "-keypbe", "PBE-SHA1-3DES", "-certpbe", "PBE-SHA1-3DES", "-macalg", "sha1")


def rathole(run, origin, is_tls=True):
    path = program("rathole")
    if not path:
        return print("  passed over: rathole is not here")
    control, port = free_port(), free_port()
    common = '[{side}.services.web]\ntoken = "measured"\n{service}\n'
    if is_tls:
        certificate(run.folder)
        common = '[{side}.transport]\ntype = "tls"\n[{side}.transport.tls]\n{tls}\n' + common
    server = f'[server]\nbind_addr = "127.0.0.1:{control}"\n' + common.format(
        side="server", tls=f'pkcs12 = "{run.folder}/peer.p12"\npkcs12_password = "peer"', service=f'bind_addr = "127.0.0.1:{port}"')
    client = f'[client]\nremote_addr = "127.0.0.1:{control}"\n' + common.format(
        side="client", tls=f'trusted_root = "{run.folder}/peer-ca.pem"\nhostname = "localhost"', service=f'local_addr = "127.0.0.1:{origin}"')
    name = "tls" if is_tls else "plain"
    processes = [start(run, [path, "--server", write(f"{run.folder}/server-{name}.toml", server)])]
    wait_for(control)
    processes.append(start(run, [path, "--client", write(f"{run.folder}/client-{name}.toml", client)]))
    wait_for(port)
    return Rival("rathole, TLS" if is_tls else "rathole, plain", processes, port)


def bore(run, origin):
    path = program("bore")
    if not path:
        return print("  passed over: bore is not here")
    port = free_port()
    # Its control port cannot be chosen.
    processes = [start(run, [path, "server", "--min-port", "1024", "--bind-addr", "127.0.0.1"])]
    wait_for(7835)
    processes.append(start(run, [path, "local", str(origin), "--to", "127.0.0.1", "--port", str(port)]))
    wait_for(port)
    return Rival("bore, no TLS", processes, port)


def ssh_reverse(run, origin):
    sshd = next((path for path in ("/usr/sbin/sshd", shutil.which("sshd")) if path and os.access(path, os.X_OK)), None)
    if not sshd or not shutil.which("ssh"):
        return print("  passed over: OpenSSH is not here")
    folder = f"{run.folder}/ssh"
    os.mkdir(folder, 0o700)
    for key in ("host", "client"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/{key}"], check=True)
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    listen, port = free_port(), free_port()
    config = write(f"{folder}/sshd_config", f"""
ListenAddress 127.0.0.1:{listen}
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/client.pub
StrictModes no
UsePAM no
PermitRootLogin yes
""")
    processes = [start(run, [sshd, "-D", "-f", config])]
    wait_for(listen)
    processes.append(start(run, ["ssh", "-F", "none", "-N", "-p", str(listen), "-i", f"{folder}/client", "-o", "StrictHostKeyChecking=no",
                                 "-o", f"UserKnownHostsFile={folder}/known", "-o", "ExitOnForwardFailure=yes",
                                 "-R", f"127.0.0.1:{port}:127.0.0.1:{origin}", "127.0.0.1"]))
    wait_for(port)
    return Rival("ssh -R, OpenSSH", processes, port)


def serve(run, **settings):
    server = run.culvert(CULVERT_AGENTS__ADDR="127.0.0.1:0", **settings)
    return server, int(run.addresses["http"].rsplit(":", 1)[1])


def online(run, host, origin, *flags):
    """culvert's own agent."""
    process, url = agent(run, "http", "--url", f"http://{host}", *flags, str(origin))
    if not url.startswith("http://"):
        sys.exit("culvert's agent did not come online")
    return process


def agent(run, *arguments):
    """culvert's own agent and the URL of its endpoint."""
    token = run.api("POST", "/credentials", {})["token"]
    env = dict(os.environ, CULVERT_SERVER="localhost:" + run.addresses["agents"].rsplit(":", 1)[1], CULVERT_AUTHTOKEN=token,
               CULVERT_CA_FILE=f"{run.folder}/data/ca.pem")
    process = subprocess.Popen([*run.within, run.binary, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               env=env, cwd=run.folder)
    run.processes.append(process)
    return process, process.stdout.readline().strip()


def origin_of(run):
    origin = free_port()
    with open(f"{run.folder}/file", "wb") as f:
        f.truncate(GIBIBYTE)
    body = "x" * 1024
    run.nginx("origin", f"""server {{ listen 127.0.0.1:{origin} backlog=4096;
      location / {{ default_type text/plain; return 200 "{body}"; }} location = /file {{ root {run.folder}; sendfile on; }} }}""")
    wait_for(origin)
    return origin


def agents(run, rounds, seconds):
    origin = origin_of(run)
    server, port = serve(run)
    rivals = []
    for name, host, flags in [("culvert http", "own.culvert.localhost", []), ("the same, --inspect=false", "bare.culvert.localhost", ["--inspect=false"])]:
        rivals.append(Rival(name, [server, online(run, host, origin, *flags)], port, host))
    rivals += filter(None, (make(run, origin) for make in (rathole, bore, ssh_reverse)))
    for _ in range(rounds):
        for rival in rivals:
            rival.measure_requests(seconds)
    for _ in range(rounds):
        for rival in rivals:
            rival.measure_download()
    middle = {rival.name: tuple(statistics.median(v) for v in (rival.per_cpu, rival.rate, rival.down, rival.alone)) for rival in rivals}
    print("agents: 1 KiB response, 64 connections; then 1 GiB down; CPU of server and agent")
    for name, (per_cpu, rate, down, alone) in middle.items():
        print(f"  {name:26} {per_cpu:8.0f} requests per CPU-second, {rate:7.0f} per second, {down:6.3f} GiB per CPU-second; "
              f"the agent alone {alone:5.1f} µs a request")
    own = middle["culvert http"]
    for name, bars in [("rathole, TLS", (1.0, 1.0)), ("bore, no TLS", None), ("ssh -R, OpenSSH", (3.0, None))]:
        if name in middle:
            of = [a / b for a, b in zip(own, middle[name])]
            wanted = "" if not bars else f"; wanted {bars[0]} of requests" + (f", {bars[1]} of the download" if bars[1] else "")
            print(f"  of {name:16} {of[0]:5.2f} requests per CPU-second, {of[1]:5.2f} per second, {of[2]:5.2f} download{wanted}")


SDK = """
import asyncio, sys, ngrok
async def main(address, token, authority, host, origin):
    session = await (ngrok.SessionBuilder().server_addr(address).ca_cert(bytearray(open(authority, "rb").read())).authtoken(token).connect())
    listener = await session.http_endpoint().scheme("http").domain(host).listen_and_forward("http://127.0.0.1:" + origin)
    print(listener.url(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await session.close()
asyncio.run(main(*sys.argv[1:]))
"""


def latencies(url, host, count):
    """Milliseconds that requests one after another take on one connection."""
    times = []
    with socket.create_connection(("127.0.0.1", int(url.split(":")[2].rstrip("/")))) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        for _ in range(count):
            begin = time.perf_counter()
            s.sendall(request)
            got = b""
            while not got.endswith(b"x" * 1024):
                piece = s.recv(65536)
                if not piece:
                    sys.exit(f"{host} closed the connection: {got[:200]}")
                got += piece
            times.append(1000 * (time.perf_counter() - begin))
    return times


def latency(run, rounds, seconds):
    origin = origin_of(run)
    _, port = serve(run)
    ways = {"the service itself": (f"http://127.0.0.1:{origin}/", "origin")}
    online(run, "own.culvert.localhost", origin)
    ways["culvert http"] = (f"http://127.0.0.1:{port}/", "own.culvert.localhost")
    python = f"{ROOT}/target/python-clients/ngrok/bin/python"
    if os.access(python, os.X_OK):
        token = run.api("POST", "/credentials", {})["token"]
        address = "localhost:" + run.addresses["agents"].rsplit(":", 1)[1]
        process = subprocess.Popen([python, "-c", SDK, address, token, f"{run.folder}/data/ca.pem", "sdk.culvert.localhost", str(origin)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        run.processes.append(process)
        if not process.stdout.readline().startswith("http://"):
            sys.exit("the Python agent did not come online")
        ways["PyPI ngrok"] = (f"http://127.0.0.1:{port}/", "sdk.culvert.localhost")
    else:
        print("  passed over: scripts/python-clients makes the environment of the Python agent")
    times = {name: [] for name in ways}
    for _ in range(5 * rounds):
        for name, (url, host) in ways.items():
            times[name] += latencies(url, host, 200)
    base = statistics.median(times["the service itself"])
    print("latency: requests one after another on one connection, median")
    for name, values in times.items():
        middle = statistics.median(values)
        high = statistics.quantiles(values, n=100)[98]
        print(f"  {name:20} {middle:6.3f} ms, {middle - base:6.3f} ms added; 99 of 100 within {high:6.2f} ms")
    print("  wanted of the published agent: less than 1 ms added")


class Session:
    """An agent that does as little as one can: Auth, one endpoint, one heartbeat, and then nothing."""

    def __init__(self, number, token, host):
        self.number, self.token, self.host = number, token, host
        self.client_id = self.cookie = self.id = self.bind_token = ""
        self.writer = None
        # Sources are limited each, as behind real networks.
        self.source = f"127.{1 + number // 60000}.{number // 250 % 240}.{1 + number % 250}"

    async def connect(self, port, tls):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="localhost",
                                                                 local_addr=(self.source, 0), limit=4096)
        self.frame(0x12, 3, b"\xff\xff\xff\xff")
        self.frame(0x10, 3, b"beat")
        minutes = 10 * 60 * 10**9
        extra = {"AuthToken": self.token, "Version": "1", "UserAgent": "measure/1", "Cookie": self.cookie, "OS": "linux", "Arch": "x86_64",
                 "HeartbeatInterval": minutes, "HeartbeatTolerance": minutes}
        reply = await self.call(5, 0, {"Version": ["3"], "ClientId": self.client_id, "Extra": extra})
        self.client_id, self.cookie = reply["ClientId"], reply["Extra"]["Cookie"]
        if self.host:
            reply = await self.call(7, 1, {"Id": self.id, "Proto": "http", "Opts": {"Hostname": self.host}, "ForwardsTo": "measured",
                                           "Extra": {"Token": self.bind_token}})
            self.id, self.bind_token = reply["Id"], reply["Extra"]["Token"]

    def frame(self, flags, stream, payload):
        self.writer.write(struct.pack(">II", len(payload) << 8 | flags, stream) + payload)

    async def call(self, stream, kind, request):
        self.frame(0x12, stream, struct.pack(">I", kind) + json.dumps(request).encode())
        answer = b""
        while True:
            length, number = struct.unpack(">II", await self.reader.readexactly(8))
            payload = await self.reader.readexactly(length >> 8)
            if number == stream and length & 0xf0 == 0x10:
                answer += payload
                if length & 1:
                    break
        self.frame(0x11, stream, b"")
        reply = json.loads(answer)
        if reply.get("Error"):
            raise RuntimeError(reply["Error"])
        return reply

    def cut(self):
        self.writer.transport.abort()


class Crowd:
    """Many sessions of one credential with one server, whose limits are far."""

    def __init__(self, run):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        limits = ("SESSIONS_MAX", "SESSIONS_PER_ACCOUNT_MAX", "SESSIONS_PER_CREDENTIAL_MAX")
        self.server, self.edge = serve(run, **{f"CULVERT_LIMITS__{limit}": "20000" for limit in limits})
        self.port, self.failed = int(run.addresses["agents"].rsplit(":", 1)[1]), 0
        self.token = run.api("POST", "/credentials", {})["token"]
        self.tls = ssl.create_default_context(cafile=f"{run.folder}/data/ca.pem")

    def session(self, number, host=""):
        return Session(number, self.token, host)

    async def connect(self, sessions, at_once):
        """How long it took. Who is refused or cut off tries again, and is counted."""
        gate, begin = asyncio.Semaphore(at_once), time.perf_counter()

        async def one(session):
            async with gate:
                while True:
                    try:
                        return await session.connect(self.port, self.tls)
                    except (RuntimeError, OSError, EOFError):
                        self.failed += 1
                        if session.writer:
                            session.cut()
                        await asyncio.sleep(0.5)

        await asyncio.gather(*(one(session) for session in sessions))
        return time.perf_counter() - begin


def sessions(run, rounds, seconds):
    asyncio.run(idle_sessions(Crowd(run)))


async def idle_sessions(crowd, count=IDLE_SESSIONS):
    # The first ones pay for what all share.
    first = [crowd.session(number) for number in range(200)]
    await crowd.connect(first, 64)
    await asyncio.sleep(2)
    before = resident_kib(crowd.server.pid)
    rest = [crowd.session(number) for number in range(len(first), count)]
    took = await crowd.connect(rest, 64)
    await asyncio.sleep(5)
    after = resident_kib(crowd.server.pid)
    print(f"sessions: {count}, each with TLS and a heartbeat stream")
    print(f"  {(after - before) / len(rest):.1f} KiB each; wanted less than 40; {len(rest) / took:.0f} came online a second, {crowd.failed} at a second try")


def storm(run, rounds, seconds):
    crowd = Crowd(run)
    online(run, HOST, origin_of(run))
    asyncio.run(storm_of(crowd))


async def storm_of(crowd, count=STORM_SESSIONS):
    every = [crowd.session(number, f"s{number}.culvert.localhost") for number in range(count)]
    took = await crowd.connect(every, 64)
    print(f"storm: {count} sessions, each with TLS, a heartbeat stream and an endpoint; they came online in {took:.1f} s, {crowd.failed} at a second try")
    crowd.failed = 0
    flow = subprocess.Popen(["wrk", "-t1", "-c8", "-d30s", "-H", f"Host: {HOST}", f"http://127.0.0.1:{crowd.edge}/"], stdout=subprocess.PIPE, text=True)
    await asyncio.sleep(2)
    for session in every:
        session.cut()
    took = await crowd.connect(every, count)
    out, _ = await asyncio.to_thread(flow.communicate)
    failed = re.search(r".*(Non-2xx|Socket errors).*", out)
    requests = re.search(r"(\d+) requests in", out).group(1)
    slowest = re.search(r"Latency +\S+ +\S+ +(\S+)", out).group(1)
    print(f"  all were cut at once and were back in {took:.1f} s, {crowd.failed} at a second try; wanted less than 10")
    print(f"  meanwhile {requests} requests through another agent, slowest {slowest}, {failed.group(0).strip() if failed else 'none failed'}")
