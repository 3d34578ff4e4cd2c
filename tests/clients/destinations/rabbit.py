"""A consumer at RabbitMQ by a published library.

Prints the name of a queue that it made and bound to `amq.topic`. Then answers each line with what lies in
the queue. Removes it at the end of its input.
"""

import json
import sys
import uuid

import pika

host, port = sys.argv[1].rsplit(":", 1)
connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), heartbeat=0))
channel = connection.channel()
queue = f"culvert-test-{uuid.uuid4().hex}"
channel.queue_declare(queue)
channel.queue_bind(queue, "amq.topic", f"{queue}.#")
print(json.dumps(queue), flush=True)
for _ in sys.stdin:
    found = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            break
        found.append(
            {
                "key": method.routing_key,
                "id": properties.message_id,
                "type": properties.type,
                "persistent": properties.delivery_mode == 2,
                "content_type": properties.content_type,
                "body": json.loads(body),
            }
        )
    print(json.dumps(found), flush=True)
channel.queue_delete(queue)
connection.close()
