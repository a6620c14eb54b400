//! Dependencies between the packages of this workspace, packages that each must not use, and wire types (`cri::v1`), which only the
//! agent's CRI client may name.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::Path;
use std::process::Command;

use super::code::{code_only, lines_naming};
use super::{Tree, must_be_none, root, rust, tree, tree_of};

/// Packages that replace parts of std and tokio: any other package may depend on them, within [`FOREIGN`].
const ANYWHERE: [&str; 2] = ["compact", "tasks"];

/// Packages of this workspace → the packages of this workspace that they may depend on, for any purpose.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("compact", &[]),
    ("tasks", &[]),
    ("cri", &[]),
    ("cri-compiler", &[]),
    ("file-tree", &[]),
    ("file-copy", &["file-tree", "fuzz-target", "image"]),
    ("cri-log", &[]),
    ("fetch", &[]),
    ("fuzz-target", &[]),
    ("image-reference", &[]),
    ("image", &["fetch", "file-tree", "fuzz-target", "image-reference"]),
    ("keeper", &["file-tree", "fuzz-target", "shares"]),
    ("network", &["fuzz-target", "shares"]),
    ("shares", &[]),
    ("stream", &["fuzz-target"]),
    (
        "runtime-fake",
        &["cri", "file-copy", "file-tree", "fuzz-target", "image", "keeper", "network", "stream"],
    ),
    ("api", &["fuzz-target"]),
    ("cluster", &["api"]),
    ("agent", &["api", "cri", "fetch", "file-tree", "image-reference"]),
    ("plugins", &["cri"]),
    ("csi", &["agent", "api", "cri", "plugins"]),
    ("dra", &["agent", "api", "cri", "plugins"]),
    ("kube-node", &["agent", "api", "csi", "dra", "fetch", "file-tree"]),
    ("kubelet-server", &["agent", "api", "cri-log", "file-tree", "kube-node", "stream"]),
    ("machine", &["agent", "file-tree"]),
    ("managers", &["agent", "api", "cri", "plugins", "stream"]),
    ("proxy", &["cri", "fuzz-target"]),
    ("harness", &["cri", "cri-log", "file-tree", "image", "network", "proxy", "stream"]),
    ("registry", &["file-tree", "harness", "image-reference"]),
    ("check", &["cri", "file-tree", "harness", "proxy", "registry"]),
    ("bench", &["check", "cri", "file-tree", "harness"]),
    ("crib-base", &["agent", "api", "cri", "file-tree", "harness"]),
    (
        "crib-run",
        &[
            "agent",
            "api",
            "cluster",
            "cri",
            "crib-base",
            "file-tree",
            "harness",
            "machine",
            "runtime-fake",
        ],
    ),
    (
        "crib",
        &[
            "agent",
            "api",
            "bench",
            "check",
            "cluster",
            "cri",
            "cri-log",
            "crib-base",
            "crib-run",
            "csi",
            "dra",
            "fetch",
            "file-copy",
            "file-tree",
            "harness",
            "image",
            "kube-node",
            "kubelet-server",
            "machine",
            "managers",
            "network",
            "plugins",
            "proxy",
            "registry",
            "runtime-fake",
        ],
    ),
];

/// Dependencies that a package must not have, with the reason.
const FOREIGN: &[(&str, &[&str], &str)] = &[
    (
        "runtime-fake",
        &["k8s-openapi", "kube", "saphyr-parser"],
        "the runtime knows no pod, restart policy or manifest",
    ),
    (
        "keeper",
        &["cri", "fetch", "hyper", "tasks", "tokio", "tonic"],
        "a keeper speaks to its daemon only, and has one thread",
    ),
    (
        "api",
        &[
            "async-trait",
            "fetch",
            "hyper",
            "nix",
            "rustix",
            "rustls",
            "tasks",
            "tokio",
            "tonic",
            "tracing",
        ],
        "it decides about objects, and does nothing",
    ),
    (
        "cluster",
        &["async-trait", "cri", "hyper", "nix", "rustix", "tonic", "tracing"],
        "it stores objects and decides about them; it runs no pod and serves no request",
    ),
    (
        "agent",
        &[
            "libc",
            "netlink-packet-core",
            "netlink-packet-route",
            "netlink-sys",
            "nix",
            "oci-spec",
            "procfs",
            "prost",
            "rustix",
            "tar",
        ],
        "the agent knows no process, namespace or image layer",
    ),
    (
        "harness",
        &[
            "anyhow",
            "clap",
            "clap_complete",
            "clap_mangen",
            "comfy-table",
            "indicatif",
            "tracing-subscriber",
        ],
        "the library for tests has no command line",
    ),
];

/// The packages of the workspace with their normal, build and test dependencies.
pub(super) fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(root())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {errors}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let name = |value: &serde_json::Value| value["name"].as_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .map(|package| {
            let needs = package["dependencies"].as_array().unwrap();
            (name(package), needs.iter().map(name).collect())
        })
        .collect()
}

pub(super) fn dependency_violations(
    dependencies: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<String> {
    let mut offences = Vec::new();
    let ours: BTreeSet<&str> = dependencies.keys().map(String::as_str).collect();
    let known: BTreeMap<&str, &[&str]> = DEPENDENCIES.iter().copied().collect();
    for (package, needs) in dependencies {
        let Some(allowed) = known.get(package.as_str()) else {
            offences.push(format!("{package} is missing in DEPENDENCIES"));
            continue;
        };
        for need in needs.iter().filter(|need| ours.contains(need.as_str())) {
            if !allowed.contains(&need.as_str()) && !ANYWHERE.contains(&need.as_str()) {
                offences.push(format!("{package} depends on {need}"));
            }
        }
    }
    for (package, foreign, reason) in FOREIGN.iter().copied() {
        let Some(needs) = dependencies.get(package) else {
            offences.push(format!("there is no package {package}"));
            continue;
        };
        for need in foreign.iter().filter(|need| needs.contains(**need)) {
            offences.push(format!("{package} depends on {need}, yet {reason}"));
        }
    }
    offences
}

/// The only modules of the agent that name wire types: its clients of the runtime and of drivers, and its plugin code.
const AGENT_WIRE: [&str; 7] = [
    "agent/csi/src/grpc",
    "agent/dra/src/grpc",
    "agent/dra/src/tests",
    "agent/managers",
    "agent/plugins",
    "agent/src/cri/grpc",
    "agent/src/cri/wire",
];

fn wire_types_outside_the_client(tree: &Tree) -> Vec<String> {
    let mut offences = Vec::new();
    for (path, text) in rust(tree) {
        let module = path.trim_end_matches(".rs");
        let allowed = |place: &&str| Path::new(module).starts_with(place);
        if !path.starts_with("agent/") || AGENT_WIRE.iter().any(allowed) {
            continue;
        }
        let code = code_only(text);
        // `cri::` after a space or a semicolon is the package of the protocol: the agent's own module is `crate::cri`.
        for name in ["cri::v1", "use cri::", "use ::cri", "(::cri", " ::cri", "<::cri"] {
            let lines = lines_naming(&code, name);
            offences.extend(lines.iter().map(|line| format!("{path}:{line}: {name}")));
        }
    }
    offences
}

#[test]
fn agent_names_wire_types_in_its_client_only() {
    must_be_none("wire types", &wire_types_outside_the_client(&tree()));
}

#[test]
fn wire_types_are_found_outside_the_client() {
    let wire = tree_of(&[
        ("agent/src/decide/plan.rs", "//! x\nuse cri::v1::Pod;\nfn f(_: ::cri::v1::Pod) {}"),
        (
            "agent/src/worker.rs",
            "use cri::{self, v1};\nuse crate::{cri::Cri, x};\nuse super::cri::Y; // cri::v1",
        ),
        ("agent/src/cri/wire.rs", "use cri::v1;"),
        ("runtime-fake/src/wire.rs", "use cri::v1;"),
    ]);
    let places: BTreeSet<String> = wire_types_outside_the_client(&wire)
        .into_iter()
        .map(|offence| offence.rsplit_once(": ").unwrap().0.to_owned())
        .collect();
    let expected =
        ["agent/src/decide/plan.rs:2", "agent/src/decide/plan.rs:3", "agent/src/worker.rs:1"];
    assert_eq!(places, expected.map(str::to_owned).into());
}
