//! Rules for error codes and argument conditions in seccomp profiles.

use crate::prelude::*;
use crate::rules::security::seccomp::{of_file, write_profile};

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-SEC-036": "A system call that a seccomp profile blocks fails with the error in the profile (errnoRet).",
        API, tags ["kubelet", "seccomp"], calls [CreateContainer],
        error_is_that_of_profile, faults [
            "CreateContainer request drop config.linux.security_context.seccomp",
            "CreateContainer request set config.linux.security_context.seccomp {\"profile_type\": \"Unconfined\"}",
        ];
    Should "CRI-SEC-037": "A seccomp profile that blocks one value of a system call's argument allows other values.",
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
