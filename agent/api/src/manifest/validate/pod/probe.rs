//! Probes, and the handlers that probes and hooks share.

use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::manifest::validate::{Check, names};

/// The probes of a container.
pub(crate) fn of_container(check: &mut Check, field: &str, container: &Container) {
    let probes = [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    for (name, probe) in probes {
        let Some(probe) = probe else { continue };
        let field = format!("{field}.{name}");
        one(check, &field, probe);
        let threshold = probe.success_threshold.unwrap_or(1);
        if name != "readinessProbe" && threshold != 1 && threshold >= 0 {
            check.invalid(format!("{field}.successThreshold"), threshold, "must be 1");
        }
        if let Some(grace) = probe.termination_grace_period_seconds {
            let field = format!("{field}.terminationGracePeriodSeconds");
            if name == "readinessProbe" {
                check.invalid(field, grace, "must not be set for readiness probes");
            } else if grace <= 0 {
                check.invalid(field, grace, "must be greater than 0");
            }
        }
    }
}

fn one(check: &mut Check, field: &str, probe: &Probe) {
    let mut handlers = 0;
    if let Some(exec) = &probe.exec {
        handlers += 1;
        self::exec(check, &format!("{field}.exec"), exec);
    }
    let mut another = |check: &mut Check, name: &str| {
        if handlers > 0 {
            check.forbidden(format!("{field}.{name}"), "may not specify more than 1 handler type");
        }
        handlers += 1;
        handlers == 1
    };
    if let Some(http) = &probe.http_get
        && another(check, "httpGet")
    {
        self::http(check, &format!("{field}.httpGet"), http);
    }
    if let Some(tcp) = &probe.tcp_socket
        && another(check, "tcpSocket")
    {
        port(check, &format!("{field}.tcpSocket.port"), &tcp.port);
    }
    if let Some(grpc) = &probe.grpc
        && another(check, "grpc")
    {
        check.range(format!("{field}.grpc.port"), i64::from(grpc.port), 1, 65535);
    }
    if handlers == 0 {
        check.required(field, "must specify a handler type");
    }
    let numbers = [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ];
    check.not_negative(field, &numbers);
}

/// An exec action.
pub(crate) fn exec(check: &mut Check, field: &str, exec: &ExecAction) {
    if exec.command.as_ref().is_none_or(Vec::is_empty) {
        check.required(format!("{field}.command"), "");
    }
}

/// An HTTP request.
pub(crate) fn http(check: &mut Check, field: &str, http: &HTTPGetAction) {
    check.nonempty(format!("{field}.path"), http.path.as_deref().unwrap_or_default());
    port(check, &format!("{field}.port"), &http.port);
    let known = ["HTTP", "HTTPS"];
    check.one_of(format!("{field}.scheme"), http.scheme.as_deref().unwrap_or_default(), &known);
    for header in http.http_headers.iter().flatten() {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if header.name.is_empty() || !header.name.bytes().all(good) {
            let expected = "must consist of letters, digits or '-'";
            check.invalid(format!("{field}.httpHeaders"), &header.name, expected);
        }
    }
}

/// A port by number or by name.
pub(crate) fn port(check: &mut Check, field: &str, port: &IntOrString) {
    match port {
        IntOrString::Int(number) => check.range(field, i64::from(*number), 1, 65535),
        IntOrString::String(name) => check.formed(field, name, names::port_name),
    }
}
