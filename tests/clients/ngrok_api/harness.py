"""The server under test, named by CULVERT_API_URL and CULVERT_API_KEY, and how it is asked."""

import json
import os
import urllib.error
import urllib.request

import ngrok

URL = os.environ["CULVERT_API_URL"]
TOKEN = os.environ["CULVERT_API_KEY"]


def client(token=TOKEN, url=URL):
    return ngrok.Client(token, url)


def raw(method, path, body=None, token=TOKEN):
    """One call without the package: status and body."""
    request = urllib.request.Request(URL + path, method=method)
    request.add_header("authorization", "Bearer " + token)
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, data) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def properties(thing):
    """Every property of an object of the package, by name; reading one that the server left out raises."""
    names = [n for n in dir(type(thing)) if isinstance(getattr(type(thing), n), property)]
    return {n: getattr(thing, n) for n in names}


def plain(value):
    """What the package made of an answer, as plain data."""
    if hasattr(value, "_props"):
        return plain(value._props)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value
