//! Decides which kernel parameters a pod may set: pure.

use crate::launch::invalid::{Invalid, invalid};

/// Allows only parameters of the pod's own namespaces (Kubernetes calls the others node-level).
pub(super) fn check(name: &str, own_network: bool, own_ipc: bool) -> Result<(), Invalid> {
    let dotted = name.replace('/', ".");
    if dotted
        .split('.')
        .any(|part| part.is_empty() || part == "..")
    {
        return invalid(format!("sysctl {name:?} is not a name"));
    }
    let ipc = dotted.starts_with("fs.mqueue.")
        || dotted.starts_with("kernel.msg")
        || dotted.starts_with("kernel.sem")
        || dotted.starts_with("kernel.shm");
    match (dotted.starts_with("net."), ipc) {
        (true, _) if own_network => Ok(()),
        (_, true) if own_ipc => Ok(()),
        (true, _) | (_, true) => invalid(format!(
            "sysctl {name:?} would change the host: the pod has no namespace of its own for it"
        )),
        (false, false) => invalid(format!(
            "sysctl {name:?} has no namespace: it would change the host"
        )),
    }
}
