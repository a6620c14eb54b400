"""Tests a client of the Container Runtime Interface against a `crib runtime` of its own.

Needs grpcio, and the messages as cri_pb2.py, which the compiler of grpcio-tools writes:

    python3 -m grpc_tools.protoc -I ../../proto --python_out=. cri.proto
    python3 -m unittest -v
"""

import os
import subprocess
import tempfile
import time
import unittest

import cri_pb2 as cri
import grpc


class Pods(unittest.TestCase):
    def setUp(self):
        """Starts a runtime that ends, with all its pods, when the test does or dies."""
        self.dir = self.enterContext(tempfile.TemporaryDirectory())
        socket = f"unix:{self.dir}/crib.sock"
        command = [os.environ.get("CRIB_BIN", "crib"), "runtime", "--until-stdin-closes", "--ephemeral"]
        command += ["--listen", f"unix://{self.dir}/crib.sock", "--state-dir", f"{self.dir}/state", "--log-level", "warn"]
        runtime = self.enterContext(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        self.assertTrue(runtime.stdout.readline())  # listening on unix://…
        self.channel = self.enterContext(grpc.insecure_channel(socket))

    def call(self, method, **fields):
        service = "ImageService" if "Image" in method else "RuntimeService"
        request, response = getattr(cri, f"{method}Request"), getattr(cri, f"{method}Response")
        unary = self.channel.unary_unary(f"/runtime.v1.{service}/{method}", request.SerializeToString, response.FromString)
        return unary(request(**fields), timeout=60)

    def test_log_and_exit_code(self):
        host = cri.ImageSpec(image="crib.local/host")
        sandbox = cri.PodSandboxConfig(metadata=dict(name="job", uid="1", namespace="test"), log_directory=self.dir)
        script = ["sh", "-c", "echo hello; exit 7"]
        config = cri.ContainerConfig(metadata=dict(name="main"), image=host, command=script, log_path="main.log")
        self.call("PullImage", image=host)
        pod = self.call("RunPodSandbox", config=sandbox).pod_sandbox_id
        create = self.call("CreateContainer", pod_sandbox_id=pod, config=config, sandbox_config=sandbox)
        self.call("StartContainer", container_id=create.container_id)
        status = cri.ContainerStatus()
        while status.state != cri.CONTAINER_EXITED:
            time.sleep(0.01)
            status = self.call("ContainerStatus", container_id=create.container_id).status
        self.assertEqual(status.exit_code, 7)
        with open(status.log_path) as log:
            self.assertTrue(log.read().endswith(" stdout F hello\n"))
