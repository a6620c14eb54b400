//! DNS policy and configuration.

use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec};

use super::{Check, NOT_AN_ADDRESS, names};

/// The DNS policy and configuration of a pod.
pub(super) fn check(check: &mut Check, spec: &PodSpec) {
    let policy = spec.dns_policy.as_deref().unwrap_or_default();
    check.one_of(
        "spec.dnsPolicy",
        policy,
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    let servers = |config: &PodDNSConfig| config.nameservers.as_ref().map_or(0, Vec::len);
    match &spec.dns_config {
        None if policy == "None" => {
            check.required("spec.dnsConfig", "must be given when `dnsPolicy` is None")
        }
        Some(config) if policy == "None" && servers(config) == 0 => {
            check.required(
                "spec.dnsConfig.nameservers",
                "must provide at least one name server when `dnsPolicy` is None",
            );
        }
        Some(_) | None => {}
    }
    let Some(config) = &spec.dns_config else {
        return;
    };
    if servers(config) > 3 {
        check.invalid(
            "spec.dnsConfig.nameservers",
            "",
            "must not have more than 3 name servers",
        );
    }
    for (index, server) in config.nameservers.iter().flatten().enumerate() {
        if server.parse::<std::net::IpAddr>().is_err() {
            check.invalid(
                format!("spec.dnsConfig.nameservers[{index}]"),
                server,
                NOT_AN_ADDRESS,
            );
        }
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > 32 {
        check.invalid(
            "spec.dnsConfig.searches",
            "",
            "must not have more than 32 search paths",
        );
    }
    if searches.join(" ").len() > 2048 {
        check.invalid(
            "spec.dnsConfig.searches",
            "",
            "must not have more than 2048 characters, the blanks between them included",
        );
    }
    for (index, search) in searches.iter().enumerate() {
        // A search path may be a single dot, end with a dot, and contain underscores.
        if search != "." {
            let name = search.strip_suffix('.').unwrap_or(search).replace('_', "-");
            let field = format!("spec.dnsConfig.searches[{index}]");
            if let Some(expected) = names::dns_subdomain(&name) {
                check.invalid(field, search, expected);
            }
        }
    }
    for (index, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            check.required(
                format!("spec.dnsConfig.options[{index}]"),
                "must not be empty",
            );
        }
    }
}
