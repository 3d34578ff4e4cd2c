"""Checks bodies of requests by the libraries of Slack and PagerDuty, and by discord.py: a line of JSON for each.

Slack's library reads every block and checks its lengths. PagerDuty's client writes the same event, which is to be equal.
"""

import json
import sys

import discord
import pagerduty
from slack_sdk.models.blocks import Block


def slack(body):
    blocks = Block.parse_all(body["blocks"])
    for block in blocks:
        block.validate_json()
    return {"types": [block.type for block in blocks]}


def of_discord(body):
    embeds = [discord.Embed.from_dict(embed) for embed in body["embeds"]]
    texts = [embed.title + embed.description + "".join(field.value for field in embed.fields) for embed in embeds]
    return {
        "length": sum(len(embed) for embed in embeds),
        "at": [embed.timestamp.isoformat() for embed in embeds],
        "plain": [discord.utils.remove_markdown(embed.description) for embed in embeds],
        "is_escaped": all("@everyone" not in text and "@here" not in text for text in texts),
    }


class Recorder(pagerduty.EventsApiV2Client):
    """The client, which returns what it would send."""

    def post(self, path, json=None, **_):
        self.sent = (path, json)
        raise Sent


class Sent(Exception):
    pass


def of_pagerduty(body):
    client = Recorder(body["routing_key"])
    payload = body.get("payload", {})
    try:
        if body.get("event_action") == "trigger":
            client.trigger(
                payload["summary"],
                payload["source"],
                dedup_key=body["dedup_key"],
                severity=payload["severity"],
                custom_details=payload["custom_details"],
                links=body["links"],
                payload={key: payload[key] for key in ("class", "timestamp")},
            )
        elif body.get("event_action") == "resolve":
            client.resolve(body["dedup_key"])
        else:
            client.submit(
                payload["summary"],
                source=payload["source"],
                custom_details=payload["custom_details"],
                links=body["links"],
                timestamp=payload["timestamp"],
            )
    except Sent:
        pass
    return {"path": client.sent[0], "body": client.sent[1]}


CHECKS = {"slack": slack, "discord": of_discord, "pagerduty": of_pagerduty}

for line in sys.stdin:
    question = json.loads(line)
    print(json.dumps(CHECKS[question["target"]](question["body"])), flush=True)
