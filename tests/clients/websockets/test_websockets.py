"""WebSockets through the edge: the library `websockets` as client and as upstream, and `wsproto` in a stream of
HTTP/2 (RFC 8441).

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTP, CULVERT_HTTPS       where the edge takes plain HTTP and TLS: address and port
CULVERT_CA                        file with the authority of its certificates
"""

import asyncio
import json
import logging
import os
import socket
import ssl
import unittest
import urllib.request

import h2.config
import h2.connection
import h2.events
import h2.settings
import websockets
import wsproto.connection
import wsproto.events
import wsproto.extensions
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

HOST = "websockets.culvert.localhost"
# Connections that end by a code are no failure of the upstream.
logging.getLogger("websockets.server").setLevel(logging.CRITICAL)
# Lengths at which frames change their form, and some that no buffer holds.
LENGTHS = [0, 1, 125, 126, 65_535, 65_536, (1 << 20) + 1]
TLS = ssl.create_default_context(cafile=os.environ["CULVERT_CA"])


def address(name):
    host, port = os.environ[name].rsplit(":", 1)
    return host, int(port)


async def upstream(connection):
    """Does what the path says; echoes without."""
    path = connection.request.path
    if path == "/close":
        await connection.close(4001, "enough")
    elif path == "/break":
        connection.transport.abort()
    elif path == "/ping":
        # Waits for the pong of the client.
        latency = await (await connection.ping(b"from the upstream"))
        await connection.send(str(latency >= 0))
    elif path == "/push":
        for number in range(2_000):
            await connection.send(str(number))
    else:
        async for message in connection:
            await connection.send(message)


def refusal(connection, request):
    if request.path == "/forbidden":
        return connection.respond(403, "no\n")
    return None


def preferred(connection, offered):
    return next((name for name in ("chat.v2", "chat.v1") if name in offered), None)


class WebSockets(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        # The class sets it, and it slows the messages down.
        asyncio.get_running_loop().set_debug(False)
        # No limit, as a proxy should not need one.
        self.upstream = await serve(
            upstream, "127.0.0.1", 0, max_size=None, process_request=refusal,
            select_subprotocol=preferred, ping_interval=None,
        )
        port = self.upstream.sockets[0].getsockname()[1]
        for scheme in ("http", "https"):
            url = f"{scheme}://{self.host()}"
            request = urllib.request.Request(
                os.environ["CULVERT_API_URL"] + "/endpoints",
                data=json.dumps({"url": url, "upstream_url": f"http://127.0.0.1:{port}"}).encode(),
                headers={
                    "Authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
                    "Content-Type": "application/json",
                },
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.assertEqual(answer.status, 201)
        for scheme in ("ws", "wss"):
            while True:
                try:
                    async with self.connect(scheme):
                        break
                except websockets.exceptions.InvalidStatus as error:
                    self.assertEqual(error.response.status_code, 404)
                    await asyncio.sleep(0.02)

    async def asyncTearDown(self):
        self.upstream.close()
        await self.upstream.wait_closed()

    def host(self):
        return f"{self._testMethodName.replace('_', '-')}.{HOST}"

    def connect(self, scheme, path="/", **options):
        host, port = address("CULVERT_HTTPS" if scheme == "wss" else "CULVERT_HTTP")
        options.setdefault("ping_interval", None)
        return connect(
            f"{scheme}://{self.host()}{path}", host=host, port=port, max_size=None, proxy=None,
            ssl=TLS if scheme == "wss" else None, **options,
        )

    async def test_messages(self):
        checks = 0
        for scheme in ("ws", "wss"):
            for compression in (None, "deflate"):
                async with self.connect(scheme, compression=compression) as connection:
                    names = [extension.name for extension in connection.protocol.extensions]
                    self.assertEqual(names, ["permessage-deflate"] if compression else [])
                    for length in LENGTHS:
                        data = os.urandom(length)
                        await connection.send(data)
                        self.assertEqual(await connection.recv(), data)
                        text = "é" * (length // 2)
                        await connection.send(text)
                        self.assertEqual(await connection.recv(), text)
                        checks += 2
                    # In fragments, each its own frame, with a ping between them.
                    async def parts():
                        for part in ("ein ", "", "Satz ", "in ", "Stücken"):
                            yield part
                            await connection.ping()
                    await connection.send(parts())
                    self.assertEqual(await connection.recv(), "ein Satz in Stücken")
                    self.assertGreaterEqual(await (await connection.ping(b"from the client")), 0)
                    checks += 2
        print(f"websockets: {checks} messages, fragments and pings, plain, with TLS and with compression")

    async def test_many_at_once(self):
        async def one(number):
            async with self.connect("wss" if number % 2 else "ws") as connection:
                for turn in range(50):
                    await connection.send(f"{number} {turn}")
                    self.assertEqual(await connection.recv(), f"{number} {turn}")

        await asyncio.gather(*(one(number) for number in range(40)))

    async def test_upstream_first(self):
        for scheme in ("ws", "wss"):
            async with self.connect(scheme, "/push") as connection:
                got = [message async for message in connection]
                self.assertEqual(got, [str(number) for number in range(2_000)])
                self.assertEqual(connection.close_code, 1000)
            async with self.connect(scheme, "/ping") as connection:
                self.assertEqual(await connection.recv(), "True")

    async def test_handshakes(self):
        for scheme in ("ws", "wss"):
            for offered, chosen in ((["chat.v1", "chat.v2"], "chat.v2"), (["chat.v1"], "chat.v1"), (["other"], None)):
                async with self.connect(scheme, subprotocols=offered) as connection:
                    self.assertEqual(connection.subprotocol, chosen)
            with self.assertRaises(websockets.exceptions.InvalidStatus) as refused:
                await self.connect(scheme, "/forbidden")
            self.assertEqual(refused.exception.response.status_code, 403)
            self.assertEqual(refused.exception.response.body, b"no\n")
            window = ClientPerMessageDeflateFactory(server_max_window_bits=9, client_max_window_bits=9)
            async with self.connect(scheme, compression=None, extensions=[window]) as connection:
                self.assertIn("server_max_window_bits=9", connection.response.headers["Sec-WebSocket-Extensions"])
                await connection.send("again and again " * 1000)
                self.assertEqual(await connection.recv(), "again and again " * 1000)

    async def test_ends(self):
        for scheme in ("ws", "wss"):
            async with self.connect(scheme, "/close") as connection:
                with self.assertRaises(websockets.exceptions.ConnectionClosedError) as closed:
                    await connection.recv()
                self.assertEqual((closed.exception.rcvd.code, closed.exception.rcvd.reason), (4001, "enough"))
            async with self.connect(scheme, "/break") as connection:
                with self.assertRaises(websockets.exceptions.ConnectionClosedError) as closed:
                    await connection.recv()
                self.assertIsNone(closed.exception.rcvd, "the edge must not add a close frame")
            connection = await self.connect(scheme)
            await connection.close(3000, "client")
            self.assertEqual(connection.close_code, 3000)

    async def test_http2(self):
        await asyncio.to_thread(self.http2)

    def http2(self):
        tls = ssl.create_default_context(cafile=os.environ["CULVERT_CA"])
        tls.set_alpn_protocols(["h2"])
        with tls.wrap_socket(socket.create_connection(address("CULVERT_HTTPS")), server_hostname=self.host()) as stream:
            stream.settimeout(60)
            http2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
            http2.initiate_connection()
            arrived = []

            def pump(wanted):
                """Reads until an event of a kind has arrived, and returns it."""
                while True:
                    for at, event in enumerate(arrived):
                        if isinstance(event, wanted):
                            return arrived.pop(at)
                    stream.sendall(http2.data_to_send())
                    data = stream.recv(65_536)
                    self.assertTrue(data, arrived)
                    for event in http2.receive_data(data):
                        if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                            http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                        arrived.append(event)

            pump(h2.events.RemoteSettingsChanged)
            self.assertEqual(http2.remote_settings[h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL], 1)
            of = http2.get_next_available_stream_id()
            deflate = wsproto.extensions.PerMessageDeflate()
            http2.send_headers(of, [
                (":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https"), (":path", "/"),
                (":authority", self.host()), ("sec-websocket-version", "13"),
                ("sec-websocket-protocol", "chat.v1"),
                ("sec-websocket-extensions", f"{deflate.name}; {deflate.offer()}"),
            ])
            head = dict(pump(h2.events.ResponseReceived).headers)
            self.assertEqual((head[":status"], head["sec-websocket-protocol"]), ("200", "chat.v1"))
            self.assertNotIn("sec-websocket-accept", head)
            deflate.finalize(head["sec-websocket-extensions"])
            socket_ = wsproto.connection.Connection(wsproto.ConnectionType.CLIENT, [deflate])

            def send(event):
                data = socket_.send(event)
                while data:
                    room = min(http2.local_flow_control_window(of), http2.max_outbound_frame_size)
                    if room == 0:
                        pump(h2.events.WindowUpdated)
                        continue
                    http2.send_data(of, data[:room])
                    data = data[room:]
                stream.sendall(http2.data_to_send())

            def receive():
                message = b""
                while True:
                    for event in socket_.events():
                        if isinstance(event, (wsproto.events.TextMessage, wsproto.events.BytesMessage)):
                            data = event.data
                            message += data.encode() if isinstance(data, str) else bytes(data)
                            if event.message_finished:
                                return message
                        else:
                            return event
                    socket_.receive_data(pump(h2.events.DataReceived).data)

            for length in LENGTHS:
                data = os.urandom(length)
                send(wsproto.events.BytesMessage(data))
                self.assertEqual(receive(), data)
            send(wsproto.events.Ping(b"h2"))
            pong = receive()
            self.assertEqual((type(pong), bytes(pong.payload)), (wsproto.events.Pong, b"h2"))
            send(wsproto.events.CloseConnection(1000, "done"))
            closed = receive()
            self.assertEqual((type(closed), closed.code), (wsproto.events.CloseConnection, 1000))
            pump(h2.events.StreamEnded)
        print(f"wsproto over HTTP/2: {len(LENGTHS)} messages with compression, a ping and a close")


if __name__ == "__main__":
    unittest.main()
