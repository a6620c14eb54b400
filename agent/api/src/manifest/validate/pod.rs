//! Validates a pod's specification: a file for each part of it; DNS is checked here.

pub(crate) mod container;
pub(crate) mod env;
pub(crate) mod lifecycle;
pub(crate) mod mounts;
pub(crate) mod probe;
pub(crate) mod resources;
pub(crate) mod scheduling;
pub(crate) mod security;
pub(crate) mod volume;
pub(crate) mod windows;

use compact::Map;
use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec, Volume};

use crate::manifest::validate::{Check, names};

/// The valid volumes of a pod by name.
pub(crate) type Volumes<'a> = Map<&'a str, &'a Volume>;

/// The DNS policy and configuration of a pod.
pub(crate) fn check_dns(check: &mut Check, spec: &PodSpec) {
    let policy = spec.dns_policy.as_deref().unwrap_or_default();
    let known = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    check.one_of("spec.dnsPolicy", policy, &known);
    let servers = |config: &PodDNSConfig| config.nameservers.as_ref().map_or(0, Vec::len);
    let Some(config) = &spec.dns_config else {
        if policy == "None" {
            check.required("spec.dnsConfig", "must be given when `dnsPolicy` is None");
        }
        return;
    };
    if policy == "None" && servers(config) == 0 {
        let detail = "must provide at least one name server when `dnsPolicy` is None";
        check.required("spec.dnsConfig.nameservers", detail);
        return;
    }
    if servers(config) > 3 {
        check.invalid("spec.dnsConfig.nameservers", "", "must not have more than 3 name servers");
    }
    for (index, server) in config.nameservers.iter().flatten().enumerate() {
        check.formed(format!("spec.dnsConfig.nameservers[{index}]"), server, names::ip_address);
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > 32 {
        check.invalid("spec.dnsConfig.searches", "", "must not have more than 32 search paths");
    }
    if searches.join(" ").len() > 2048 {
        let detail = "must not have more than 2048 characters, including the spaces between them";
        check.invalid("spec.dnsConfig.searches", "", detail);
    }
    for (index, search) in searches.iter().enumerate() {
        check.formed(format!("spec.dnsConfig.searches[{index}]"), search, names::search_domain);
    }
    for (index, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            check.required(format!("spec.dnsConfig.options[{index}]"), "must not be empty");
        }
    }
}
