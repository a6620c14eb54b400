//! The wire names of plans: keepers of earlier versions read them, and records contain them.

use serde_json::{Value, json};

use super::*;

fn is_kept<T: Serialize + serde::de::DeserializeOwned>(plan: &Value) {
    let read: T = serde_json::from_value(plan.clone()).unwrap();
    assert_eq!(&serde_json::to_value(read).unwrap(), plan);
}

#[test]
fn pod_plan_keeps_names_of_earlier_versions() {
    is_kept::<PodPlan>(&json!({
        "rung": "root",
        "directory": "/s",
        "ephemeral": false,
        "hostname": "web",
        "own_network": true,
        "network_given": true,
        "own_ipc": true,
        "shared_pids": false,
        "user_namespace": {
            "uids": [{"inside": 0, "outside": 65536, "count": 65536}],
            "gids": [{"inside": 0, "outside": 65536, "count": 65536}],
        },
        "sysctls": [["net.ipv4.ip_forward", "1"]],
        "host_ports": [],
        "cgroup": null,
        "label": "s0:c1",
        "open_files": 1024,
    }));
}

#[test]
fn launch_plan_keeps_names_of_earlier_versions() {
    is_kept::<LaunchPlan>(&json!({
        "rung": "rootless",
        "directory": "/s/c",
        "root": {"layers": ["/l"]},
        "ids": null,
        "read_only_root": true,
        "mounts": [{
            "source": {"host": "/h"},
            "target": "/t",
            "read_only": true,
            "recursive_read_only": false,
            "propagation": "from_host",
            "forbidden": ["programs", "set_uid", "devices", "access_times", "directory_access_times", "links"],
            "ids": null,
            "relabel": false,
        }, {
            "source": "own",
            "target": "/v",
            "read_only": false,
            "recursive_read_only": false,
            "propagation": "both",
            "forbidden": [],
            "ids": null,
            "relabel": true,
        }],
        "devices": [{
            "path": "/dev/a",
            "host": "/dev/b",
            "node": {"kind": "character", "major": 1, "minor": 3, "mode": 438, "uid": 0, "gid": 5},
            "access": "rw",
        }],
        "masked_paths": ["/proc/kcore"],
        "read_only_paths": ["/proc/sys"],
        "pids": "pod",
        "host_ipc": false,
        "host_network": false,
        "privileged": false,
        "log": null,
        "tty": true,
        "stdin": true,
        "stdin_once": false,
        "oom_score_adj": -997,
        "cgroup": null,
        "process": {
            "argv": ["sh"],
            "env": ["A=b"],
            "cwd": "/",
            "user": {"user": "web", "group": "www", "groups": [7], "merge_groups": true},
            "capabilities": [0],
            "ambient": [],
            "no_new_privs": true,
            "seccomp": null,
            "confinement": {"apparmor": "p", "selinux": "l", "files": "f", "kernel": null},
        },
        "restore": {
            "program": "/criu",
            "directory": "/s/c/restore",
            "mounts": [],
            "streams": [],
            "user": {"uid": 1, "gid": 2, "groups": [3], "home": "/"},
        },
    }));
}
