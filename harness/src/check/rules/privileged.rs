//! The rule of privileged containers: what they have of the host.

use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, equal};
use crate::check::rule::sources::CONTAINERD;
use crate::check::rule::{Rule, Severity};
use crate::fixture;
use crate::pod::Pod;

pub(super) const RULES: &[Rule] = &[Rule {
    id: "CRI-SEC-024",
    severity: Severity::Should,
    says: "A privileged container has the devices of the host, and another one has not.",
    source: CONTAINERD,
    tags: &["devices"],
    calls: &["CreateContainer"],
    faults: &[
        "CreateContainer request drop config.linux.security_context.privileged",
        "CreateContainer request set config.linux.security_context.privileged true",
    ],
    body: |x| Box::pin(privileged_container_has_devices(x)),
}];

/// Runs a script in a pod of its own, both privileged or neither, and returns what it wrote.
async fn output(x: &Context, text: &str, privileged: bool) -> Verdict<String> {
    let mut sandbox = x.sandbox();
    if privileged {
        let linux = sandbox.linux.get_or_insert_default();
        linux.security_context.get_or_insert_default().privileged = true;
    }
    let mut config = x.script("c", text);
    fixture::security(&mut config).privileged = privileged;
    let pod: Pod = x.pod_of(sandbox).await?;
    x.output_in(&pod, config).await
}

/// A device that a host has, and a container that is not privileged has not.
const DEVICE: &str = "/dev/kmsg";

async fn privileged_container_has_devices(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    x.needs_users()?;
    if !std::path::Path::new(DEVICE).exists() {
        return Err(Outcome::Skipped(format!("this machine has no {DEVICE}")));
    }
    for (privileged, expected) in [(true, "there\n"), (false, "not there\n")] {
        let text = format!("[ -c {DEVICE} ] && echo there || echo not there");
        let output = output(x, &text, privileged).await?;
        let what = format!("{DEVICE} in a container with privileged {privileged}");
        equal(&what, output.as_str(), expected)?;
    }
    Ok(())
}
