"""Verifies requests by the scheme's own library, and reads those with CloudEvents by theirs: a line of JSON for each,
with its secret.

Answers each line with `ok` or with the error.
"""

import json
import sys

from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from standardwebhooks.webhooks import Webhook, WebhookVerificationError


def events(kind, body):
    """The CloudEvents of a body. Their constructor refuses what the specification does not allow."""
    if kind == "application/cloudevents+json":
        return [JSONFormat().read(CloudEvent, body)]
    if kind == "application/cloudevents-batch+json":
        return [JSONFormat().read(CloudEvent, json.dumps(one)) for one in json.loads(body)]
    return []


for line in sys.stdin:
    request = json.loads(line)
    try:
        Webhook(request["secret"]).verify(request["body"], request["headers"])
    except WebhookVerificationError as error:
        print(json.dumps(str(error)), flush=True)
        continue
    found = events(request["headers"]["content-type"], request["body"])
    is_read = all(one.get_type() and one.get_time().tzinfo and one.get_data()["id"] for one in found)
    print(json.dumps(f"ok: {len(found)} CloudEvents" if is_read else str(found)), flush=True)
