"""Webhooks signed by the libraries of their providers, as the action `verify-webhook` sees them.

CULVERT_API_URL, CULVERT_API_KEY  the server and a key
CULVERT_HTTP                      where the edge takes plain HTTP: address and port
"""

import contextlib
import datetime
import http.client
import json
import os
import time
import unittest
import urllib.parse
import urllib.request

import standardwebhooks
import stripe
import svix
from slack_sdk.signature import SignatureVerifier
from twilio.request_validator import RequestValidator

TEXT_SECRET = "whose-secret-is-it"
BASE64_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = json.dumps({"id": "evt_1", "note": "naïve \"quote\"\n", "n": [1, 2.5]}, ensure_ascii=False)
FORM = {"CallSid": "CA1", "From": "+14158675309", "Körper": "a b&c=d", "Digits": "1234"}


def url(provider):
    return f"http://{provider.replace('_', '-')}.hooked.culvert.localhost/in/box?team=7&mode=a%2Cb"


def of_stripe():
    at = int(time.time())
    signature = stripe.WebhookSignature._compute_signature(f"{at}.{BODY}", TEXT_SECRET)
    return {"stripe-signature": f"t={at},v1={signature}"}, BODY


def of_slack():
    at = str(int(time.time()))
    signature = SignatureVerifier(TEXT_SECRET).generate_signature(timestamp=at, body=BODY)
    return {"x-slack-request-timestamp": at, "x-slack-signature": signature}, BODY


def signed(library, prefix):
    def sign():
        at = datetime.datetime.now(datetime.timezone.utc)
        signature = library.Webhook(BASE64_SECRET).sign("msg_1", at, BODY)
        return {
            f"{prefix}-id": "msg_1",
            f"{prefix}-timestamp": str(int(at.timestamp())),
            f"{prefix}-signature": signature,
        }, BODY

    return sign


def of_twilio():
    signature = RequestValidator(TEXT_SECRET).compute_signature(url("twilio"), FORM)
    return {
        "x-twilio-signature": signature, "content-type": "application/x-www-form-urlencoded",
    }, urllib.parse.urlencode(FORM)


PROVIDERS = {
    "slack": (TEXT_SECRET, of_slack),
    "standard_webhooks": (BASE64_SECRET, signed(standardwebhooks, "webhook")),
    "stripe": (TEXT_SECRET, of_stripe),
    "svix": (BASE64_SECRET, signed(svix.webhooks, "svix")),
    "twilio": (TEXT_SECRET, of_twilio),
}


def post(provider, headers, body):
    where = urllib.parse.urlsplit(url(provider))
    with contextlib.closing(http.client.HTTPConnection(os.environ["CULVERT_HTTP"], timeout=60)) as connection:
        connection.request("POST", f"{where.path}?{where.query}", body.encode(), {"host": where.netloc, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


class Webhooks(unittest.TestCase):
    def test_the_signatures_of_providers(self):
        for provider, (secret, sign) in PROVIDERS.items():
            policy = {"on_http_request": [{"actions": [
                {"type": "verify-webhook", "config": {"provider": provider, "secret": secret}},
                {"type": "custom-response", "config": {"status_code": 200, "body": "verified"}},
            ]}]}
            where = urllib.parse.urlsplit(url(provider))
            request = urllib.request.Request(
                os.environ["CULVERT_API_URL"] + "/endpoints",
                data=json.dumps({"url": f"http://{where.netloc}", "traffic_policy": json.dumps(policy)}).encode(),
                headers={
                    "Authorization": "Bearer " + os.environ["CULVERT_API_KEY"],
                    "Content-Type": "application/json",
                },
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.assertEqual(answer.status, 201)
            deadline = time.monotonic() + 60
            while post(provider, *sign())[0] == 404 and time.monotonic() < deadline:
                time.sleep(0.02)
            with self.subTest(provider):
                headers, body = sign()
                self.assertEqual(post(provider, headers, body), (200, "verified"))
                self.assertEqual(post(provider, headers, body.replace("1", "2", 1))[0], 403)
                self.assertEqual(post(provider, {}, body)[0], 403)
        print(f"webhooks: {len(PROVIDERS)} providers' own libraries sign them")


if __name__ == "__main__":
    unittest.main()
