"""Amazon's services on a free port of this machine, with authentication on.

Prints one line of JSON: where they are, and the keys of a user who may do everything. Then each line of
JSON on the standard input is a question that gets a line for an answer. Ends with its input.
"""

import gzip
import json
import logging
import sys
import urllib.request

import boto3
from moto.server import ThreadedMotoServer

REGION = "us-east-1"
ACCOUNT = "123456789012"
ALL = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


def say(answer):
    print(json.dumps(answer), flush=True)


class Amazon:
    def __init__(self):
        # The answers are the only output.
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
        iam = self.client("iam")
        iam.create_user(UserName="culvert")
        iam.put_user_policy(UserName="culvert", PolicyName="all", PolicyDocument=json.dumps(ALL))
        made = iam.create_access_key(UserName="culvert")["AccessKey"]
        trust = {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:user/culvert"},
                    "Action": "sts:AssumeRole",
                    "Condition": {"StringEquals": {"sts:ExternalId": "ac_1"}},
                }
            ],
        }
        iam.create_role(RoleName="events", AssumeRolePolicyDocument=json.dumps(trust))
        iam.put_role_policy(RoleName="events", PolicyName="all", PolicyDocument=json.dumps(ALL))
        self.client("kinesis").create_stream(StreamName="events", ShardCount=2)
        self.client("s3").create_bucket(Bucket="firehose-bucket")
        self.client("s3").create_bucket(Bucket="event.bucket")
        self.client("firehose").create_delivery_stream(
            DeliveryStreamName="events",
            ExtendedS3DestinationConfiguration={
                "RoleARN": f"arn:aws:iam::{ACCOUNT}:role/events",
                "BucketARN": "arn:aws:s3:::firehose-bucket",
            },
        )
        self.client("logs").create_log_group(logGroupName="/edge/events")
        sqs = self.client("sqs")
        sqs.create_queue(QueueName="events")
        sqs.create_queue(QueueName="events.fifo", Attributes={"FifoQueue": "true"})
        sqs.create_queue(QueueName="of-the-bus")
        # What comes to the bus is read from a queue.
        bus = self.client("events")
        bus.create_event_bus(Name="events")
        pattern = json.dumps({"source": ["culvert"], "detail-type": [{"prefix": ""}]})
        bus.put_rule(Name="all", EventBusName="events", EventPattern=pattern)
        queue = {"Id": "queue", "Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:of-the-bus"}
        bus.put_targets(Rule="all", EventBusName="events", Targets=[queue])
        request = urllib.request.Request(self.url + "/moto-api/reset-auth", data=b"0", method="POST")
        request.add_header("content-type", "text/plain")
        urllib.request.urlopen(request).read()
        self.keys = {
            "aws_access_key_id": made["AccessKeyId"],
            "aws_secret_access_key": made["SecretAccessKey"],
        }

    def client(self, name):
        return boto3.client(name, region_name=REGION, endpoint_url=self.url, **self.keys)

    def kinesis(self):
        client = self.client("kinesis")
        found = []
        for shard in client.list_shards(StreamName="events")["Shards"]:
            at = client.get_shard_iterator(
                StreamName="events", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while True:
                got = client.get_records(ShardIterator=at, Limit=10000)
                found += [[r["PartitionKey"], json.loads(r["Data"])] for r in got["Records"]]
                at = got.get("NextShardIterator")
                if not got["Records"] or not at:
                    break
        return found

    def objects(self, bucket):
        client = self.client("s3")
        found = []
        for item in client.list_objects_v2(Bucket=bucket).get("Contents", []):
            body = client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            if item["Key"].endswith(".gz"):
                body = gzip.decompress(body)
            found += [[item["Key"], json.loads(line)] for line in body.splitlines()]
        return found

    def firehose(self):
        return self.objects("firehose-bucket")

    def s3(self):
        return self.objects("event.bucket")

    def messages(self, queue):
        client = self.client("sqs")
        url = client.get_queue_url(QueueName=queue)["QueueUrl"]
        found = []
        while True:
            got = client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                MessageAttributeNames=["All"],
                AttributeNames=["All"],
            ).get("Messages", [])
            for one in got:
                # Messages are read once; those of a group come after those before them are gone.
                client.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
                kind = one.get("MessageAttributes", {}).get("event_type", {}).get("StringValue")
                found.append([kind, json.loads(one["Body"]), one["Attributes"]])
            if not got:
                return found

    def sqs(self):
        return self.messages("events")

    def fifo(self):
        return self.messages("events.fifo")

    def bus(self):
        return self.messages("of-the-bus")

    def logs(self):
        client = self.client("logs")
        found = []
        streams = client.describe_log_streams(logGroupName="/edge/events")["logStreams"]
        for stream in streams:
            name = stream["logStreamName"]
            got = client.get_log_events(
                logGroupName="/edge/events", logStreamName=name, startFromHead=True
            )
            found += [[name, json.loads(e["message"]), e["timestamp"]] for e in got["events"]]
        return found


def main():
    amazon = Amazon()
    say({"url": amazon.url, **amazon.keys})
    for line in sys.stdin:
        say(getattr(amazon, json.loads(line))())


main()
