//! Lifecycle hooks and stop signals.

use k8s_openapi::api::core::v1::{Lifecycle, LifecycleHandler, PodSpec};

use crate::manifest::validate::pod::probe;
use crate::manifest::validate::{Check, Rule};

/// The hooks and the stop signal of a container.
pub(crate) fn check(check: &mut Check, field: &str, lifecycle: &Lifecycle, spec: &PodSpec) {
    for (name, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        if let Some(hook) = hook {
            self::hook(check, &format!("{field}.{name}"), hook, spec);
        }
    }
    if let Some(signal) = lifecycle.stop_signal.as_deref() {
        let field = format!("{field}.stopSignal");
        let known = match spec.os.as_ref().map(|os| os.name.as_str()) {
            None => {
                check.forbidden(&field, "may not be set for containers with empty `spec.os.name`");
                true
            }
            Some("linux") => is_signal(signal),
            Some("windows") => matches!(signal, "SIGKILL" | "SIGTERM"),
            Some(_) => true,
        };
        if !known {
            let detail = "expected the name of a signal, such as SIGTERM";
            check.error(Rule::NotSupported, &field, signal, detail);
        }
    }
}

fn is_signal(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("SIG") else {
        return false;
    };
    const PLAIN: [&str; 31] = [
        "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT",
        "KILL", "PIPE", "POLL", "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM",
        "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1", "USR2", "WINCH",
    ];
    let real_time = |prefix: &str, most: u32| {
        rest.strip_prefix(prefix)
            .is_some_and(|n| n.parse().is_ok_and(|n: u32| (1..=most).contains(&n)))
    };
    PLAIN.contains(&rest)
        || matches!(rest, "VTALRM" | "XCPU" | "XFSZ" | "RTMIN" | "RTMAX")
        || real_time("RTMIN+", 15)
        || real_time("RTMAX-", 14)
}

fn hook(check: &mut Check, field: &str, hook: &LifecycleHandler, spec: &PodSpec) {
    let mut handlers = 0;
    let mut count = |check: &mut Check, name: &str, given: bool| {
        if given {
            if handlers > 0 {
                let detail = "may not specify more than 1 handler type";
                check.forbidden(format!("{field}.{name}"), detail);
            }
            handlers += 1;
        }
        given && handlers == 1
    };
    if count(check, "exec", hook.exec.is_some())
        && let Some(exec) = &hook.exec
    {
        probe::exec(check, &format!("{field}.exec"), exec);
    }
    if count(check, "httpGet", hook.http_get.is_some())
        && let Some(http) = &hook.http_get
    {
        probe::http(check, &format!("{field}.httpGet"), http);
    }
    if count(check, "tcpSocket", hook.tcp_socket.is_some())
        && let Some(tcp) = &hook.tcp_socket
    {
        probe::port(check, &format!("{field}.tcpSocket.port"), &tcp.port);
    }
    if count(check, "sleep", hook.sleep.is_some())
        && let Some(sleep) = &hook.sleep
    {
        let grace = spec.termination_grace_period_seconds.unwrap_or(30);
        if sleep.seconds < 0 || sleep.seconds > grace {
            check.invalid(
                format!("{field}.sleep"),
                sleep.seconds,
                format!(
                    "must be non-negative and not more than terminationGracePeriodSeconds ({grace})"
                ),
            );
        }
    }
    if handlers == 0 {
        check.required(field, "must specify a handler type");
    }
}
