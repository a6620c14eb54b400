//! Rules for the inheritable and the bounding capability set, and for lists of added and dropped capabilities.

use crate::prelude::*;
use crate::rules::security::{number, status_of};

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-SEC-025": "The inheritable capability set of containers and ExecSync commands is empty, for root and for other users (CVE-2022-24769).",
        CONTAINERD, tags ["capabilities", "user", "exec"], calls [CreateContainer, ExecSync],
        inheritable_set_is_empty given [users], faults [
            "CreateContainer request set config.linux.security_context.capabilities {\"add_capabilities\": [\"CHOWN\"], \"add_ambient_capabilities\": [\"CHOWN\"]}",
            "ExecSync drop stdout",
            "ExecSync set stdout \"Q2FwSW5oOgkwMDAwMDAwMGE4MDQyNWZiCg==\"",
        ];
    Must "CRI-SEC-026": "A non-root container cannot gain SYS_ADMIN, because its bounding set does not contain SYS_ADMIN.",
        API, tags ["kubelet", "capabilities", "user"], calls [CreateContainer],
        bounding_set_is_small given [users], faults [
            "CreateContainer request set config.linux.security_context.privileged true",
            "CreateContainer request set config.linux.security_context.capabilities {\"add_capabilities\": [\"SYS_ADMIN\"]}",
            "CreateContainer request set config.linux.security_context.capabilities {\"add_capabilities\": [\"ALL\"]}",
        ];
    Should "CRI-SEC-027": "A capability that is dropped by name is missing even if ALL is added.",
        KUBELET, tags ["kubelet", "capabilities"], calls [CreateContainer],
        one_of_all_is_dropped, faults [
            "CreateContainer request drop config.linux.security_context.capabilities.drop_capabilities",
            "CreateContainer request set config.linux.security_context.capabilities {\"drop_capabilities\": [\"ALL\"]}",
            "CreateContainer request set config.linux.security_context.privileged true",
        ];
    Should "CRI-SEC-028": "Capabilities can be dropped by lower-case names.",
        CONTAINERD, tags ["capabilities"], calls [CreateContainer],
        lower_case_names_are_known, faults [
            "CreateContainer request drop config.linux.security_context.capabilities",
            "CreateContainer request drop config.linux.security_context.capabilities.drop_capabilities",
            "CreateContainer request set config.linux.security_context.capabilities {\"drop_capabilities\": [\"net_raw\"]}",
            "CreateContainer request set config.linux.security_context.capabilities {\"drop_capabilities\": [\"ALL\"]}",
        ];
};

const CHOWN: u64 = 1;
const KILL: u64 = 1 << 5;
const NET_RAW: u64 = 1 << 13;
const SYS_ADMIN: u64 = 1 << 21;

/// Fails if a set in `/proc/self/status` has one of these capabilities.
fn lacks(status: &str, set: &str, absent: u64) -> Verdict {
    let seen = number(status, set)?;
    ensure(seen & absent == 0, set, &format!("none of {absent:x}"), format!("{seen:x}"))
}

/// Fails unless a set in `/proc/self/status` has these capabilities.
fn has(status: &str, set: &str, present: u64) -> Verdict {
    let seen = number(status, set)?;
    ensure(seen & present == present, set, &format!("all of {present:x}"), format!("{seen:x}"))
}

async fn inheritable_set_is_empty(x: &Context) -> Verdict {
    for user in [0, 1000] {
        let pod = x.pod().await?;
        let text = "cat /proc/self/status; echo end; while :; do sleep 1000; done";
        let mut config = x.script("c", text);
        fixture::security(&mut config).run_as_user = Some(v1::Int64Value { value: user });
        let id = pod.start(config).await?;
        x.logged(&pod, "end").await?;
        let lines = x.lines(&pod).into_iter().map(|line| line.text + "\n");
        let of_container = lines.collect::<String>();
        let of_command = x.client.sh(&id, "cat /proc/self/status").await?;
        for (process, status) in
            [("the container", of_container), ("a command of ExecSync", of_command)]
        {
            let what = format!("CapInh of {process} of user {user}");
            let set = number(&status, "CapInh")?;
            equal(&what, &format!("{set:x}"), "0")?;
        }
    }
    Ok(())
}

async fn bounding_set_is_small(x: &Context) -> Verdict {
    let status = status_of(x, |security| {
        security.run_as_user = Some(v1::Int64Value { value: 1234 });
    })
    .await?;
    lacks(&status, "CapBnd", SYS_ADMIN)
}

async fn one_of_all_is_dropped(x: &Context) -> Verdict {
    let status = status_of(x, |security| {
        let capabilities = security.capabilities.get_or_insert_default();
        capabilities.add_capabilities = vec!["ALL".to_owned()];
        capabilities.drop_capabilities = vec!["SYS_ADMIN".to_owned()];
    })
    .await?;
    lacks(&status, "CapEff", SYS_ADMIN)?;
    lacks(&status, "CapBnd", SYS_ADMIN)?;
    has(&status, "CapEff", CHOWN)
}

async fn lower_case_names_are_known(x: &Context) -> Verdict {
    let status = status_of(x, |security| {
        let capabilities = security.capabilities.get_or_insert_default();
        // CRI-O gives no container NET_RAW by default, and every runtime gives it CHOWN.
        capabilities.drop_capabilities = vec!["net_raw".to_owned(), "chown".to_owned()];
    })
    .await?;
    lacks(&status, "CapEff", NET_RAW | CHOWN)?;
    lacks(&status, "CapBnd", NET_RAW | CHOWN)?;
    has(&status, "CapEff", KILL)
}
