"""An OpenSearch-compatible server that others wrote (osmem) on a free port of this machine.

Prints one line of JSON: its URL. The index `strict` takes no fields but those of an event. Then each line of JSON on the
standard input is the name of an index, and gets its documents by id for an answer. Ends with its input.
"""

import json
import sys

from osmem_server import OsmemServer

FIELDS = {
    "@timestamp": {"type": "date"},
    "event_id": {"type": "keyword"},
    "event_type": {"type": "keyword"},
    "event_timestamp": {"type": "date"},
    "account_id": {"type": "keyword"},
    "principal": {"type": "object"},
    "object": {"properties": {"n": {"type": "long"}}},
}


def say(answer):
    print(json.dumps(answer), flush=True)


def documents(server, index):
    server.request("POST", f"/{index}/_refresh")
    found = server.request("GET", f"/{index}/_search?size=10000")
    return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}


def main():
    server = OsmemServer.start(japanese=False)
    try:
        server.request("PUT", "/strict", {"mappings": {"dynamic": "strict", "properties": FIELDS}})
        server.request("PUT", "/events", {})
        say(server.url)
        for line in sys.stdin:
            say(documents(server, json.loads(line)))
    finally:
        server.close()


main()
