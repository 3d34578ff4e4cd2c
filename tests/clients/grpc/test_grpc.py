"""gRPC through the edge with grpcio, as client and as upstream: unary, client, server and bidirectional
calls, each on a connection of its own, all at once.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTPS                     where the edge takes TLS: address and port
CULVERT_CA                        file with the authority of its certificates
CULVERT_GRPC_SECONDS              how long each kind of call runs; 20 without
CULVERT_GRPC_RATE                 messages a second of each kind; 1000 without

Messages are plain bytes, so no generated code is needed.
"""

import json
import os
import threading
import time
import unittest
import urllib.request
from concurrent import futures

import grpc

HOST = "grpcio.culvert.localhost"
SECONDS = float(os.environ.get("CULVERT_GRPC_SECONDS", "20"))
RATE = float(os.environ.get("CULVERT_GRPC_RATE", "1000"))
# Small messages cost the most frames a byte.
MESSAGE = b"m" * 20


def paced():
    """Yields at the wanted rate for the wanted time."""
    start = time.monotonic()
    turn = 0
    while (now := time.monotonic()) < start + SECONDS:
        if (ahead := start + turn / RATE - now) > 0:
            time.sleep(ahead)
        turn += 1
        yield turn


class Upstream(grpc.GenericRpcHandler):
    def service(self, details):
        return {
            "/x/Unary": grpc.unary_unary_rpc_method_handler(lambda message, _: message),
            "/x/Client": grpc.stream_unary_rpc_method_handler(
                lambda messages, _: str(sum(1 for _ in messages)).encode()
            ),
            "/x/Server": grpc.unary_stream_rpc_method_handler(
                lambda message, _: (message for _ in paced())
            ),
            "/x/Bidi": grpc.stream_stream_rpc_method_handler(lambda messages, _: messages),
        }.get(details.method)


def unary(channel):
    call = channel.unary_unary("/x/Unary")
    for turn in paced():
        call(MESSAGE, timeout=60)
        yield turn


def client(channel):
    sent = 0

    def messages():
        nonlocal sent
        for sent in paced():
            yield MESSAGE

    arrived = int(channel.stream_unary("/x/Client")(messages(), timeout=SECONDS + 60))
    yield arrived
    assert arrived == sent, f"{sent} were sent and {arrived} arrived"


def server(channel):
    for turn, _ in enumerate(channel.unary_stream("/x/Server")(MESSAGE, timeout=SECONDS + 60), 1):
        yield turn


def bidirectional(channel):
    echoed = threading.Semaphore(1)

    def messages():
        for _ in paced():
            echoed.acquire()
            yield MESSAGE

    answers = channel.stream_stream("/x/Bidi")(messages(), timeout=SECONDS + 60)
    for turn, _ in enumerate(answers, 1):
        echoed.release()
        yield turn


class Grpc(unittest.TestCase):
    def test_calls_run_on(self):
        upstream = grpc.server(futures.ThreadPoolExecutor(16))
        upstream.add_generic_rpc_handlers((Upstream(),))
        port = upstream.add_insecure_port("127.0.0.1:0")
        upstream.start()
        self.addCleanup(upstream.stop, None)
        self.endpoint(port)
        with open(os.environ["CULVERT_CA"], "rb") as file:
            credentials = grpc.ssl_channel_credentials(file.read())
        failed, threads = [], []
        for call in (unary, client, server, bidirectional):
            channel = grpc.secure_channel(
                os.environ["CULVERT_HTTPS"],
                credentials,
                # A connection for each kind, and no second one when the first breaks.
                options=[
                    ("grpc.ssl_target_name_override", HOST),
                    ("grpc.use_local_subchannel_pool", 1),
                    ("grpc.enable_retries", 0),
                ],
            )
            self.addCleanup(channel.close)
            self.live(channel)
            thread = threading.Thread(target=self.run_call, args=(call, channel, failed))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])

    def live(self, channel):
        """Waits until the edge knows the endpoint."""
        while True:
            try:
                return channel.unary_unary("/x/Unary")(MESSAGE, timeout=60)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNIMPLEMENTED:
                    raise
                time.sleep(0.02)

    def run_call(self, call, channel, failed):
        count, start, why = 0, time.monotonic(), None
        try:
            for count in call(channel):
                pass
        except (grpc.RpcError, AssertionError) as error:
            why = str(error)
        took = time.monotonic() - start
        print(f"{call.__name__}: {count} messages in {took:.1f} s", flush=True)
        if why is None and took < SECONDS:
            why = "it ended early"
        if why is not None:
            failed.append(f"{call.__name__}: after {count} messages and {took:.1f} s: {why}")

    def endpoint(self, port):
        request = urllib.request.Request(
            os.environ["CULVERT_API_URL"] + "/endpoints",
            data=json.dumps(
                {
                    "url": f"https://{HOST}",
                    "upstream_url": f"http://127.0.0.1:{port}",
                    "upstream_protocol": "http2",
                }
            ).encode(),
            headers={
                "Authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.assertEqual(answer.status, 201)


if __name__ == "__main__":
    unittest.main()
