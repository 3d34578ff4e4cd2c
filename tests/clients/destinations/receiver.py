"""A receiver of OpenTelemetry on a free port, as its own definition of the service makes one.

Prints its address. Then answers each line with the records of all exports so far.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from records import plain_request

exports = []


class Logs(logs_service_pb2_grpc.LogsServiceServicer):
    def Export(self, request, context):
        metadata = dict(context.invocation_metadata())
        if metadata.get("x-token") == "wrong":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no such token: wr0ng")
        exports.append(plain_request(request))
        return logs_service_pb2.ExportLogsServiceResponse()


server = grpc.server(ThreadPoolExecutor(2))
logs_service_pb2_grpc.add_LogsServiceServicer_to_server(Logs(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(json.dumps(f"http://127.0.0.1:{port}"), flush=True)
for _ in sys.stdin:
    print(json.dumps(exports), flush=True)
server.stop(None)
