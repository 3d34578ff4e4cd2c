"""The published Python agent, unmodified, against a culvert that is given in the environment.

CULVERT_API_URL, CULVERT_API_KEY   the management API
CULVERT_AGENTS                     host:port of the ingress of agents
CULVERT_CA                         file with the authority of its certificate
CULVERT_HTTP                       host:port of the edge, plain HTTP
"""

import asyncio
import http.client
import json
import os
import socketserver
import threading
import unittest
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import ngrok

HOST = "python.culvert.localhost"


def pattern(length):
    return bytes((at * 31 + at // 977) & 255 for at in range(length))


class Service(BaseHTTPRequestHandler):
    """GET answers as many bytes as its path says, POST the length and sum of what came."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(pattern(int(self.path[1:])))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.answer(json.dumps([len(body), sum(body)]).encode())

    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Echoes(socketserver.ThreadingTCPServer):
    daemon_threads = True


def api(method, path, body=None):
    request = urllib.request.Request(
        os.environ["CULVERT_API_URL"] + path,
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={
            "authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def ask(method, path, body=None):
    edge = http.client.HTTPConnection(os.environ["CULVERT_HTTP"], timeout=60)
    try:
        edge.request(method, path, body=body, headers={"host": HOST})
        answer = edge.getresponse()
        return answer.status, answer.read()
    finally:
        edge.close()


def served(server):
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host, port = server.server_address
    return f"{host}:{port}"


class Road:
    """A way to the ingress that can be cut."""

    async def __aenter__(self):
        self.travelled = set()
        self.server = await asyncio.start_server(self.travel, "127.0.0.1", 0)
        self.address = f"localhost:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.server.close()
        self.cut()

    async def travel(self, reader, writer):
        host, _, port = os.environ["CULVERT_AGENTS"].rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self.travelled |= {writer, far_writer}
        await asyncio.gather(self.copy(reader, far_writer), self.copy(far_reader, writer))

    async def copy(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    def cut(self):
        for writer in self.travelled:
            writer.transport.abort()
        self.travelled = set()


async def connect(token, address=None):
    with open(os.environ["CULVERT_CA"], "rb") as file:
        authority = bytearray(file.read())
    address = address or os.environ["CULVERT_AGENTS"]
    builder = ngrok.SessionBuilder().server_addr(address).ca_cert(authority)
    if token:
        builder = builder.authtoken(token)
    return await builder.connect()


async def until(what, condition):
    for _ in range(600):
        if await asyncio.to_thread(condition):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("waited in vain: " + what)


class Agent(unittest.IsolatedAsyncioTestCase):
    def credential(self, acl=()):
        return api("POST", "/credentials", {"acl": list(acl)})["token"]

    async def test_http(self):
        """5 MB down, 4 MB up, forty at once, a stopped connection, a clean end."""
        service = ThreadingHTTPServer(("127.0.0.1", 0), Service)
        self.addCleanup(service.shutdown)
        token = self.credential()
        session = await connect(token)
        endpoint = session.http_endpoint().scheme("http").domain(HOST)
        listener = await endpoint.listen_and_forward("http://" + served(service))
        self.assertEqual(listener.url(), "http://" + HOST)
        down = await asyncio.to_thread(ask, "GET", "/5000000")
        self.assertEqual(down, (200, pattern(5_000_000)))
        body = pattern(4_000_000)
        status, text = await asyncio.to_thread(ask, "POST", "/", body)
        self.assertEqual((status, json.loads(text)), (200, [len(body), sum(body)]))
        small = pattern(20_000)
        with ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(lambda _: ask("GET", "/20000"), range(40)))
        self.assertEqual(answers, [(200, small)] * 40)
        await listener.close()
        await until("the endpoint is gone", lambda: ask("GET", "/1")[0] == 404)
        await session.close()

    async def test_cut(self):
        """The network fails; the agent comes back as who it was, with the URL that it had."""
        service = ThreadingHTTPServer(("127.0.0.1", 0), Service)
        self.addCleanup(service.shutdown)
        token = self.credential()
        async with Road() as road:
            session = await connect(token, road.address)
            endpoint = session.http_endpoint().scheme("http").domain(HOST)
            listener = await endpoint.listen_and_forward("http://" + served(service))
            before = api("GET", "/tunnel_sessions")
            road.cut()
            await until("the agent is back", lambda: ask("GET", "/10") == (200, pattern(10)))
            self.assertEqual(listener.url(), "http://" + HOST)
            self.assertEqual(api("GET", "/tunnel_sessions"), before)
            await listener.close()
            await session.close()

    async def test_tcp(self):
        echo = Echoes(("127.0.0.1", 0), Echo)
        self.addCleanup(echo.shutdown)
        session = await connect(self.credential())
        listener = await session.tcp_endpoint().listen_and_forward("tcp://" + served(echo))
        port = int(listener.url().rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = pattern(4_000_000)

        async def write():
            writer.write(sent)
            await writer.drain()

        back, _ = await asyncio.gather(reader.readexactly(len(sent)), write())
        self.assertEqual(back, sent)
        writer.close()
        await listener.close()
        await session.close()

    async def test_refused(self):
        for token, code in [("", "ERR_NGROK_4018"), ("wrong", "ERR_NGROK_105")]:
            with self.assertRaises(ValueError) as refused:
                await connect(token)
            self.assertEqual(refused.exception.args[2], code)
        session = await connect(self.credential(["bind:only.culvert.localhost"]))
        with self.assertRaises(ValueError) as refused:
            await session.http_endpoint().domain(HOST).listen()
        self.assertEqual(refused.exception.args[2], "ERR_NGROK_316")
        await session.close()


if __name__ == "__main__":
    unittest.main()
