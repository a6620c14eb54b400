"""Tests of convert: python3 -m unittest discover -s tests/traces"""

import base64
import importlib.machinery
import importlib.util
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("convert", str(Path(__file__).with_name("convert")))
convert = importlib.util.module_from_spec(importlib.util.spec_from_loader("convert", LOADER))
LOADER.exec_module(convert)

POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  readinessGates: [{conditionType: example.com/gate}]
  volumes:
  - {name: v, secret: {secretName: s2, items: [{key: k, path: p}]}}
  containers:
  - name: c
    resources: {limits: {cpu: "1"}}
    env:
    - {name: A, valueFrom: {secretKeyRef: {name: s, key: a}}}
    envFrom:
    - {prefix: P_, configMapRef: {name: m}}
"""


def do(step, **more):
    return {"do": step, **more}


def kill(signal):
    return do("kill_container", container="c", signal=signal)


# The result of parsing a sentence; a name stands for a step without other fields.
SENTENCES = {
    "manifest dropped (10 pods)": "put?",
    "good manifest put back": "put?",
    "manifest replaced while the agent is down": "replace?",
    "manifest overwritten with text that does not parse": "corrupt_manifests",
    "manifest removed while the agent is down": "remove_manifests",
    "manifest file renamed": do("rename?", to=None),
    "the manifest's file renamed to other.yaml": do("rename?", to="other.yaml"),
    "pod created (2 pods)": "put?",
    "pod created again": "put?",
    "pod deleted": "delete?",
    "pod force-deleted while the agent is down": do("delete?", grace=0),
    "DELETE with gracePeriodSeconds 40": do("delete?", grace=40),
    "pod deleted with gracePeriodSeconds 1": do("delete?", grace=1),
    "mirror pod deleted": do("remark", text="mirror pod deleted"),
    "kubelet stopped (SIGTERM)": "stop_agent",
    "kubelet killed (SIGKILL)": "kill_agent",
    "kubelet started again": "start_agent",
    "kubelet healthy": do("remark", text="kubelet healthy"),
    "container runtime stopped": "stop_runtime",
    "container runtime killed (SIGKILL)": "kill_runtime",
    "container runtime started again": "start_runtime",
    "sandbox process killed with SIGKILL": "kill_sandbox",
    "sandbox stopped through the runtime from outside": "stop_sandbox",
    "sandbox removed through the runtime from outside": "remove_sandbox",
    "process of container c killed with SIGKILL from outside": kill("SIGKILL"),
    "process of container c killed with SIGTERM from outside": kill("SIGTERM"),
    "container c stopped through the runtime from outside": do("stop_container", container="c"),
    "container c removed through the runtime from outside": do("remove_container", container="c"),
    "image r/i:1 removed through the runtime from outside": do("remove_image", image="r/i:1"),
    "label patched": do("patch_pods", patch={"metadata": {"labels": {"patched": "yes"}}}),
    "annotation patched": do("patch_pods", patch={"metadata": {"annotations": {"patched": "yes"}}}),
    "image of init container c patched": do("image?", container="c"),
    "activeDeadlineSeconds patched": do("deadline?", seconds=None),
    "activeDeadlineSeconds patched to 5": do("deadline?", seconds=5),
    "tolerations patched": do("patch_pods", patch={"spec": {}}),
    "resources of container c patched": "resize?",
    "cpu of container c resized": "resize?",
    "pod resized": "resize?",
    "ephemeral container with a missing image added": "ephemeral?",
    "readiness gate's condition set": do("condition?", words=["readiness", "gate", "condition", "set"]),
    "configMap created": do("create_objects?", kind="ConfigMap"),
    "configMap updated": do("update_objects?", kind="ConfigMap"),
    "secret patched": do("update_objects?", kind="Secret"),
    "secret deleted": do("delete_objects", kind="Secret"),
    "expected state reached": "await_status",
    "running": "await_status",
    "third restart seen": "await_status",
    "pod ready": "await_status",
    "container c terminated": "await_status",
    "expected state NOT reached within the time limit":
        do("remark", text="expected state NOT reached within the time limit"),
    "12 s after the manifests": do("remark", text="12 s after the manifests"),
    "kubectl exec (rc 3)": do("remark", text="kubectl exec (rc 3)"),
}


class ConvertTest(unittest.TestCase):
    maxDiff = None

    def scenario(self, notes, manifest=POD, mode="api", **files):
        """A scenario in its own directory."""
        directory = Path(self.enterContext(tempfile.TemporaryDirectory())) / "s"
        directory.mkdir()
        about = f"A pod. [mode {mode}; t=0 is 2026-11-21T11:00:00.000+00:00; 1-min load 0.1]"
        lines = [about, *(f"t={at}s {text}" for at, text in notes)]
        (directory / "notes.txt").write_text("\n".join(lines) + "\n")
        (directory / "manifest.yaml").write_text(manifest)
        for name, entries in files.items():
            (directory / f"{name}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
            if name == "status":
                (directory / "status.json").write_text(json.dumps(entries))
        return directory

    def steps(self, *arguments, **files):
        plan, unread = convert.Scenario(self.scenario(*arguments, **files)).plan()
        self.assertEqual(unread, [])
        return [{key: value for key, value in step.items() if key != "at"} for step in plan["steps"]]

    def test_sentences_are_read(self):
        for sentence, expected in SENTENCES.items():
            expected = [do(expected) if isinstance(expected, str) else expected]
            with self.subTest(sentence):
                self.assertEqual(convert.read(sentence), expected)
        restarts = convert.read("kubelet restarted"), convert.read("container runtime restarted")
        self.assertEqual(restarts[0], [do("stop_agent"), do("start_agent")])
        self.assertEqual(restarts[1], [do("stop_runtime"), do("start_runtime")])
        self.assertIsNone(convert.read("something else"))

    def test_unread_sentence_becomes_remark_and_is_listed(self):
        directory = self.scenario([(0.0, "manifest dropped"), (1.5, "something else")], mode="static")
        with mock.patch.object(sys, "argv", ["convert", str(directory)]):
            with self.assertRaises(SystemExit) as ended:
                convert.main()
        self.assertEqual(ended.exception.code, "sentences that cannot be read:\ns: t=1.5s something else")
        plan = json.loads((directory / "steps.json").read_text())
        self.assertEqual(plan, {"about": "A pod.", "mode": "static", "steps": [
            {"at": 0.0, "do": "write_manifests", "documents": [0]},
            {"at": 1.5, "do": "remark", "text": "something else"},
            {"at": 1.5, "do": "end"},
        ]})

    def test_directory_of_scenarios_is_written_to_file(self):
        directory = self.scenario([(0.0, "pod created"), (4.0, "pod deleted"), (5.0, "recording window ends")])
        file = directory / "steps.jsonl"
        with mock.patch.object(sys, "argv", ["convert", str(directory.parent), str(file)]):
            convert.main()
        line = json.loads(file.read_text())
        self.assertEqual((line["name"], line["mode"]), ("s", "api"))
        self.assertEqual([step["do"] for step in line["steps"]], ["create_pods", "delete_pods", "end"])

    def test_manifests_are_replaced_by_documents_that_say_so_and_objects_come_first(self):
        config = "kind: ConfigMap\napiVersion: v1\nmetadata: {name: m}\ndata: {k: '%s'}\n"
        text = f"{config % 'old'}---{POD}---\n# replaces the document of the same name{POD}---\n# replaces\n{config % 'new'}"
        notes = ["manifest dropped", "manifest replaced", "configMap updated", "configMap deleted", "configMap created",
                 "manifest renamed", "manifest removed"]
        steps = self.steps(list(enumerate(notes)), text, mode="static")
        maps = [step["objects"][0]["data"] for step in steps if step["do"] == "apply_objects"]
        self.assertEqual(maps, [{"k": "old"}, {"k": "new"}, {"k": "old"}])
        self.assertEqual([step for step in steps if step["do"] != "apply_objects"], [
            do("write_manifests", documents=[1]),
            do("write_manifests", documents=[2]),
            do("delete_objects", kind="ConfigMap"),
            do("rename_manifest", to="s-renamed.yaml"),
            do("remove_manifests"),
            do("end"),
        ])

    def test_pod_of_file_on_node_with_server_is_not_an_object(self):
        config = {"annotations": {"kubernetes.io/config.source": "file"}}
        calls = [{"method": "RunPodSandbox", "request": {"config": config}}]
        steps = self.steps([(0, "manifest dropped"), (4, "pod deleted")], trace=calls)
        self.assertEqual([step["do"] for step in steps], ["write_manifests", "remove_manifests", "end"])

    def test_objects_that_the_manifest_lacks_have_what_containers_got(self):
        def created(**variables):
            envs = [{"key": key, "value": base64.b64encode(value.encode()).decode()} for key, value in variables.items()]
            return {"method": "CreateContainer", "request": {"config": {"metadata": {"name": "c"}, "envs": envs}}}

        calls = [created(A="1", P_X="2", KUBERNETES_PORT="3"), created(A="4", P_X="5")]
        notes = ["pod created", "secret created", "configMap created", "secret updated"]
        steps = self.steps(list(enumerate(notes)), trace=calls)
        data = [{it["metadata"]["name"]: it.get("data", it.get("stringData")) for it in step["objects"]}
                for step in steps if step["do"] == "apply_objects"]
        self.assertEqual(data, [{"s": {"a": "1"}, "s2": {"k": ""}}, {"m": {"X": "2"}}, {"s": {"a": "4"}, "s2": {"k": ""}}])

    def patch(self, sentence, status, **files):
        """The patch of a sentence, and the pod's statuses 2 s later."""
        entry = {"pod": "default/p", "metadata": {"name": "p", "uid": "u"}, "status": status}
        history = [{"t": 0.1, **entry, "status": {}}, {"t": 7.0, **entry}]
        steps = self.steps([(0, "pod created"), (5, sentence), (9, "pod deleted")],
                           status_history=history, status=[entry], **files)
        self.assertEqual(steps[1]["do"], "patch_pods")
        return steps[1]["patch"]["spec"]

    def test_deadline_explains_when_the_pod_ended(self):
        status = {"reason": "DeadlineExceeded", "startTime": "2026-11-21T11:00:00Z"}
        self.assertEqual(self.patch("activeDeadlineSeconds patched", status), {"activeDeadlineSeconds": 7})
        self.assertEqual(self.patch("activeDeadlineSeconds patched", {}), {"activeDeadlineSeconds": convert.FAR})
        self.assertEqual(self.patch("activeDeadlineSeconds patched to 6", {}), {"activeDeadlineSeconds": 6})

    def test_resize_has_resources_that_were_reported_or_refused(self):
        reported = {"name": "c", "resources": {"limits": {"cpu": "2"}}}
        expected = {"name": "c", "resources": {"$patch": "replace", "limits": {"cpu": "2"}}}
        self.assertEqual(self.patch("pod resized", {"containerStatuses": [reported]}), {"containers": [expected]})
        message = "Node didn't have enough capacity: cpu, requested: 9000, capacity: 2000"
        conditions = [{"type": "Ready"}, {"type": "PodResizePending", "message": message}]
        resources = {"$patch": "replace", "limits": {"cpu": "9000m"}, "requests": {"cpu": "9000m"}}
        self.assertEqual(self.patch("pod resized", {"conditions": conditions}),
                         {"containers": [{"name": "c", "resources": resources}]})

    def test_image_is_that_of_the_restart(self):
        calls = [{"method": "CreateContainer", "request": {"config": {
            "metadata": {"name": "c"}, "image": {"user_specified_image": image}}}} for image in ("old", "new")]
        self.assertEqual(self.patch("image of container c patched", {}, trace=calls),
                         {"containers": [{"name": "c", "image": "new"}]})
        self.assertEqual(self.patch("image of container c patched", {}), {})

    def test_ephemeral_container_is_what_was_created(self):
        config = {
            "metadata": {"name": "dbg"}, "command": ["sh"], "tty": True,
            "envs": [{"key": "A", "value": "Yg=="}, {"key": "X_SERVICE_HOST", "value": "Yg=="}],
            "mounts": [{"host_path": "/r/pods/u/volumes/kubernetes.io~secret/v", "container_path": "/v", "readonly": True},
                       {"host_path": "/r/pods/u/etc-hosts", "container_path": "/etc/hosts"}],
            "linux": {"security_context": {"namespace_options": {"target_id": "1"}}},
        }
        calls = [
            {"method": "CreateContainer", "request": {"config": {"metadata": {"name": "c"}}}, "response": {"container_id": "1"}},
            {"method": "CreateContainer", "request": {"config": config}, "response": {"container_id": "2"}},
        ]
        status = {"ephemeralContainerStatuses": [{"name": "dbg", "image": "i"}]}
        self.assertEqual(self.patch("ephemeral container added", status, trace=calls), {"ephemeralContainers": [{
            "name": "dbg", "image": "i", "command": ["sh"], "tty": True, "env": [{"name": "A", "value": "b"}],
            "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}], "targetContainerName": "c",
        }]})

    def test_condition_is_what_is_named_or_what_the_gate_became(self):
        history = [{"t": 6.0, "pod": "default/p", "metadata": {"name": "p", "uid": "u"}, "status": {"conditions": [
            {"type": "Ready", "status": "True"}, {"type": "example.com/gate", "status": "False", "reason": "Why"}]}}]
        notes = [(0, "pod created"), (5, "readiness gate's condition set"), (7, "condition a.b/c set to true")]
        steps = self.steps(notes, status_history=history)
        self.assertEqual([step["condition"] for step in steps if step["do"] == "set_condition"], [
            {"type": "example.com/gate", "status": "False", "reason": "Why"},
            {"type": "a.b/c", "status": "True"},
        ])


if __name__ == "__main__":
    unittest.main()
