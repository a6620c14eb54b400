"""Calls a runtime with the authorities that grpcio sends for unix sockets: dial.py SOCKET."""

import sys

import grpc

METHODS = [f"/runtime.v1.RuntimeService/{name}" for name in ("Version", "ListPodSandbox", "Version")]


def call(target, options):
    """Makes calls whose requests are empty messages; the answers stay bytes."""
    with grpc.insecure_channel(target, options=options) as channel:
        for method in METHODS:
            unary = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
            unary(b"", timeout=60)


def main(socket):
    clients = [("no authority of its own", [])]
    for authority in (socket, socket.replace("/", "%2F"), "unix:" + socket, "localhost", "[::]:50051"):
        clients.append((f"the authority {authority}", [("grpc.default_authority", authority)]))
    for name, options in clients:
        try:
            call("unix:" + socket, options)
        except grpc.RpcError as error:
            sys.exit(f"grpcio with {name}: {error.code()}: {error.details()}")
        print(f"-- grpcio with {name}")
    print(f"{len(clients)} passed, 0 failed")


main(sys.argv[1])
