"""Writes webhooks.json: requests signed as each provider signs them, and what must come of them.

It shares no code with the edge and uses the standard library alone, so that the same mistake would
have to be made twice. Run it with `python3 webhooks.py`; the same file comes out each time.
"""

import base64
import hashlib
import hmac
import json
import pathlib
import random
import urllib.parse

NOW = 1_767_225_600
URL = "https://hooks.example.com/in/box?team=7&mode=a%2Cb"
BODY = '{"id":"evt_1","note":"naïve \\"quote\\"\\n\\ttab","n":[1,2]}'.encode()
SECRET = "whose-secret-is-it"
CASES = []


def mac(secret, message, algorithm="sha256"):
    key = secret if isinstance(secret, bytes) else secret.encode()
    return hmac.new(key, message, algorithm).digest()


def b64(data):
    return base64.b64encode(data).decode()


def case(provider, why, expect, request, **more):
    method, url, headers, body = request
    CASES.append(
        {
            "provider": provider,
            "case": why,
            "expect": expect,
            "secret": more.pop("secret", SECRET),
            "method": method,
            "url": url,
            "headers": [list(pair) for pair in headers.items()],
            "body": b64(body),
            **more,
        }
    )


def provider(name, sign, *, secret=SECRET, tolerance=None, method="POST", url=URL, body=BODY,
             tampered=BODY + b" ", covers_body=True, wrong="another-secret", missing=True):
    """The cases of one way of signing. `sign` gives the headers, or headers and another body."""

    def signed(at, key=secret):
        made = sign(key, method, url, body, at)
        headers, sent = made if isinstance(made, tuple) else (made, body)
        return method, url, headers, sent

    good = signed(NOW)
    case(name, "good", "ok", good, secret=secret)
    if covers_body:
        case(name, "tampered body", "mismatch", (*good[:3], tampered), secret=secret)
    case(name, "wrong secret", "mismatch", good, secret=wrong)
    if missing:
        for header in good[2]:
            if header.lower() == "content-type":
                continue
            left = {key: value for key, value in good[2].items() if key != header}
            case(name, f"without {header}", "missing", (*good[:2], left, good[3]), secret=secret)
        for header in good[2]:
            if header.lower() == "content-type":
                continue
            spoilt = {**good[2], header: "?"}
            case(name, f"nonsense in {header}", "refused", (*good[:2], spoilt, good[3]), secret=secret)
    if tolerance is not None:
        case(name, "just in time", "ok", signed(NOW - tolerance), secret=secret)
        case(name, "a little ahead", "ok", signed(NOW + tolerance), secret=secret)
        case(name, "stale", "stale", signed(NOW - tolerance - 2), secret=secret)
        case(name, "in the future", "stale", signed(NOW + tolerance + 2), secret=secret)
    return good


# Over the body alone.


def body_hex(header, prefix="", algorithm="sha256"):
    return lambda key, m, u, body, at: {header: prefix + mac(key, body, algorithm).hex()}


def body_b64(header, prefix=""):
    return lambda key, m, u, body, at: {header: prefix + b64(mac(key, body))}


for name, header in [
    ("aftership", "aftership-hmac-sha256"),
    ("bolt", "X-Bolt-Hmac-Sha256"),
    ("castle", "X-Castle-Signature"),
    ("heroku", "Heroku-Webhook-Hmac-SHA256"),
    ("shopify", "X-Shopify-Hmac-SHA256"),
    ("worldline", "X-GCS-Signature"),
    ("xero", "x-xero-signature"),
]:
    provider(name, body_b64(header))
for name, header, prefix in [
    ("twitter", "X-Twitter-Webhooks-Signature", "sha256="),
    ("typeform", "Typeform-Signature", "sha256="),
]:
    provider(name, body_b64(header, prefix))
for name, header in [
    ("alchemy", "X-Alchemy-Signature"),
    ("chargify", "X-Chargify-Webhook-Signature-Hmac-Sha-256"),
    ("coinbase", "X-CC-Webhook-Signature"),
    ("dropbox", "X-Dropbox-Signature"),
    ("launch_darkly", "X-LD-Signature"),
    ("modern_treasury", "X-Signature"),
    ("pusher", "X-Pusher-Signature"),
    ("sentry", "Sentry-Hook-Signature"),
    ("signal_sciences", "X-SigSci-Signature"),
    ("trendmicro_conformity", "X-Conformity-Signature"),
]:
    provider(name, body_hex(header))
for name, header, prefix in [
    ("bitbucket", "X-Hub-Signature", "sha256="),
    ("circleci", "circleci-signature", "v1="),
    ("facebook_graph_api", "X-Hub-Signature-256", "sha256="),
    ("facebook_messenger", "X-Hub-Signature-256", "sha256="),
    ("instagram", "X-Hub-Signature-256", "sha256="),
    ("whatsapp", "X-Hub-Signature-256", "sha256="),
    ("github", "X-Hub-Signature-256", "sha256="),
    ("jira", "X-Hub-Signature", "sha256="),
    ("mongodb", "Endpoint-Signature", "sha256="),
    ("mongodb", "X-Hook-Signature", "sha256="),
    ("orbit", "X-Orbit-Signature", "sha256="),
    ("pagerduty", "X-PagerDuty-Signature", "v1="),
]:
    provider(name, body_hex(header, prefix), missing=header != "X-Hook-Signature")
for name, header, prefix in [
    ("autodesk", "x-adsk-signature", "sha1hash="),
    ("clearbit", "X-Request-Signature", "sha1="),
    ("facebook_graph_api", "X-Hub-Signature", "sha1="),
    ("facebook_messenger", "X-Hub-Signature", "sha1="),
    ("instagram", "X-Hub-Signature", "sha1="),
    ("whatsapp", "X-Hub-Signature", "sha1="),
    ("intercom", "X-Hub-Signature", "sha1="),
    ("pusher", "Webhook-Signature", ""),
    ("sonatype", "X-Nexus-Webhook-Signature", ""),
    ("webex", "X-Spark-Signature", ""),
]:
    provider(name, body_hex(header, prefix, "sha1"))
provider("terraform", body_hex("X-TFE-Notification-Signature", "", "sha512"))
provider("github", lambda key, m, u, body, at: {
    "X-Hub-Signature-256": "SHA256=" + mac(key, body).hex().upper()})
provider("pagerduty", lambda key, m, u, body, at: {
    "X-PagerDuty-Signature": "v1=" + mac("retired", body).hex() + ", v1=" + mac(key, body).hex()})
provider("docusign", lambda key, m, u, body, at: {"X-DocuSign-Signature-1": b64(mac(key, body))})
case("docusign", "the second of two", "ok", ("POST", URL, {
    "X-DocuSign-Signature-1": b64(mac("retired", BODY)),
    "X-DocuSign-Signature-2": b64(mac(SECRET, BODY))}, BODY))
provider("microsoft_teams",
         lambda key, m, u, body, at: {"Authorization": "HMAC " + b64(mac(base64.b64decode(key), body))},
         secret=b64(b"thirty-two bytes of a teams key!"), wrong=b64(b"another key"))
provider("linear", lambda key, m, u, body, at: (
    (sent := b'{"action":"create","webhookTimestamp":%d}' % (at * 1000)) and None) or (
    {"Linear-Signature": mac(key, sent).hex()}, sent),
    tolerance=60, tampered=b'{"action":"remove","webhookTimestamp":%d}' % (NOW * 1000))

# Over a time and the body.


def pairs(header, time, signature, separator=",", template=None):
    def sign(key, m, u, body, at):
        message = template(at, body) if template else b"%d.%s" % (at, body)
        return {header: f"{time}={at}{separator}{signature}={mac(key, message).hex()}"}
    return sign


def iso(at):
    import datetime
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def two(signature, stamp, message, encode=bytes.hex, prefix="", written=str):
    return lambda key, m, u, body, at: {
        signature: prefix + encode(mac(key, message(written(at).encode(), body))),
        stamp: written(at)}


provider("airship", two("X-UA-SIGNATURE", "X-UA-TIMESTAMP", lambda t, b: t + b":" + b), tolerance=180)
provider("airship", two("X-UA-SIGNATURE", "X-UA-TIMESTAMP", lambda t, b: t + b":" + b), method="GET",
         body=b"", tampered=b"more", tolerance=180)
boxed = lambda t, b: b + t
provider("box", two("BOX-SIGNATURE-PRIMARY", "BOX-DELIVERY-TIMESTAMP", boxed, b64,
                    written=lambda at: iso(at) + "-00:00"), tolerance=600)
provider("box", two("BOX-SIGNATURE-SECONDARY", "BOX-DELIVERY-TIMESTAMP", boxed, b64,
                    written=lambda at: iso(at) + "Z"), tolerance=600)
case("box", "the second of two keys", "ok", ("POST", URL, two(
    "BOX-SIGNATURE-SECONDARY", "BOX-DELIVERY-TIMESTAMP", boxed, b64,
    written=lambda at: iso(at) + "Z")("second", "", "", BODY, NOW), BODY), secret="first,second")
provider("buildkite", pairs("X-Buildkite-Signature", "timestamp", "signature"), tolerance=180)
provider("buildkite", lambda key, m, u, body, at: {"X-Buildkite-Token": key}, covers_body=False, missing=False)
provider("calendly", pairs("Calendly-Webhook-Signature", "t", "v1"), tolerance=180)
provider("frameio", two("X-Frameio-Signature", "X-Frameio-Request-Timestamp",
                        lambda t, b: b"v0:" + t + b":" + b, prefix="v0="), tolerance=300)
provider("go1", pairs("go1-signature", "t", "v1"), tolerance=60)


def graphcms(key, m, u, body, at):
    payload = json.dumps({"Body": body.decode(), "EnvironmentName": "main", "TimeStamp": at * 1000},
                         separators=(",", ":"), ensure_ascii=False)
    return {"gcms-signature": f"sign={b64(mac(key, payload.encode()))}, env=main, t={at * 1000}"}


provider("graphcms", graphcms, tolerance=180)
provider("hostedhooks", pairs("HostedHooks-Signature", "t", "s"), tolerance=180)


def mailgun(token):
    def sign(key, m, u, body, at):
        seal = {"timestamp": str(at), "token": token, "signature": mac(key, f"{at}{token}".encode()).hex()}
        return {}, json.dumps({"signature": seal, "event-data": {"event": "opened"}}).encode()
    return sign


good = provider("mailgun", mailgun("a" * 50), tolerance=180, covers_body=False)
case("mailgun", "tampered body", "mismatch", (*good[:3], good[3].replace(b"aaaa", b"aaab", 1)))
case("mailgun", "without signature", "missing", (*good[:3], b'{"event-data":{}}'))
case("mailgun", "signature twice", "refused",
     (*good[:3], good[3].replace(b'"token"', b'"token": "b", "token"', 1)))
provider("mux", pairs("Mux-Signature", "t", "v1"), tolerance=300)
provider("orb", two("X-Orb-Signature", "X-Orb-Timestamp", lambda t, b: b"v1:" + t + b":" + b,
                    prefix="v1=", written=lambda at: iso(at)), tolerance=300)
provider("pinwheel", two("x-pinwheel-signature", "x-timestamp", lambda t, b: b"v2:" + t + b":" + b,
                         prefix="v2="), tolerance=300)
provider("slack", two("X-Slack-Signature", "X-Slack-Request-Timestamp",
                      lambda t, b: b"v0:" + t + b":" + b, prefix="v0="), tolerance=300)
provider("stripe", pairs("Stripe-Signature", "t", "v1"), tolerance=300)
case("stripe", "the second of two", "ok", ("POST", URL, {
    "Stripe-Signature": f"t={NOW},v1={mac('retired', b'%d.%s' % (NOW, BODY)).hex()},"
                        f"v1={mac(SECRET, b'%d.%s' % (NOW, BODY)).hex()},v0=00"}, BODY))
case("stripe", "two times", "refused", ("POST", URL, {
    "Stripe-Signature": f"t={NOW},t=1,v1={mac(SECRET, b'1.%s' % BODY).hex()}"}, BODY))
case("stripe", "another version", "refused", ("POST", URL, {
    "Stripe-Signature": f"t={NOW},v0={mac(SECRET, b'%d.%s' % (NOW, BODY)).hex()}"}, BODY))
provider("tiktok", pairs("TikTok-Signature", "t", "s"), tolerance=300)
provider("vmware", lambda key, m, u, body, at: {
    "X-Webhook-Signature": f"v=1&t={at}&s={mac(key, body + b'.%d' % at).hex()}"}, tolerance=180)
provider("zendesk", two("X-Zendesk-Webhook-Signature", "X-Zendesk-Webhook-Signature-Timestamp",
                        lambda t, b: t + b, b64, written=lambda at: iso(at) + "Z"), tolerance=300)
provider("zoom", two("x-zm-signature", "x-zm-request-timestamp",
                     lambda t, b: b"v0:" + t + b":" + b, prefix="v0="), tolerance=300)

# A shared token.

provider("gitlab", lambda key, m, u, body, at: {"X-Gitlab-Token": key}, covers_body=False)

# With an id.

KEY = b"twenty-four bytes of key"


def standard(prefix, key_of, before="", after=""):
    def sign(key, m, u, body, at):
        seal = b64(mac(key_of(key), b"msg_1.%d.%s" % (at, body)))
        return {f"{prefix}-id": "msg_1", f"{prefix}-timestamp": str(at),
                f"{prefix}-signature": f"{before}v1,{seal}{after}"}
    return sign


after_prefix = lambda key: base64.b64decode(key.removeprefix("whsec_"))
WHSEC, OTHER = "whsec_" + b64(KEY), "whsec_" + b64(b"another key of many bytes")
for name, prefix in [("clerk", "svix"), ("svix", "svix"), ("svix", "webhook"), ("standard_webhooks", "webhook")]:
    provider(name, standard(prefix, after_prefix), secret=WHSEC, wrong=OTHER, tolerance=300,
             missing=(name, prefix) != ("svix", "webhook"))
    provider(name, standard(prefix, after_prefix, "v1," + b64(b"old") + " v2,AAAA ", " v1a,AAAA"),
             secret=b64(KEY), wrong=OTHER, missing=False)
provider("brex", standard("Webhook", str.encode), tolerance=300)
provider("brex", standard("Webhook", after_prefix), secret=WHSEC, wrong=OTHER, missing=False)
provider("gitlab", standard("webhook", after_prefix), secret=WHSEC, wrong=OTHER, tolerance=300, missing=False)

# With the method, the URL or a form.


def contentful(key, method, url, body, at):
    target = "/" + url.split("/", 3)[3]
    path, _, query = target.partition("?")
    if query:
        target = path + "?" + urllib.parse.quote(urllib.parse.quote(query, safe="-_.!~*'()"), safe=";,/?:@&=+$-_.!~*'()#")
    names = "x-contentful-crn,x-contentful-signed-headers,x-contentful-timestamp"
    headers = {"x-contentful-crn": "crn:contentful:::extensibility:spaces/s",
               "x-contentful-signed-headers": names, "x-contentful-timestamp": str(at * 1000)}
    fields = ";".join(f"{name}:{headers[name]}" for name in names.split(","))
    message = "\n".join([method, target, fields]).encode() + b"\n" + body
    return {**headers, "x-contentful-signature": mac(key, message).hex()}


good = provider("contentful", contentful, tolerance=30, missing=False)
provider("contentful", contentful, tolerance=30, missing=False, url="https://hooks.example.com/plain/path")
for header in ["x-contentful-signature", "x-contentful-timestamp", "x-contentful-signed-headers"]:
    left = {key: value for key, value in good[2].items() if key != header}
    case("contentful", f"without {header}", "missing", (*good[:2], left, good[3]))
case("contentful", "without a signed field", "mismatch",
     (*good[:2], {key: value for key, value in good[2].items() if not key.endswith("crn")}, good[3]))
raw = {"x-contentful-signed-headers": "x-contentful-signed-headers,x-contentful-timestamp",
       "x-contentful-timestamp": str(NOW * 1000)}
message = "POST\n/in/box?team=7&mode=a%2Cb\n" + ";".join(f"{k}:{v}" for k, v in raw.items()) + "\n"
case("contentful", "the query as it stands", "ok", ("POST", URL, {
    **raw, "x-contentful-signature": mac(SECRET, message.encode() + BODY).hex()}, BODY))

SOFT = "https://hooks.example.com/in/box?team=7&mode=a,b"
good = provider("hubspot", lambda key, method, u, body, at: {
    "X-HubSpot-Signature-v3": b64(mac(key, f"{method}{SOFT}".encode() + body + b"%d" % (at * 1000))),
    "X-HubSpot-Request-Timestamp": str(at * 1000)}, tolerance=300)
case("hubspot", "another URL", "mismatch", (good[0], URL + "1", *good[2:]))
case("hubspot", "another method", "mismatch", ("PUT", *good[1:]))
provider("hubspot", lambda key, method, url, body, at: {
    "X-HubSpot-Signature": hashlib.sha256(f"{key}{method}{url}".encode() + body).hexdigest()}, missing=False)
provider("hubspot", lambda key, method, url, body, at: {
    "X-HubSpot-Signature": hashlib.sha256(key.encode() + body).hexdigest()}, missing=False)
case("hubspot", "published by the vendor, version 2", "ok",
     ("GET", "https://www.example.com/webhook_uri", {
         "X-HubSpot-Signature": "eee2dddcc73c94d699f5e395f4b9d454a069a6855fbfa152e91e88823087200e"}, b""),
     secret="yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy")

FORM_TYPE = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
FORM = b"b=two+words&a=%C3%A4%26&c=&a=1"
SORTED = "a1aä&btwo wordsc"


def formed(header, sign):
    return lambda key, m, url, body, at: {**FORM_TYPE, header: sign(key, url)}


good = provider("mailchimp", formed("X-Mandrill-Signature", lambda key, url: b64(mac(key, (url + SORTED).encode(), "sha1"))),
                body=FORM, tampered=FORM + b"2")
case("mailchimp", "another URL", "mismatch", (good[0], URL + "1", *good[2:]))
case("mailchimp", "no form", "refused", (*good[:2], {
    "content-type": "application/json", "X-Mandrill-Signature": b64(mac(SECRET, URL.encode(), "sha1"))}, BODY))
good = provider("twilio", formed("X-Twilio-Signature", lambda key, url: b64(mac(key, (url + SORTED).encode(), "sha1"))),
                body=FORM, tampered=FORM + b"2")
case("twilio", "another URL", "mismatch", (good[0], URL + "1", *good[2:]))
case("twilio", "with the port", "ok", (*good[:2], {**FORM_TYPE, "X-Twilio-Signature": b64(
    mac(SECRET, (URL.replace(".com/", ".com:443/") + SORTED).encode(), "sha1"))}, FORM))
case("twilio", "without the port", "ok", ("POST", URL.replace(".com/", ".com:8443/"), good[2], FORM))
hashed = f"{URL}&bodySHA256={hashlib.sha256(BODY).hexdigest()}"
sealed = {"content-type": "application/json", "X-Twilio-Signature": b64(mac(SECRET, hashed.encode(), "sha1"))}
case("twilio", "JSON", "ok", ("POST", hashed, sealed, BODY))
case("twilio", "tampered JSON", "mismatch", ("POST", hashed, sealed, BODY + b" "))
case("twilio", "JSON that nothing signs", "missing", ("POST", URL, {
    "content-type": "application/json", "X-Twilio-Signature": b64(mac(SECRET, URL.encode(), "sha1"))}, BODY))
for caller, seal in [("+14158675309", "RSOYDt4T1cUTdK1PDd93/VVr8B8="), ("+12349013030", "0/KCTR6DLpKmkAf8muzZqo1nDgQ=")]:
    case("twilio", f"published by the vendor, caller {caller}", "ok",
         ("POST", "https://mycompany.com/myapp.php?foo=1&bar=2", {**FORM_TYPE, "X-Twilio-Signature": seal},
          urllib.parse.urlencode({"CallSid": "CA1234567890ABCDE", "Caller": caller, "Digits": "1234",
                                  "From": caller, "To": "+18005551212"}).encode()), secret="12345")
PLAIN = "https://hooks.example.com/in/box?mode=a,b&team=7"
provider("plivo", lambda key, m, url, body, at: {
    **FORM_TYPE, "X-Plivo-Signature-V3-Nonce": "9",
    "X-Plivo-Signature-V3": b64(mac("old", b"")) + "," + b64(mac(key, f"{PLAIN}.{SORTED}.9".encode()))},
    body=FORM, tampered=FORM + b"2")
provider("plivo", lambda key, m, url, body, at: {
    "X-Plivo-Signature-V3-Nonce": "9", "X-Plivo-Signature-V3": b64(mac(key, f"{PLAIN}.9".encode()))},
    method="GET", body=b"", covers_body=False)
case("plivo", "no query", "ok", ("POST", "https://hooks.example.com/in", {
    **FORM_TYPE, "X-Plivo-Signature-V3-Nonce": "9",
    "X-Plivo-Signature-V3": b64(mac(SECRET, f"https://hooks.example.com/in?{SORTED}.9".encode()))}, FORM))
case("plivo", "no form", "refused", ("POST", URL, {
    "X-Plivo-Signature-V3-Nonce": "9", "X-Plivo-Signature-V3": b64(mac(SECRET, f"{PLAIN}.9".encode()))}, BODY))
provider("square", lambda key, m, url, body, at: {
    "x-square-hmacsha256-signature": b64(mac(key, url.encode() + body))})
provider("square", lambda key, m, url, body, at: {
    "x-square-signature": b64(mac(key, url.encode() + body, "sha1"))}, missing=False)

# Published by vendors.

case("github", "published by the vendor", "ok", ("POST", URL, {
    "X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
    b"Hello, World!"), secret="It's a Secret to Everybody")
SLACK = (
    "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    "&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    "&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    "&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c")
case("slack", "published by the vendor", "ok", ("POST", URL, {
    "X-Slack-Request-Timestamp": "1531420618",
    "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"},
    SLACK.encode()), secret="8f742231b10e8888abcd99yyyzzz85a5", now=1531420618)
case("svix", "published by the vendor", "ok", ("POST", URL, {
    "svix-id": "msg_loFOjxBNrRLzqYUf", "svix-timestamp": "1731705121",
    "svix-signature": "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="},
    b'{"event_type":"ping","data":{"success":true}}'), secret="whsec_plJ3nmyCDGBKInavdOK15jsl", now=1731705121)
case("standard_webhooks", "published by the vendor", "ok", ("POST", URL, {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
    b'{"test": 2432232314}'), secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", now=1614265330)

# Signed with the provider's own key: P-256 here.

P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
     0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5)


def add(a, b):
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % P == 0:
        return None
    slope = ((3 * a[0] * a[0] - 3) * pow(2 * a[1], -1, P) if a == b
             else (b[1] - a[1]) * pow(b[0] - a[0], -1, P)) % P
    x = (slope * slope - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def times(k, point):
    total = None
    while k:
        if k & 1:
            total = add(total, point)
        point, k = add(point, point), k >> 1
    return total


def der(tag, *parts):
    content = b"".join(parts)
    length = len(content)
    size = bytes([length]) if length < 128 else (
        lambda raw: bytes([128 + len(raw)]) + raw)(length.to_bytes((length.bit_length() + 7) // 8, "big"))
    return bytes([tag]) + size + content


def integer(value):
    return der(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def oid(text):
    return der(6, bytes.fromhex(text))


def public(private):
    x, y = times(private, G)
    point = b"\0\4" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    return b64(der(0x30, der(0x30, oid("2a8648ce3d0201"), oid("2a8648ce3d030107")), der(3, point)))


def ecdsa(private, message):
    z = int.from_bytes(hashlib.sha256(message).digest(), "big")
    k = int.from_bytes(hashlib.sha256(b"nonce" + message).digest(), "big") % N
    r = times(k, G)[0] % N
    return b64(der(0x30, integer(r), integer(pow(k, -1, N) * (z + r * private) % N)))


OURS, THEIRS = 0xC0FFEE * 2**200 + 12345, 0xBADC0DE * 2**190 + 678
provider("sendgrid", lambda key, m, u, body, at: {
    "X-Twilio-Email-Event-Webhook-Signature": ecdsa(OURS, b"%d%s" % (at, body)),
    "X-Twilio-Email-Event-Webhook-Timestamp": str(at)},
    secret=public(OURS), wrong=public(THEIRS), tolerance=300)

# Signed with a key whose certificate is fetched: RSA.

RANDOM = random.Random(8)


def prime(bits):
    while True:
        n = RANDOM.getrandbits(bits) | 1 | 3 << (bits - 2)
        if n % 65537 == 1 or any(n % small == 0 for small in (3, 5, 7, 11, 13, 17, 19, 23)):
            continue
        d, s = n - 1, 0
        while d % 2 == 0:
            d, s = d // 2, s + 1
        for _ in range(24):
            x = pow(RANDOM.randrange(2, n - 1), d, n)
            if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(s - 1)):
                break
        else:
            return n


def rsa(key, message, algorithm):
    modulus, private = key
    name = {"sha1": "2b0e03021a", "sha256": "608648016503040201"}[algorithm]
    info = der(0x30, der(0x30, oid(name), b"\5\0"), der(4, hashlib.new(algorithm, message).digest()))
    padded = b"\0\1" + b"\xff" * (256 - 3 - len(info)) + b"\0" + info
    return pow(int.from_bytes(padded, "big"), private, modulus).to_bytes(256, "big")


def rsa_key():
    p, q = prime(1024), prime(1024)
    return p * q, pow(65537, -1, (p - 1) * (q - 1))


def certificate(key):
    name = der(0x30, der(0x31, der(0x30, oid("550403"), der(0x0C, b"sns.amazonaws.com"))))
    spki = der(0x30, der(0x30, oid("2a864886f70d010101"), b"\5\0"),
               der(3, b"\0" + der(0x30, integer(key[0]), integer(65537))))
    algorithm = der(0x30, oid("2a864886f70d01010b"), b"\5\0")
    dates = der(0x30, der(0x17, b"250101000000Z"), der(0x17, b"270101000000Z"))
    tbs = der(0x30, der(0xA0, integer(2)), integer(7), algorithm, name, dates, name, spki)
    whole = der(0x30, tbs, algorithm, der(3, b"\0" + rsa(key, tbs, "sha256")))
    text = b64(whole)
    lines = [text[at:at + 64] for at in range(0, len(text), 64)]
    return "\n".join(["-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""])


SIGNER, STRANGER = rsa_key(), rsa_key()
PEM, FOREIGN = certificate(SIGNER), certificate(STRANGER)


def sns(at, version, **more):
    message = {"Type": "Notification", "MessageId": "22b80b92", "TopicArn": "arn:aws:sns:us-west-2:1:t",
               "Message": "Hello\nthere", "Timestamp": iso(at) + ".000Z", "SignatureVersion": version,
               "SigningCertURL": "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-f3.pem", **more}
    names = ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"]
    if message["Type"] != "Notification":
        names = ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    signed = "".join(f"{name}\n{message[name]}\n" for name in names if name in message)
    message["Signature"] = b64(rsa(SIGNER, signed.encode(), {"1": "sha1", "2": "sha256"}[version]))
    return message


def sns_case(why, expect, message, pem=PEM):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    case("sns", why, expect, ("POST", URL, {"x-amz-sns-message-type": "Notification"}, body),
         secret="", certificate=pem)


for version in "12":
    sns_case(f"good, version {version}", "ok", sns(NOW, version))
    sns_case(f"with a subject, version {version}", "ok", sns(NOW, version, Subject="S"))
sns_case("good", "ok", sns(NOW, "2"))
for kind in ["SubscriptionConfirmation", "UnsubscribeConfirmation"]:
    sns_case(kind, "ok", sns(NOW, "1", Type=kind, Token="t", SubscribeURL="https://sns.us-west-2.amazonaws.com/?a=b"))
sns_case("just in time", "ok", sns(NOW - 3600, "2"))
sns_case("stale", "stale", sns(NOW - 3602, "2"))
sns_case("in the future", "stale", sns(NOW + 3602, "2"))
sns_case("tampered body", "mismatch", {**sns(NOW, "2"), "Message": "Bye"})
sns_case("another version", "mismatch", {**sns(NOW, "1"), "SignatureVersion": "2"})
sns_case("wrong secret", "mismatch", sns(NOW, "2"), FOREIGN)
for name in ["Signature", "SigningCertURL"]:
    sns_case(f"without {name}", "missing", {key: value for key, value in sns(NOW, "2").items() if key != name})
for name in ["Type", "MessageId", "TopicArn", "Message", "Timestamp", "SignatureVersion"]:
    sns_case(f"without {name}", "refused", {key: value for key, value in sns(NOW, "2").items() if key != name})
sns_case("a certificate of someone else's", "refused", {**sns(NOW, "2"), "SigningCertURL": "https://sns.evil.test/a.pem"})
sns_case("a name in another case", "refused", {**sns(NOW, "2"), "message": "Bye"})
sns_case("a name twice", "refused", json.dumps(sns(NOW, "2")).encode().replace(b'{', b'{"Message": "Bye", ', 1))
sns_case("no JSON", "refused", b"Type=Notification")

# Questions of providers, and the answers.


def question(name, why, request, answer, expect="refused"):
    case(name, why, expect, request, answer=answer)


def answer(status, body=b""):
    return {"status": status, "body": b64(body)}


CRC = "https://hooks.example.com/in?crc_token=NGEz-X_1&nonce=2"
question("twitter", "asks", ("GET", CRC, {}, b""), answer(
    200, b'{"response_token":"sha256=%s"}' % b64(mac(SECRET, b"NGEz-X_1")).encode()), "missing")
question("twitter", "a question that could be an event",
         ("GET", "https://hooks.example.com/in?crc_token=%7B%22a%22%3A1%7D", {}, b""), None, "missing")
question("twitter", "not a question", ("POST", CRC, {}, b""), None, "missing")
question("worldline", "asks", ("GET", URL, {"X-GCS-Webhooks-Endpoint-Verification": "0b4c-9"}, b""),
         answer(200, b"0b4c-9"), "missing")
question("worldline", "a question that is markup",
         ("GET", URL, {"X-GCS-Webhooks-Endpoint-Verification": "<script>"}, b""), None, "missing")
ITR = b'{"events":[],"lastEventSequence":0,"firstEventSequence":0,"entropy":"HAIL"}'
question("xero", "asks", ("POST", URL, {"x-xero-signature": b64(mac(SECRET, ITR))}, ITR), answer(200), "ok")
question("xero", "asks with a wrong signature", ("POST", URL, {"x-xero-signature": b64(mac("x", ITR))}, ITR),
         answer(401), "mismatch")
EVENTS = ITR.replace(b"[]", b'[{"a":1}]')
question("xero", "tells", ("POST", URL, {"x-xero-signature": b64(mac(SECRET, EVENTS))}, EVENTS), None, "ok")
ZOOM = b'{"payload":{"plainToken":"qgg8vlvZRS6UYooatFL8Aw"},"event_ts":1,"event":"endpoint.url_validation"}'


def zoomed(key, body):
    return {"x-zm-signature": "v0=" + mac(key, b"v0:%d:%s" % (NOW, body)).hex(), "x-zm-request-timestamp": str(NOW)}


question("zoom", "asks", ("POST", URL, zoomed(SECRET, ZOOM), ZOOM), answer(
    200, b'{"encryptedToken":"%s","plainToken":"qgg8vlvZRS6UYooatFL8Aw"}'
    % mac(SECRET, b"qgg8vlvZRS6UYooatFL8Aw").hex().encode()), "ok")
question("zoom", "a stranger asks", ("POST", URL, zoomed("x", ZOOM), ZOOM), None, "mismatch")
question("zoom", "tells", ("POST", URL, zoomed(SECRET, BODY), BODY), None, "ok")

out = pathlib.Path(__file__).with_name("webhooks.json")
rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in CASES)
out.write_text(f'{{"now": {NOW}, "cases": [\n{rows}\n]}}\n', encoding="utf-8")
