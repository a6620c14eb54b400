//! Rules of a container's rights where two settings meet: what is dropped and added, and what is privileged and read-only.

use super::security::{number, output_with, status_of};
use crate::check::context::Context;
use crate::check::outcome::{Verdict, equal};
use crate::check::rule::sources::KUBELET;
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-SEC-016",
        severity: Severity::Must,
        says: "A container that drops ALL capabilities and adds one has that one alone, as pods of the restricted profile do.",
        source: KUBELET,
        tags: &["kubelet", "capabilities"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request drop config.linux.security_context.capabilities.add_capabilities",
            "CreateContainer request drop config.linux.security_context.capabilities.drop_capabilities",
            "CreateContainer request drop config.linux.security_context.capabilities",
        ],
        body: |x| Box::pin(added_capability_is_left(x)),
    },
    Rule {
        id: "CRI-SEC-017",
        severity: Severity::Must,
        says: "The root of a privileged container is read-only if that is asked for.",
        source: KUBELET,
        tags: &["kubelet", "mounts"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request drop config.linux.security_context.readonly_rootfs",
            "CreateContainer request set config.linux.security_context.readonly_rootfs false",
        ],
        body: |x| Box::pin(root_of_privileged_container_is_read_only(x)),
    },
];

const NET_BIND_SERVICE: u64 = 1 << 10;

async fn added_capability_is_left(x: &Context) -> Verdict {
    let status = status_of(x, |security| {
        let capabilities = security.capabilities.get_or_insert_default();
        capabilities.drop_capabilities = vec!["ALL".to_owned()];
        capabilities.add_capabilities = vec!["NET_BIND_SERVICE".to_owned()];
    })
    .await?;
    let set = number(&status, "CapEff")?;
    equal(
        "CapEff with ALL dropped and NET_BIND_SERVICE added",
        &format!("{set:x}"),
        &format!("{NET_BIND_SERVICE:x}"),
    )
}

async fn root_of_privileged_container_is_read_only(x: &Context) -> Verdict {
    let script = "touch /written 2>/dev/null && echo written; echo done";
    let output = output_with(x, script, |security| {
        security.privileged = true;
        security.readonly_rootfs = true;
    })
    .await?;
    equal("the output", output.as_str(), "done\n")
}
