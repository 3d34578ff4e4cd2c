"""What benches/measure knows of many clients of one agent: those that stall beside one that does not, and those that come and go.

Their service is nginx. This file, run as a program, is the clients that stall, and a service that reads nothing.
The published agent is PyPI's; `scripts/python-clients` makes its environment. Without it, it is passed over with a line.
"""
import asyncio, os, re, socket, statistics, subprocess, sys, threading, time

STALLED, FILE_BYTES = 300, 8 << 20
OWN, SDK_HOST, CLOUD = "own.culvert.localhost", "sdk.culvert.localhost", "cloud.culvert.localhost"
# New connections a second and clients that stay, of each agent.
WANTED = {OWN: (7_000, 10_000), SDK_HOST: (2_000, 5_000)}


async def reads_nothing(port):
    """A service that takes connections and no byte of them."""
    async def serve(reader, writer):
        writer.transport.pause_reading()
        await asyncio.sleep(3600)

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


async def crowd_of(how, port, host):
    """Clients that read nothing, that read 100 bytes a second, or whose upload nobody reads. They stay until the input ends."""
    begun = 0

    async def client():
        nonlocal begun
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        s.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(s, ("127.0.0.1", port))
        try:
            if how == "uploads":
                await loop.sock_sendall(s, f"POST /hold HTTP/1.1\r\nHost: {host}\r\nContent-Length: {FILE_BYTES}\r\n\r\n".encode())
                begun += 1
                await loop.sock_sendall(s, bytes(FILE_BYTES))
            else:
                await loop.sock_sendall(s, f"GET /file HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                begun += 1
            while True:
                await asyncio.sleep(1)
                if how == "slow" and not await loop.sock_recv(s, 100):
                    break
        except OSError:
            pass

    clients = [asyncio.create_task(client()) for _ in range(STALLED)]
    while begun < STALLED:
        await asyncio.sleep(0.01)
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in clients:
        task.cancel()


if __name__ == "__main__":
    if sys.argv[1] == "reads-nothing":
        asyncio.run(reads_nothing(int(sys.argv[2])))
    else:
        asyncio.run(crowd_of(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
    sys.exit()

import agents
from __main__ import ROOT, cpu_seconds, free_port, resident_kib, wait_for


class Good(threading.Thread):
    """A client that asks for 1 KiB again and again, on one connection, until it is told to stop."""

    def __init__(self, port, host):
        super().__init__(daemon=True)
        self.port, self.host, self.times, self.failed, self.stopping = port, host, [], 0, False

    def run(self):
        request = f"GET / HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode()
        while not self.stopping:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 30) as s:
                    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    while not self.stopping:
                        begin, got = time.perf_counter(), b""
                        s.sendall(request)
                        while not got.endswith(b"x" * 1024):
                            piece = s.recv(65536)
                            if not piece or not got and not piece.startswith(b"HTTP/1.1 200"):
                                raise OSError(piece[:100])
                            got += piece
                        self.times.append(1000 * (time.perf_counter() - begin))
                        time.sleep(0.002)
            except OSError as error:
                self.failed += 1
                print("  failed:", error)
                time.sleep(0.1)

    def stop(self):
        self.stopping = True
        self.join()
        return self


def both_agents(run, origin):
    """The server, the port of its edge, and our agent and PyPI's by host."""
    server, port = agents.serve(run)
    processes = {OWN: agents.online(run, OWN, origin)}
    python = f"{ROOT}/target/python-clients/ngrok/bin/python"
    if not os.access(python, os.X_OK):
        print("  passed over: scripts/python-clients makes the environment of the Python agent")
        return server, port, processes
    token = run.api("POST", "/credentials", {})["token"]
    address = "localhost:" + run.addresses["agents"].rsplit(":", 1)[1]
    process = subprocess.Popen([python, "-c", agents.SDK, address, token, f"{run.folder}/data/ca.pem", SDK_HOST, str(origin)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    run.processes.append(process)
    if not process.stdout.readline().startswith("http://"):
        sys.exit("the Python agent did not come online")
    processes[SDK_HOST] = process
    return server, port, processes


def stalling_origin(run):
    """nginx with 1 KiB at `/`, 8 MiB at `/file`, and `/hold`, whose requests are never read."""
    origin, hold = free_port(), free_port()
    run.processes.append(subprocess.Popen([sys.executable, __file__, "reads-nothing", str(hold)]))
    with open(f"{run.folder}/file", "wb") as f:
        f.truncate(FILE_BYTES)
    body = "x" * 1024
    run.nginx("origin", f"""server {{ listen 127.0.0.1:{origin} backlog=4096; location / {{ default_type text/plain; return 200 "{body}"; }}
      location = /file {{ root {run.folder}; sendfile on; sendfile_max_chunk 128k; }}
      location = /hold {{ proxy_pass http://127.0.0.1:{hold}; proxy_request_buffering off; client_max_body_size 0; }} }}""")
    wait_for(origin)
    wait_for(hold)
    return origin


def stalled(run, rounds, seconds):
    origin = stalling_origin(run)
    _, port, processes = both_agents(run, origin)
    print(f"stalled: requests for 1 KiB one after another beside {STALLED} clients that ask for 8 MiB, milliseconds")
    for host, process in processes.items():
        name = {OWN: "culvert http", SDK_HOST: "PyPI ngrok"}[host]
        for how in ("alone", "stalled", "slow", "uploads"):
            good = Good(port, host)
            before = resident_kib(process.pid)
            good.start()
            time.sleep(1)
            crowd = None
            if how != "alone":
                crowd = subprocess.Popen([sys.executable, __file__, how, str(port), host], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                crowd.stdout.readline()
            time.sleep(seconds)
            during = resident_kib(process.pid)
            good.stop()
            if crowd:
                crowd.stdin.close()
                crowd.wait()
                time.sleep(5)
            middle, most = statistics.median(good.times), max(good.times)
            high = statistics.quantiles(good.times, n=1000)[998]
            print(f"  {name:13} {how:8} median {middle:7.2f}, 999 of 1000 within {high:8.2f}, all within {most:8.2f}; "
                  f"{len(good.times)} answered, {good.failed} failed; the agent held {before >> 10} MiB, then {during >> 10}, "
                  f"after it {resident_kib(process.pid) >> 10}", flush=True)


def wrk(url, host, connections, seconds, *headers):
    """Answers a second, and what was refused."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s", "-H", f"Host: {host}"]
    for header in headers:
        command += ["-H", header]
    out = subprocess.run(command + [url], capture_output=True, text=True, check=True).stdout
    rate = float(re.search(r"Requests/sec: +([\d.]+)", out).group(1))
    refused = re.search(r".*Non-2xx.*", out)
    errors = re.search(r"Socket errors:(.*)", out)
    told = [found.group(0).strip() for found in (refused, errors) if found]
    return rate, "; ".join(told) or "none refused"


def crowds(run, rounds, seconds):
    origin = agents.origin_of(run)
    server, port, processes = both_agents(run, origin)
    run.api("POST", "/endpoints", {"url": f"http://{CLOUD}", "upstream_url": f"http://127.0.0.1:{origin}"})
    url = f"http://127.0.0.1:{port}/"
    print("crowds: clients of one agent, 1 KiB each; a new connection for each request, then clients that stay")
    for host in (CLOUD, *processes):
        name = {OWN: "culvert http", SDK_HOST: "PyPI ngrok", CLOUD: "edge, no agent"}[host]
        new, stay = WANTED.get(host, WANTED[OWN])
        wanted = lambda count, text: f"; wanted {count} {text}" if host in WANTED else ""
        agent = [processes[host].pid] if host in processes else []
        for _ in range(rounds):
            before = cpu_seconds([server.pid]), cpu_seconds(agent)
            rate, refused = wrk(url, host, 200, seconds, "Connection: close")
            edge_cpu, agent_cpu = cpu_seconds([server.pid]) - before[0], cpu_seconds(agent) - before[1]
            print(f"  {name:15} {rate:6.0f} new connections a second{wanted(new, 'a second')}; {refused}; "
                  f"cores: edge {edge_cpu / seconds:.2f}, agent {agent_cpu / seconds:.2f}", flush=True)
            rate, refused = wrk(url, host, stay, seconds)
            print(f"  {name:15} {stay} clients that stay, {rate:6.0f} requests a second; {refused}", flush=True)
