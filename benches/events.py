"""What benches/measure knows of the kept events: searches of large logs, and what retention of traffic costs a request.

`events` fills the databases by SQL: 1,000,000 audit events about 10,000 objects, and 10,000,000 traffic events of 20 hours in 25,000 pieces.
Every 250th piece is real and has events of the endpoint that is searched for; the others stand for traffic of other endpoints, which no index
leads to. Counts are divided by `MEASURE_SCALE`. On PostgreSQL it needs `psql`.
"""
import json, os, sqlite3, statistics, subprocess, time, urllib.parse, zlib

from importlib.machinery import SourceFileLoader

SCALE = int(os.environ.get("MEASURE_SCALE", "1"))
N_AUDIT, N_OBJECTS, N_PIECES, N_OF_PIECE, N_REAL = 1_000_000 // SCALE, 10_000 // SCALE, 25_000 // SCALE, 400, 100
FILLER_BYTES = 48 << 10
HOUR = 3600 * 10**9
WANTED, OTHER = "ep_" + "1" * 27, "ep_" + "2" * 27
KIND = "http_request_complete.v0"
SETTINGS = {"CULVERT_EVENTS__TRAFFIC_RETENTION": "24h", "CULVERT_EVENTS__TRAFFIC_RETENTION_BYTES": str(1 << 40)}


def stamp(nanos):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanos // 10**9)) + f".{nanos // 10**6 % 1000:03}Z"


def piece(account, first_at, last_at, number):
    """A piece of the traffic log in the plain form of older versions (crates/culvert-target/src/batch.rs), each hundredth event of the wanted endpoint."""
    lines, entries = [], b""
    for n in range(N_OF_PIECE):
        at = first_at + (last_at - first_at) * n // N_OF_PIECE
        index = 0 if n % 100 == 50 else 1
        headers = {name: ["x" * 24] for name in ("Accept", "Accept-Encoding", "Host", "User-Agent", "X-Forwarded-For", "X-Request-Id")}
        line = json.dumps({
            "event_id": f"ev_{number:013}{n:014}", "event_type": KIND, "event_timestamp": stamp(at), "account_id": account, "principal": None,
            "object": {"conn": {"client_ip": "203.0.113.7", "server_name": f"e{index}.example.com", "server_port": 443},
                       "http": {"request": {"headers": headers, "method": "get", "url": {"path": f"/items/{n}", "raw": f"https://e{index}.example.com/items/{n}"}},
                                "response": {"body_length": 1024, "headers": headers, "status_code": 500 if n % 100 == 50 else 200}}},
        }, separators=(",", ":")).encode()
        lines.append(line)
        entries += len(line).to_bytes(4, "little") + index.to_bytes(2, "little")
    names = b"".join(len(name).to_bytes(2, "little") + name.encode() for name in (WANTED, OTHER))
    index = (2).to_bytes(2, "little") + names + len(lines).to_bytes(4, "little") + entries
    return b"".join(line + b"\n" for line in lines) + index + len(index).to_bytes(4, "little") + b"\x01"


AUDIT = """INSERT INTO outbox (seq, id, account, kind, happened_at, audience, body, hash, object_id, actor_id)
    SELECT n, 'ev_audit' || n, '{account}', 'vault_updated.v0', {now} - ({last} - n) * 1000000000, '[]',
      '{{"event_id":"ev_audit' || n || '","event_type":"vault_updated.v0","event_timestamp":"2026-01-01T00:00:00.000Z","account_id":"{account}",'
        || '"principal":{{"id":"usr_1","subject":"a@example.com","source":"API","credential":null}},"object":{{"id":"vault_' || (n % {objects})
        || '","uri":"https://api.example.com/vaults/vault","created_at":"2026-01-01T00:00:00Z","description":"' || '{text}' || '","metadata":"{text}","name":"v"}}}}',
      '{zeros}', 'vault_' || (n % {objects}), 'usr_1' FROM ({numbers}) AS numbers"""


def fill(run, account):
    now = time.time_ns()
    is_file = not run.database
    if is_file:
        state = sqlite3.connect(f"{run.folder}/data/state.db", isolation_level=None)
        events = sqlite3.connect(f"{run.folder}/data/events.db", isolation_level=None)
        events.execute("PRAGMA foreign_keys = ON")
        numbers = "WITH RECURSIVE c(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM c WHERE n < {last}) SELECT n FROM c"
        one = lambda database, sql: database.execute(sql).fetchone()
        do = lambda database, sql: database.execute(sql)
    else:
        psql = ["psql", "-qAt", "-v", "ON_ERROR_STOP=1", run.database]
        state, events = "culvert", "culvert_events"
        numbers = "SELECT n FROM generate_series({first}::bigint, {last}) AS n"
        def do(schema, sql):
            return subprocess.run(psql, input=f"SET search_path = {schema}; {sql};", text=True, check=True, stdout=subprocess.PIPE).stdout
        one = lambda schema, sql: [int(value) for value in do(schema, sql).strip().split("|")]
    first = one(state, "SELECT max(seq) FROM outbox")[0] + 1
    last = first + N_AUDIT - 1
    do(state, AUDIT.format(account=account, now=now, first=first, last=last, objects=N_OBJECTS, text="x" * 100, zeros="0" * 64,
                           numbers=numbers.format(first=first, last=last)))
    do(state, f"UPDATE ledger SET outbox = {last}, chained = {last}")
    do(events, f"UPDATE cursor SET value = {last} WHERE name = 'outbox'")

    begin, step = now - 20 * HOUR, 20 * HOUR // N_PIECES
    filler = f"zeroblob({FILLER_BYTES})" if is_file else f"decode(repeat(md5(n::text), {FILLER_BYTES // 16}), 'hex')"
    id_ = 1000
    do(events, f"""INSERT INTO traffic (id, first_at, last_at, bytes, crc, body, is_indexed)
        SELECT {id_} + n, {begin} + n * {step}, {begin} + (n + 1) * {step} - 1, {FILLER_BYTES}, 0, {filler}, 1
        FROM ({numbers.format(first=0, last=N_PIECES - 1)}) AS numbers""")
    do(events, f"""INSERT INTO traffic_endpoint (endpoint, piece) SELECT 'ep_other' || e.n, {id_} + p.n
        FROM ({numbers.format(first=0, last=N_PIECES - 1)}) AS p, ({numbers.format(first=0, last=9)}) AS e""")
    for real in range(N_REAL):
        number = real * (N_PIECES // N_REAL)
        at = begin + number * step
        body = piece(account, at, at + step - 1, number)
        if is_file:
            events.execute("UPDATE traffic SET body = ?, crc = ?, bytes = ? WHERE id = ?", (body, zlib.crc32(body), len(body), id_ + number))
            events.execute("INSERT INTO traffic_endpoint VALUES (?, ?)", (WANTED, id_ + number))
        else:
            do(events, f"UPDATE traffic SET body = decode('{body.hex()}', 'hex'), crc = {zlib.crc32(body)}, bytes = {len(body)} WHERE id = {id_ + number}; "
                       f"INSERT INTO traffic_endpoint VALUES ('{WANTED}', {id_ + number})")
    if is_file:
        state.close(); events.close()
    else:
        do(events, f"SELECT setval(pg_get_serial_sequence('traffic', 'id'), {id_ + N_PIECES})")
        do(events, "ANALYZE"); do(state, "ANALYZE")
    return now, begin


def events(run, rounds, seconds):
    server = run.culvert(**SETTINGS)
    account = run.api("GET", "/self")["account"]["id"]
    server.terminate(); server.wait(60); run.processes.remove(server)
    start = time.perf_counter()
    now, begin = fill(run, account)
    print(f"events: {N_AUDIT} audit events about {N_OBJECTS} objects, {N_PIECES * N_OF_PIECE} traffic events of 20 hours, filled in {time.perf_counter() - start:.0f} s")
    run.culvert(**SETTINGS)
    hour = {"from": stamp(begin + 10 * HOUR), "to": stamp(begin + 11 * HOUR)}
    for name, query in [
        ("audit: an object", {"object_id": f"vault_{N_OBJECTS // 2}"}),
        ("audit: an actor", {"actor_id": "usr_1"}),
        ("audit: a type, oldest", {"type": "vault_updated.v0", "order": "oldest"}),
        ("audit: an object, filter", {"object_id": f"vault_{N_OBJECTS // 2}", "filter": 'ev.name == "v"'}),
        ("traffic: an endpoint", {"object_id": WANTED}),
        ("traffic: endpoint and hour", {"object_id": WANTED, "type": KIND, **hour}),
        ("… and a filter", {"object_id": WANTED, "type": KIND, "filter": "ev.http.response.status_code == 500", **hour}),
    ]:
        path = "/events?" + urllib.parse.urlencode(query)
        times, found = [], 0
        for _ in range(10 * rounds):
            start = time.perf_counter(); page = run.api("GET", path); times.append(time.perf_counter() - start)
            found = len(page["events"])
        print(f"  {name:28} {found:4} events, {1000 * statistics.median(times):8.2f} ms, slowest {1000 * max(times):8.2f} ms")


def retention(run, rounds, seconds):
    """Requests per CPU-second with and without retention of traffic, without a subscription."""
    measure = SourceFileLoader("measure", f"{os.path.dirname(os.path.abspath(__file__))}/measure").load_module()
    origin = measure.free_port()
    body = "x" * 1024
    run.nginx("origin", f'server {{ listen 127.0.0.1:{origin} backlog=4096; location / {{ default_type text/plain; return 200 "{body}"; }} }}')
    measure.wait_for(origin)
    figures = {"0s": [], "24h": []}
    for _ in range(rounds):
        for kept in figures:
            server = run.culvert(CULVERT_EVENTS__TRAFFIC_RETENTION=kept)
            try:
                run.api("POST", "/endpoints", {"url": "http://bench.culvert.localhost", "upstream_url": f"http://127.0.0.1:{origin}"})
            except OSError:
                pass  # It is there since the first round.
            port = int(run.addresses["http"].rsplit(":", 1)[1])
            url, host = f"http://127.0.0.1:{port}/", ["Host: bench.culvert.localhost"]
            pids = measure.family(server.pid)
            measure.wrk(url, 1, headers=host)
            time.sleep(1.5)
            before = measure.cpu_seconds(pids)
            requests, elapsed = measure.wrk(url, seconds, headers=host)
            # What waits is written for these requests too.
            time.sleep(1.5)
            figures[kept].append((requests / (measure.cpu_seconds(pids) - before), requests / elapsed))
            server.terminate(); server.wait(60); run.processes.remove(server)
    print("retention: 1 KiB response, 64 keep-alive connections")
    for kept, values in figures.items():
        per_cpu, rate = (statistics.median(v[n] for v in values) for n in (0, 1))
        print(f"  {kept:4} {per_cpu:9.0f} requests per CPU-second, {rate:7.0f} per second")
    off, on = (statistics.median(v[0] for v in figures[kept]) for kept in ("0s", "24h"))
    print(f"  cost of retention: {100 * (off / on - 1):.0f} % more CPU per request")
