"""A cluster of three brokers, as librdkafka plays them, on free ports of this machine.

Prints its addresses. Then answers each line, the name of a topic, with its records so far, in the order
of each partition.
"""

import json
import sys

from confluent_kafka import Consumer, Producer, TopicPartition

TOPIC = "events"

# The cluster lives as long as the client that plays it.
player = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 3})
known = player.list_topics(TOPIC, timeout=30)
brokers = [f"{broker.host}:{broker.port}" for broker in known.brokers.values()]
print(json.dumps(brokers), flush=True)


def records(topic):
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(brokers),
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found, ended = [], set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        if message is None:
            break
        if message.error():
            ended.add(message.partition())
            continue
        found.append(
            {
                "partition": message.partition(),
                "key": message.key() and message.key().decode(),
                "value": json.loads(message.value()),
                "headers": {name: value.decode() for name, value in message.headers()},
                "timestamp": message.timestamp()[1],
            }
        )
    consumer.close()
    return found


for line in sys.stdin:
    print(json.dumps(records(json.loads(line))), flush=True)
