"""The published Python agent, unmodified, with one endpoint: prints its URL, or the code of a refusal, and
ends when standard input does.

CULVERT_AGENTS   host:port of the ingress of agents
CULVERT_CA       file with the authority of its certificate
TOKEN            of a tunnel credential
PROTO            http or tcp
APP_PROTOCOL     of the service of an http endpoint; may be empty
NAME             domain of an http endpoint
UPSTREAM         host:port of the service
"""

import asyncio
import os
import sys

import ngrok

env = os.environ


async def run():
    with open(env["CULVERT_CA"], "rb") as file:
        authority = bytearray(file.read())
    builder = ngrok.SessionBuilder().server_addr(env["CULVERT_AGENTS"]).ca_cert(authority)
    session = await builder.authtoken(env["TOKEN"]).metadata("of the test").connect()
    endpoint = session.tcp_endpoint()
    if env["PROTO"] == "http":
        endpoint = session.http_endpoint().scheme("http").domain(env["NAME"])
    if env["APP_PROTOCOL"]:
        endpoint = endpoint.app_protocol(env["APP_PROTOCOL"])
    listener = await endpoint.listen_and_forward(env["PROTO"] + "://" + env["UPSTREAM"])
    print(listener.url(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await listener.close()
    await session.close()


try:
    asyncio.run(run())
except ValueError as refused:
    print("refused", refused.args[2], flush=True)
# The library's threads may outlive the interpreter badly.
os._exit(0)
