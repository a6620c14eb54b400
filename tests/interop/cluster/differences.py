"""differences.py ONE OTHER KNOWN: how two nodes' requests differ, of which ONE and OTHER are the audit logs of API servers.

A scenario is a namespace. Its requests are compared in their order, in streams of each pod: requests about the pod itself, its
events, and what it refers to; and of the node those of each resource. What no two runs have in common (uids, times, addresses, ids) is
replaced by a word. KNOWN has the differences that are as they should be: scenario, a regular expression that a line begins with, and
why, between tabs. A line of what is printed begins with - if ONE alone sent it, and with + if OTHER alone did.
"""

import collections
import difflib
import fnmatch
import json
import re
import sys

NODE = "system:node:n1"
# Requests that a node sends periodically.
PERIODIC = {"leases"}
WORDS = [
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r"\b10(\.\d+){3}\b", "ADDRESS"),
    (r'("resourceVersion": )"\d+"', r'\1"VERSION"'),
    (r"crib://[0-9a-f]+", "CONTAINER"),
    (r"\b[0-9a-f]{64}\b", "HASH"),
    (r"/[\w/.-]*/crib-cluster\.\w+", "WORK"),
    (r"\bin [\d.]+(ms|s|µs|m\d+s) \([\d.]+(ms|s|µs|m\d+s) including waiting\)", "in TIME"),
    (r"(\.)[0-9a-f]{15,16}\b", r"\1NUMBER"),
    (r"\bkube-api-access-\w{5}\b", "kube-api-access-NAME"),
    # Names of a Job's pods, and of static pods' hashes.
    (r"\bonce-\w{5}\b", "once-POD"),
    (r'"[0-9a-f]{32}"', '"HASH"'),
]


def normal(text):
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    return text


def plain(value):
    """Without empty fields, which Go and serde write differently, and without the transition times of conditions: whether their
    second differs from the last one is nondeterministic."""
    if isinstance(value, dict):
        is_nothing = lambda key: key in ("lastProbeTime", "lastState") and not value[key]
        # Addresses of one family, whatever the runtime has before it knows the node's range.
        cut = lambda key: value[key][:1] if key == "podIPs" else value[key]
        return {key: plain(cut(key)) for key in value if not is_nothing(key) and key != "lastTransitionTime"}
    if isinstance(value, list):
        return [plain(of) for of in value]
    return value


def streams(path):
    """The requests of a node: {scenario: {stream: [(what, {path: value})]}}."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    with open(path) as file:
        entries = [entry for entry in map(json.loads, file) if entry["user"]["username"] == NODE]
    entries.sort(key=lambda entry: entry["requestReceivedTimestamp"])
    for entry in entries:
        of = entry.get("objectRef")
        if not of or of["resource"] in PERIODIC:
            continue
        stream, what, body = request(entry, of)
        requests = found[of.get("namespace", "the node")][normal(stream)]
        asked = (normal(what), dict(fields("", json.loads(normal(json.dumps(plain(body)))))))
        # The number of repeated requests, and of pods that share an object, is irrelevant.
        if entry["verb"] not in ("list", "watch") or asked not in requests:
            requests.append(asked)
    return found


def request(entry, of):
    """The stream of a request, its short description, and its body."""
    body = entry.get("requestObject") or {}
    verb, name = entry["verb"], of.get("name", "")
    resource = of["resource"] + ("/" + of["subresource"] if "subresource" in of else "")
    if verb in ("list", "watch"):
        # A kubelet's first list is a watch that begins with all objects. Which one comes first is nondeterministic.
        name = " ".join(re.findall(r"(?:field|label)Selector=([^&]*)", entry["requestURI"]))
        resource = f"{resource} {name}".strip()
        return resource, f"follow {resource}", {}
    what, stream = f"{verb} {resource} {name}", resource
    if of["resource"] == "events":
        stream = "events of " + (body.get("involvedObject", {}).get("name") or name.rpartition(".")[0])
        what = f"{verb} event " + " ".join(str(body[key]) for key in ("reason", "message", "count") if key in body)
        body = {key: body[key] for key in body if key not in ("metadata", "firstTimestamp", "lastTimestamp", "eventTime")}
    elif of["resource"] == "pods":
        stream = "pod " + (name or body.get("metadata", {}).get("name"))
        what += "".join(f" {about}" for about in shown(body.get("status", {})))
    code = entry.get("responseStatus", {}).get("code", 0)
    return stream, what.strip() + (f" -> {code}" if code >= 400 else ""), body


def shown(status):
    """The subject of a status, by which requests of two nodes are matched."""
    yield from (status[key] for key in ("phase", "reason") if key in status)
    for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        for container in status.get(kind) or []:
            state = container.get("state") or {"none": {}}
            (name, about), = state.items()
            yield f"{container['name']}:{(about or {}).get('reason') or name}"
    yield from (f"{of['type']}={of['status']}" for of in status.get("conditions") or [] if "status" in of)


def fields(path, value):
    """The leaves of a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items:
        yield path, json.dumps(value)
    for key, of in items:
        yield from fields(f"{path}.{key}", of)


def differences(ones, others):
    """The differences of two streams, one a line: requests of only one of them, and differing fields of requests of both."""
    matcher = difflib.SequenceMatcher(None, [what for what, _ in ones], [what for what, _ in others], autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            yield from (f"- {what}" for what, _ in ones[i:j])
            yield from (f"+ {what}" for what, _ in others[k:m])
            continue
        for (what, one), (_, other) in zip(ones[i:j], others[k:m]):
            for path in sorted(one.keys() | other.keys()):
                if one.get(path) != other.get(path):
                    yield from (f"{sign} {what}: {path} {of[path]}" for sign, of in (("-", one), ("+", other)) if path in of)


def main(one, other, known):
    known = [line.rstrip("\n").split("\t") for line in open(known) if line.strip() and not line.startswith("#")]
    ones, others = streams(one), streams(other)
    used, differing = set(), 0
    for scenario in sorted(ones.keys() | others.keys()):
        lines = []
        for stream in sorted(ones[scenario].keys() | others[scenario].keys()):
            found = differences(ones[scenario][stream], others[scenario][stream])
            lines += [f"  {stream}: {line}" for line in found if not is_known(known, used, scenario, line)]
        if lines:
            differing += 1
            print(f"{scenario}:", *lines, sep="\n")
    for number, (scenario, pattern, *_) in enumerate(known):
        if number not in used:
            print(f"no longer seen: {scenario} {pattern}")
    print(f"{differing} of {len(ones.keys() | others.keys())} scenarios differ")
    return differing


def is_known(known, used, scenario, line):
    for number, (where, pattern, *_) in enumerate(known):
        if fnmatch.fnmatch(scenario, where) and re.match(pattern, line):
            used.add(number)
            return True
    return False


if __name__ == "__main__":
    sys.exit(1 if main(*sys.argv[1:]) else 0)
