//! ◆ Rules about logs, of containers and of the agent, about metrics and traces, and the endpoints of the runtime. Pure.

use serde_json::Value;

use super::Findings;
use crate::local_node::kubelet_config::GoDuration;

/// The minor version of Kubernetes whose metrics are shown, and the one before.
const MINOR: u32 = 36;

pub(super) fn find(findings: &mut Findings<'_>) {
    of_containers(findings);
    of_agent(findings);
    hidden_metrics(findings);
    tracing(findings);
    let c = findings.config;
    if c.container_runtime_endpoint.as_deref().unwrap_or_default().is_empty() {
        findings.add("containerRuntimeEndpoint", "it is empty: give a unix socket, unix:///path");
    }
    let handler = c.enable_system_log_handler.unwrap_or_default();
    if c.enable_system_log_query == Some(true) && !handler {
        findings.add("enableSystemLogQuery", "it needs enableSystemLogHandler: true");
    }
}

fn of_containers(findings: &mut Findings<'_>) {
    let c = findings.config;
    findings.at_least("containerLogMaxWorkers", c.container_log_max_workers, 1);
    findings.at_least("containerLogMaxFiles", c.container_log_max_files, 2);
    let size = c.container_log_max_size.as_deref().unwrap_or_default();
    if let Err(error) = api::quantity::Quantity::parse(size) {
        findings.add("containerLogMaxSize", error.to_string());
    }
    let interval = c.container_log_monitor_interval.unwrap_or_default();
    if interval < GoDuration::of_seconds(3) {
        findings.add("containerLogMonitorInterval", format!("{interval} is less than 3s"));
    }
    let field = "podLogsDir";
    let path = c.pod_logs_dir.as_deref().unwrap_or_default();
    if path.is_empty() {
        findings.add(field, "it is empty");
    } else if !path.starts_with('/') {
        findings.add(field, format!("{path:?} is not an absolute path"));
    } else if !is_clean(path) {
        findings.add(field, format!("{path:?} has '.', '..', a double or a trailing slash"));
    }
    if !path.is_ascii() {
        findings.add(field, format!("{path:?} contains non-ASCII characters"));
    }
}

/// Whether a path is in its shortest form.
fn is_clean(path: &str) -> bool {
    let unclean = |part: &str| part.is_empty() || part == "." || part == "..";
    path == "/" || !path.trim_start_matches('/').split('/').any(unclean) && !path.starts_with("//")
}

fn of_agent(findings: &mut Findings<'_>) {
    let Some(logging) = &findings.config.logging else {
        return;
    };
    findings.one_of("logging.format", logging.format.as_ref(), &["text", "json"]);
    let is_json = logging.format.as_deref() == Some("json");
    findings.needs("logging.format", is_json, "LoggingBetaOptions");
    if logging.flush_frequency.is_some_and(|period| period.nanos() <= 0) {
        findings.add("logging.flushFrequency", "it is not greater than zero");
    }
    let largest = u32::try_from(i32::MAX).unwrap_or(u32::MAX);
    if logging.verbosity.is_some_and(|verbosity| verbosity > largest) {
        findings.add("logging.verbosity", format!("it is more than {largest}"));
    }
    let rules = logging.vmodule.as_deref().unwrap_or_default();
    if !rules.is_empty() && logging.format.as_deref() != Some("text") {
        findings.add("logging.vmodule", "it needs logging.format: text");
    }
    for rule in rules {
        let pattern = rule["filePattern"].as_str().unwrap_or_default();
        if pattern.is_empty() || pattern.contains(['=', ',']) {
            let problem =
                format!("filePattern {pattern:?} is empty, or has an equal sign or comma");
            findings.add("logging.vmodule", problem);
        }
        if rule["verbosity"].as_u64().is_some_and(|verbosity| verbosity > largest.into()) {
            findings.add("logging.vmodule", format!("verbosity is more than {largest}"));
        }
    }
    for format in ["text", "json"] {
        let options = logging.options.as_ref().map_or(&Value::Null, |all| &all[format]);
        let splits = options["splitStream"].as_bool().unwrap_or_default();
        let buffers = !matches!(options["infoBufferSize"].as_str(), None | Some("0" | ""));
        if splits || buffers {
            let field = format!("logging.options.{format}");
            findings.needs(&field, true, "LoggingAlphaOptions");
        }
    }
}

/// Checks that only the previous version is given, as `1.35`.
fn hidden_metrics(findings: &mut Findings<'_>) {
    let before = format!("1.{}", MINOR - 1);
    let version = findings.config.show_hidden_metrics_for_version.as_ref();
    if version.is_some_and(|version| *version != before) {
        findings.add("showHiddenMetricsForVersion", format!("must be {before} or not set"));
    }
}

fn tracing(findings: &mut Findings<'_>) {
    let Some(tracing) = &findings.config.tracing else {
        return;
    };
    let rate = tracing.sampling_rate_per_million;
    findings.within("tracing.samplingRatePerMillion", rate, 0, 1_000_000);
    if let Some(endpoint) = &tracing.endpoint {
        let scheme = endpoint.split_once("//").map_or("dns", |(scheme, _)| scheme);
        let scheme = scheme.trim_end_matches(':');
        if !["dns", "unix", "unix-abstract", ""].contains(&scheme) {
            let problem =
                format!("{endpoint:?} has neither dns, unix nor unix-abstract before ://");
            findings.add("tracing.endpoint", problem);
        }
    }
}
