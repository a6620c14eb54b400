//! ◆ The checks of a configuration: those of a kubelet, and those of values that the agent cannot represent. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/apis/config/validation. All problems are reported, not only the first.

pub(super) mod host;
pub(super) mod labels;
mod logs;
mod node;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use super::{FieldProblem, Gates, GoDuration, KubeletConfiguration};

/// The valid cipher suites, by Go's names: those of TLS 1.3, which the server always offers, and those of TLS 1.2 with forward
/// secrecy and authenticated encryption.
const CIPHER_SUITES: [&str; 11] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];

/// The problems found so far.
struct Findings<'a> {
    config: &'a KubeletConfiguration,
    gates: &'a Gates,
    problems: Vec<FieldProblem>,
}

impl Findings<'_> {
    fn add(&mut self, field: &str, problem: impl Into<String>) {
        self.problems.push(FieldProblem { field: field.to_owned(), problem: problem.into() });
    }

    fn at_least(&mut self, field: &str, value: Option<impl Into<i64>>, least: i64) {
        let value = value.map_or(0, Into::into);
        if value < least {
            self.add(field, format!("{value} is less than {least}"));
        }
    }

    fn within(&mut self, field: &str, value: Option<impl Into<i64>>, least: i64, most: i64) {
        let value = value.map_or(0, Into::into);
        if !(least..=most).contains(&value) {
            self.add(field, format!("{value} is not between {least} and {most}"));
        }
    }

    fn one_of(&mut self, field: &str, value: Option<&String>, values: &[&str]) {
        let value = value.map_or("", String::as_str);
        if !values.contains(&value) {
            // An empty value stands for the default.
            let named: Vec<&str> =
                values.iter().copied().filter(|value| !value.is_empty()).collect();
            self.add(field, format!("{value:?} is not one of {}", named.join(", ")));
        }
    }

    /// Checks the gate that a field requires.
    fn needs(&mut self, field: &str, is_set: bool, gate: &str) {
        if is_set && !self.gates.enabled(gate) {
            self.add(field, format!("it needs featureGates: {{{gate}: true}}"));
        }
    }
}

/// All problems of a configuration whose fields have their defaults.
pub(super) fn problems(config: &KubeletConfiguration, gates: &Gates) -> Vec<FieldProblem> {
    let mut findings = Findings { config, gates, problems: gates.problems() };
    numbers(&mut findings);
    durations(&mut findings);
    addresses(&mut findings);
    images(&mut findings);
    restarts_and_memory(&mut findings);
    node::find(&mut findings);
    logs::find(&mut findings);
    findings.problems
}

fn numbers(findings: &mut Findings<'_>) {
    let c = findings.config;
    findings.at_least("nodeLeaseDurationSeconds", c.node_lease_duration_seconds, 1);
    findings.at_least("eventBurst", c.event_burst, 0);
    findings.at_least("eventRecordQPS", c.event_record_qps, 0);
    findings.at_least("kubeAPIBurst", c.kube_api_burst, 0);
    findings.at_least("kubeAPIQPS", c.kube_api_qps, 0);
    findings.at_least("nodeStatusMaxImages", c.node_status_max_images, -1);
    findings.at_least("maxOpenFiles", c.max_open_files, 0);
    findings.at_least("maxPods", c.max_pods, 0);
    findings.at_least("podsPerCore", c.pods_per_core, 0);
    findings.at_least("registryBurst", c.registry_burst, 0);
    findings.at_least("registryPullQPS", c.registry_pull_qps, 0);
    if c.max_parallel_image_pulls.is_some() {
        findings.at_least("maxParallelImagePulls", c.max_parallel_image_pulls, 1);
    }
    findings.within("oomScoreAdj", c.oom_score_adj, -1000, 1000);
    findings.within("iptablesDropBit", c.iptables_drop_bit, 0, 31);
    findings.within("iptablesMasqueradeBit", c.iptables_masquerade_bit, 0, 31);
    findings.within("port", c.port, 1, 65_535);
    findings.within("healthzPort", c.healthz_port, 0, 65_535);
    findings.within("readOnlyPort", c.read_only_port, 0, 65_535);
}

/// Durations must not be negative. A kubelet checks only few of them, and waits forever with the others.
fn durations(findings: &mut Findings<'_>) {
    let c = findings.config;
    let webhook = c.authentication.as_ref().and_then(|it| it.webhook.as_ref());
    let reviews = c.authorization.as_ref().and_then(|it| it.webhook.as_ref());
    let fields = [
        ("syncFrequency", c.sync_frequency),
        ("fileCheckFrequency", c.file_check_frequency),
        ("httpCheckFrequency", c.http_check_frequency),
        ("nodeStatusUpdateFrequency", c.node_status_update_frequency),
        ("nodeStatusReportFrequency", c.node_status_report_frequency),
        ("runtimeRequestTimeout", c.runtime_request_timeout),
        ("imageMinimumGCAge", c.image_minimum_gc_age),
        ("imageMaximumGCAge", c.image_maximum_gc_age),
        ("authentication.webhook.cacheTTL", webhook.and_then(|it| it.cache_ttl)),
        (
            "authorization.webhook.cacheAuthorizedTTL",
            reviews.and_then(|it| it.cache_authorized_ttl),
        ),
        (
            "authorization.webhook.cacheUnauthorizedTTL",
            reviews.and_then(|it| it.cache_unauthorized_ttl),
        ),
    ];
    for (field, value) in fields {
        let value = value.unwrap_or_default();
        if value < GoDuration::default() {
            findings.add(field, format!("{value} is less than zero"));
        }
    }
}

/// Checks the addresses and ports of the agent's server; a kubelet fails later.
fn addresses(findings: &mut Findings<'_>) {
    let c = findings.config;
    for (field, text) in [("address", &c.address), ("healthzBindAddress", &c.healthz_bind_address)]
    {
        let text = text.as_deref().unwrap_or_default();
        if text.parse::<IpAddr>().is_err() {
            findings.add(field, format!("{text:?} is not an IP address"));
        }
    }
    let mode = c.authorization.as_ref().and_then(|it| it.mode.as_ref());
    findings.one_of("authorization.mode", mode, &["Webhook", "AlwaysAllow"]);
    let version = c.tls_min_version.as_ref();
    findings.one_of("tlsMinVersion", version, &["", "VersionTLS12", "VersionTLS13"]);
    for suite in c.tls_cipher_suites.iter().flatten() {
        if !CIPHER_SUITES.contains(&suite.as_str()) {
            let problem = format!("the server does not support {suite}: leave it out");
            findings.add("tlsCipherSuites", problem);
        }
    }
    if c.tls_cert_file.is_some() != c.tls_private_key_file.is_some() {
        findings.add("tlsCertFile", "tlsCertFile and tlsPrivateKeyFile must be set together");
    }
    findings.needs(
        "serverTLSBootstrap",
        c.server_tls_bootstrap.unwrap_or_default(),
        "RotateKubeletServerCertificate",
    );
}

fn images(findings: &mut Findings<'_>) {
    let c = findings.config;
    let (high, low) = (c.image_gc_high_threshold_percent, c.image_gc_low_threshold_percent);
    findings.within("imageGCHighThresholdPercent", high, 0, 100);
    findings.within("imageGCLowThresholdPercent", low, 0, 100);
    let (high, low) = (high.unwrap_or_default(), low.unwrap_or_default());
    if low >= high {
        let problem = format!("{low} is not less than imageGCHighThresholdPercent, {high}");
        findings.add("imageGCLowThresholdPercent", problem);
    }
    let least = c.image_minimum_gc_age.unwrap_or_default();
    let most = c.image_maximum_gc_age.unwrap_or_default();
    if most > GoDuration::default() && most <= least {
        let problem = format!("{most} is not more than imageMinimumGCAge, {least}");
        findings.add("imageMaximumGCAge", problem);
    }
    let several = c.max_parallel_image_pulls.is_some_and(|most| most > 1);
    if several && c.serialize_image_pulls == Some(true) {
        let problem = "more than 1 needs serializeImagePulls: false";
        findings.add("maxParallelImagePulls", problem);
    }
    let policy = "imagePullCredentialsVerificationPolicy";
    let allowlist = "preloadedImagesVerificationAllowlist";
    let of_policy = c.image_pull_credentials_verification_policy.as_ref();
    let patterns = c.preloaded_images_verification_allowlist.as_deref().unwrap_or_default();
    let gate = "KubeletEnsureSecretPulledImages";
    findings.needs(policy, of_policy.is_some(), gate);
    findings.needs(allowlist, !patterns.is_empty(), gate);
    if !findings.gates.enabled(gate) {
        return;
    }
    let by_allowlist = "NeverVerifyAllowlistedImages";
    let values = ["NeverVerify", "NeverVerifyPreloadedImages", by_allowlist, "AlwaysVerify"];
    findings.one_of(policy, of_policy, &values);
    if !patterns.is_empty() && of_policy.is_none_or(|policy| policy != by_allowlist) {
        findings.add(allowlist, format!("it needs {policy}: {by_allowlist}"));
    }
    // The names themselves are parsed with the images.
    for pattern in patterns {
        let name = pattern.strip_suffix("/*").unwrap_or(pattern);
        if name.trim() != name || name.is_empty() || name.contains('*') {
            let problem = format!("{pattern:?} is neither an image nor a prefix that ends with /*");
            findings.add(allowlist, problem);
        }
    }
}

fn restarts_and_memory(findings: &mut Findings<'_>) {
    let c = findings.config;
    let gate = "KubeletCrashLoopBackOffMax";
    let field = "crashLoopBackOff.maxContainerRestartPeriod";
    let longest = c.crash_loop_back_off.as_ref().and_then(|it| it.max_container_restart_period);
    findings.needs(field, longest.is_some(), gate);
    if let Some(longest) = longest {
        let range = GoDuration::of_seconds(1)..=GoDuration::of_seconds(300);
        if findings.gates.enabled(gate) && !range.contains(&longest) {
            findings.add(field, format!("{longest} is not between 1s and 300s"));
        }
    }
    let behavior = c.memory_swap.as_ref().and_then(|it| it.swap_behavior.as_ref());
    findings.one_of("memorySwap.swapBehavior", behavior, &["", "NoSwap", "LimitedSwap"]);
    let factor = c.memory_throttling_factor;
    if let Some(factor) = factor
        && !(factor > 0.0 && factor <= 1.0)
    {
        let problem = format!("{factor} is not greater than 0 and at most 1");
        findings.add("memoryThrottlingFactor", problem);
    }
    let policy = c.memory_reservation_policy.as_ref();
    let tiered = "TieredReservation";
    findings.one_of("memoryReservationPolicy", policy, &["None", tiered]);
    findings.needs(
        "memoryReservationPolicy",
        policy.is_some_and(|policy| policy == tiered),
        "MemoryQoS",
    );
}
