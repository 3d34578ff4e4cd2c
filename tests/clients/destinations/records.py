"""Reads exports of log records by OpenTelemetry's own messages: a line of JSON for each.

Answers with the resource's attributes and the records as plain values.
"""

import base64
import gzip
import json
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest


def plain(value):
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "kvlist_value":
        return pairs(value.kvlist_value.values)
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    return getattr(value, kind)


def pairs(values):
    return {pair.key: plain(pair.value) for pair in values}


def plain_request(request):
    logs = request.resource_logs[0]
    records = [
        {
            "event_name": record.event_name,
            "severity_number": record.severity_number,
            "time_unix_nano": record.time_unix_nano,
            "body": plain(record.body),
            "attributes": pairs(record.attributes),
        }
        for record in logs.scope_logs[0].log_records
    ]
    return {"resource": pairs(logs.resource.attributes), "records": records}


def main():
    for line in sys.stdin:
        question = json.loads(line)
        body = gzip.decompress(base64.b64decode(question["body"]))
        if question["content_type"] == "application/json":
            request = json_format.Parse(body, ExportLogsServiceRequest())
        else:
            request = ExportLogsServiceRequest.FromString(body)
        print(json.dumps(plain_request(request)), flush=True)


if __name__ == "__main__":
    main()
