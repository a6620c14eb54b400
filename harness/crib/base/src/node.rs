//! The local machine as a node: its name, and the labels that a kubelet sets.

use std::collections::BTreeMap;

/// The name of this machine, which is the node name of its pods.
pub fn node_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty())
        .map_or_else(|| "localhost".to_owned(), |name| name.to_lowercase())
}

/// Adds the labels that a kubelet sets on every node (pkg/kubelet/kubelet_node_status.go, initialNode).
pub fn with_own_labels(
    name: &str,
    mut labels: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    for (key, value) in [
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ] {
        labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    labels
}
