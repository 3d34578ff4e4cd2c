"""Sends requests to 127.0.0.1:8080 until standard input ends, and prints how many were answered.

Half of the clients keep their connections as long as the answers allow it; the others open one for each request.
Prints a line after every hundred answers, and exits with 1 at the first request that is not answered with 200.
"""

import socket
import sys
import threading

ADDRESS = ("127.0.0.1", 8080)
CLIENTS = 6
ASK = b"GET / HTTP/1.1\r\nhost: app.culvert.localhost\r\n\r\n"

answers = 0
lock = threading.Lock()
is_over = threading.Event()
lost = []


def ask(stream):
    """One exchange. Returns whether the connection stays open."""
    stream.sendall(ASK)
    got = b""
    while b"\r\n\r\n" not in got:
        more = stream.recv(65536)
        if not more:
            raise ConnectionError("closed without an answer")
        got += more
    head, _, body = got.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:])
    while len(body) < int(fields.get("content-length", 0)):
        more = stream.recv(65536)
        if not more:
            raise ConnectionError("closed in the middle of an answer")
        body += more
    if lines[0].split(" ")[1] != "200":
        raise ConnectionError(lines[0])
    return fields.get("connection") != "close"


def client(keeps):
    global answers
    stream = None
    try:
        while not is_over.is_set():
            if stream is None:
                stream = socket.create_connection(ADDRESS, timeout=120)
            stays = ask(stream)
            if not (keeps and stays):
                stream.close()
                stream = None
            with lock:
                answers += 1
                if answers % 100 == 0:
                    print(answers, flush=True)
    except Exception as error:
        lost.append(f"{'kept' if keeps else 'new'} connection: {error!r}")
        is_over.set()
        print("lost", flush=True)


threads = [threading.Thread(target=client, args=(number % 2 == 0,)) for number in range(CLIENTS)]
for thread in threads:
    thread.start()
sys.stdin.read()
is_over.set()
for thread in threads:
    thread.join()
for line in lost:
    print(line)
print("answers", answers)
sys.exit(1 if lost else 0)
