//! Rules for seccomp profiles: their files, error codes and argument conditions.

use std::path::{Path, PathBuf};

use cri::v1::security_profile::ProfileType;

use crate::prelude::*;
use crate::rules::security::output_with;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SEC-005": "A seccomp profile in a file on the host (Localhost) is applied.",
        CRITEST, tags ["kubelet", "seccomp"], calls [CreateContainer],
        profile_of_host_is_applied given [namespaces], faults [
            "CreateContainer request drop config.linux.security_context.seccomp",
            "CreateContainer request set config.linux.security_context.seccomp {\"profile_type\": \"Unconfined\"}",
        ];
    Must "CRI-SEC-006": "A container whose seccomp profile does not exist is refused.",
        CRITEST, tags ["kubelet", "seccomp"], calls [CreateContainer],
        missing_profile_is_refused given [namespaces, pod], faults [
            "CreateContainer request drop config.linux.security_context.seccomp",
            "CreateContainer swallow",
        ];
    Must "CRI-SEC-021": "A seccomp profile blocks a system call even for a process with the needed capability; Unconfined blocks nothing, and a privileged container ignores the profile.",
        CRITEST, tags ["kubelet", "seccomp", "capabilities"], calls [CreateContainer],
        profile_counts_beside_capabilities given [namespaces], faults [
            "CreateContainer request drop config.linux.security_context.seccomp",
            "CreateContainer request drop config.linux.security_context.privileged",
            "CreateContainer request drop config.linux.security_context.capabilities",
        ];
};

/// A profile that blocks mkdir.
const PROFILE: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}"#;

fn with_profile(x: &Context, path: &Path) -> v1::ContainerConfig {
    let mut config = x.script("c", "mkdir /tmp/made 2>/dev/null && echo made; echo end");
    fixture::security(&mut config).seccomp = Some(of_file(path));
    config
}

/// A seccomp profile in a file of the host.
pub(crate) fn of_file(path: &Path) -> v1::SecurityProfile {
    v1::SecurityProfile {
        profile_type: ProfileType::Localhost.into(),
        localhost_ref: path.display().to_string(),
    }
}

async fn profile_of_host_is_applied(x: &Context) -> Verdict {
    let path = write_profile(x, PROFILE)?;
    x.prints(with_profile(x, &path), "the output", "end\n").await
}

async fn missing_profile_is_refused(x: &Context, pod: Pod) -> Verdict {
    let missing = x.shared.directory.join("no-such-profile");
    match pod.create(with_profile(x, &missing)).await {
        Ok(id) => {
            let what = "StartContainer with a missing profile";
            refused(what, x.client.start(&id).await)?;
            ensure(!id.is_empty(), "the id", "not empty", id)
        }
        answer => refused("CreateContainer with a missing profile", answer).map(drop),
    }
}

/// A profile that blocks sethostname.
const NO_NAMES: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["sethostname"], "action": "SCMP_ACT_ERRNO"}]}"#;

async fn profile_counts_beside_capabilities(x: &Context) -> Verdict {
    let path = write_profile(x, NO_NAMES)?;
    let unconfined = v1::SecurityProfile {
        profile_type: ProfileType::Unconfined.into(),
        localhost_ref: String::new(),
    };
    let changed = "changed\nend\n";
    for (what, profile, privileged, expected) in [
        ("with the profile", of_file(&path), false, "end\n"),
        ("without a filter", unconfined, false, changed),
        ("that is privileged", of_file(&path), true, changed),
    ] {
        let script = "hostname changed 2>/dev/null && echo changed; echo end";
        let output = output_with(x, script, |security| {
            security.seccomp = Some(profile);
            security.privileged = privileged;
            let capabilities = security.capabilities.get_or_insert_default();
            capabilities.add_capabilities = vec!["SYS_ADMIN".to_owned()];
        })
        .await?;
        equal(&format!("the output of a container {what}"), output.as_str(), expected)?;
    }
    Ok(())
}

/// Writes a profile to a file of the host.
pub(crate) fn write_profile(x: &Context, text: &str) -> Verdict<PathBuf> {
    let path = x.shared.directory.join(x.unique("profile"));
    std::fs::write(&path, text)
        .map_err(|error| Outcome::Skipped(format!("no profile: {error}")))?;
    Ok(path)
}

pub(crate) const SECCOMP_ARGUMENTS: &[Rule] = rules! {
    Should "CRI-SEC-036": "A system call that a seccomp profile blocks fails with the error in the profile (errnoRet).",
        API, tags ["kubelet", "seccomp"], calls [CreateContainer],
        error_is_that_of_profile, faults [
            "CreateContainer request drop config.linux.security_context.seccomp",
            "CreateContainer request set config.linux.security_context.seccomp {\"profile_type\": \"Unconfined\"}",
        ];
    Should "CRI-SEC-037": "A seccomp profile that blocks a system call for one value of an argument allows the call with other values.",
        API, tags ["kubelet", "seccomp"], calls [CreateContainer],
        arguments_count, faults [
            "CreateContainer request drop config.linux.security_context.seccomp",
            "CreateContainer request set config.linux.security_context.seccomp {\"profile_type\": \"Unconfined\"}",
        ];
};

/// The output of a script under a profile.
async fn under(x: &Context, profile: &str, script: &str) -> Verdict<String> {
    x.needs_namespaces()?;
    let path = write_profile(x, profile)?;
    let mut config = x.script("c", script);
    fixture::security(&mut config).seccomp = Some(of_file(&path));
    x.output(config).await
}

/// A profile with which mkdir fails with ENOSYS.
const NOT_IMPLEMENTED: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]}"#;

async fn error_is_that_of_profile(x: &Context) -> Verdict {
    // The error message is the same in every C library.
    let script = "LC_ALL=C mkdir /tmp/made 2>&1 && echo made; echo end";
    let output = under(x, NOT_IMPLEMENTED, script).await?;
    let what = "the error of mkdir with errnoRet 38 (ENOSYS)";
    ensure(output.contains("Function not implemented"), what, "Function not implemented", output)
}

/// A profile that blocks sending signal 10.
const NOT_THIS_SIGNAL: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["kill"], "action": "SCMP_ACT_ERRNO",
        "args": [{"index": 1, "value": 10, "op": "SCMP_CMP_EQ"}]}]}"#;

async fn arguments_count(x: &Context) -> Verdict {
    // Signals by their numbers, which the profile compares.
    let script = "trap 'echo signal 12' 12; trap 'echo signal 10' 10
        kill -12 $$ || echo 12 is refused
        kill -10 $$ 2>/dev/null || echo 10 is refused
        echo end";
    let output = under(x, NOT_THIS_SIGNAL, script).await?;
    equal("the output", output.as_str(), "signal 12\n10 is refused\nend\n")
}
