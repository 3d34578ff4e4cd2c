"""Streams of server-sent events as `httpx-sse` reads them: the tail, and retained events, which continue after the last
message that a client has seen.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
"""

import contextlib
import json
import os
import unittest

import httpx
from httpx_sse import connect_sse

KIND = "api_key_created.v0"
# Line ends and colons have a meaning in the stream.
DESCRIPTIONS = ["data: 1\nevent: x", "é\r\u2028 :", "", " two  spaces "]


class ServerSentEvents(unittest.TestCase):
    def setUp(self):
        self.client = httpx.Client(
            base_url=os.environ["CULVERT_API_URL"],
            headers={"authorization": "Bearer " + os.environ["CULVERT_API_KEY"]},
            timeout=60,
        )

    def tearDown(self):
        self.client.close()

    def create(self, description):
        made = self.client.post("/api_keys", json={"description": description})
        self.assertEqual(made.status_code, 201, made.text)
        return made.json()["id"]

    @contextlib.contextmanager
    def messages(self, path, last=None):
        headers = {"last-event-id": last} if last else {}
        with connect_sse(self.client, "GET", path, headers=headers) as stream:
            self.assertEqual(stream.response.status_code, 200)
            self.assertEqual(stream.response.headers["cache-control"], "no-store")
            yield stream.iter_sse()

    def read(self, messages, ids):
        """Reads the events of these keys, in order, and returns the ID of the last message."""
        last = None
        for id in ids:
            message = next(message for message in messages if message.data)
            # A retained event also says where it is retained.
            event = json.loads(message.data)
            event = event.get("event", event)
            self.assertEqual((message.event, event["event_type"]), ("message", KIND))
            self.assertEqual(event["object"]["id"], id)
            last = message.id
        return last

    def test_tail(self):
        with self.messages(f"/events/tail?type={KIND}") as messages:
            self.read(messages, [self.create(description) for description in DESCRIPTIONS])

    def test_follow(self):
        path = f"/events?follow=true&type={KIND}"
        with self.messages(path) as messages:
            first = [self.create(description) for description in DESCRIPTIONS]
            last = self.read(messages, first)
        self.assertTrue(last)
        missed = [self.create(description) for description in DESCRIPTIONS]
        with self.messages(path, last) as messages:
            self.read(messages, missed + [self.create("now")])
        print(f"httpx-sse: {2 * len(DESCRIPTIONS) + 1} events, none twice and none missed after a reconnect")


if __name__ == "__main__":
    unittest.main()
