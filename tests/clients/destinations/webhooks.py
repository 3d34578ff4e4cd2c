"""Verifies requests by the scheme's own library: a line of JSON for each, with its secret.

Answers each line with `ok` or with the error.
"""

import json
import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

for line in sys.stdin:
    request = json.loads(line)
    try:
        Webhook(request["secret"]).verify(request["body"], request["headers"])
        print(json.dumps("ok"), flush=True)
    except WebhookVerificationError as error:
        print(json.dumps(str(error)), flush=True)
