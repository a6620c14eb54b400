//! The runtime's capabilities on this machine: the isolation of its pods, and the resource limits that it cannot apply.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use agent::pod_spec::dns;
use api::pod::Pod;
use harness::client::Client;

/// How a user without root gets limits.
const REMEDY: &str = "run crib as root, or in a cgroup that systemd delegates: systemd-run --user --scope -p Delegate=yes crib run …";

/// The program that writes the uid_map of a rootless runtime's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdMapper {
    /// Root writes it directly.
    Root,
    /// newuidmap, which cannot gain the privilege to map more than one id because of no_new_privs.
    NoNewPrivileges,
    /// newuidmap.
    Other,
}

impl IdMapper {
    /// The mapper of this process, which is in the pods' user namespace.
    pub(crate) fn of_process() -> Self {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self::of_map(&map, rustix::thread::no_new_privs().unwrap_or_default())
    }

    /// `map` is the uid_map of a user namespace: the first id inside, the first id outside, and the number of ids.
    fn of_map(map: &str, no_new_privs: bool) -> Self {
        match map.split_whitespace().nth(1) {
            Some("0") => Self::Root,
            _ if no_new_privs => Self::NoNewPrivileges,
            _ => Self::Other,
        }
    }
}

/// The capabilities that the runtime reports in its Status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuntimeCapabilities {
    /// `root`, `rootless (65536 ids)` or `process`.
    pub(crate) isolation: String,
    /// Why no stronger isolation is available, if the runtime could choose.
    pub(crate) isolation_reason: Option<String>,
    /// The resources whose limits are not applied, and the reason.
    not_applied: Option<(Vec<String>, String)>,
    /// Why pods cannot reach other hosts.
    pub(crate) no_egress: Option<String>,
    /// The address at which pods reach the host, if any.
    host: Option<IpAddr>,
}

impl RuntimeCapabilities {
    /// Calls Status of the runtime.
    pub(crate) async fn of_runtime(socket: &Path) -> Result<Self, tonic::Status> {
        let status = Client::new(socket).status().await?;
        Ok(Self::of_info(&status.info))
    }

    /// Reads the verbose information of Status.
    fn of_info(info: &HashMap<String, String>) -> Self {
        let not_applied = info.get("limitsNotApplied").map(|text| {
            let (names, reason) = text.split_once(": ").unwrap_or((text, "unknown reason"));
            let names = names.split(", ").map(str::to_owned).collect();
            (names, reason.to_owned())
        });
        Self {
            isolation: info.get("isolation").cloned().unwrap_or_default(),
            isolation_reason: info.get("isolationReason").cloned(),
            not_applied,
            no_egress: info.get("egressMissing").cloned(),
            host: info.get("hostAddress").and_then(|text| text.parse().ok()),
        }
    }

    /// The entries for the host in the pods' hosts files, as in podman and Docker.
    pub(crate) fn host_names(&self) -> Option<(IpAddr, Vec<String>)> {
        let names = ["host.containers.internal", "host.docker.internal"];
        Some((self.host?, names.map(str::to_owned).into()))
    }

    /// How to give pods more than one user id, if they have only one.
    pub(crate) fn single_id(&self, user: IdMapper) -> Option<&'static str> {
        self.isolation.contains("single id").then_some(match user {
            IdMapper::Root => {
                "pods have a single user id: for more ids, give this container CAP_SETUID and CAP_SETGID"
            }
            IdMapper::NoNewPrivileges => {
                "pods have a single user id: newuidmap cannot map more ids for a process with no_new_privs; in a container, set allowPrivilegeEscalation: true"
            }
            IdMapper::Other => {
                "pods have a single user id: for more ids, install uidmap and add the user to /etc/subuid and /etc/subgid"
            }
        })
    }

    /// Whether the host can reach the pod network, which has the Services. In rootless mode, it cannot.
    pub(crate) fn host_reaches_pods(&self) -> bool {
        !self.isolation.starts_with("rootless")
    }

    /// A message about a pod that cannot reach Services because it uses the host's network; `None` if there is no such pod.
    pub(crate) fn beside_services(&self, pods: &[Pod], has_services: bool) -> Option<String> {
        let needs_cluster_dns =
            |pod: &&Pod| pod.host_network() && (has_services || dns::uses_cluster_dns(pod));
        let first = pods.iter().find(needs_cluster_dns)?;
        (!self.host_reaches_pods()).then(|| {
            format!(
                "pod {} has hostNetwork and, without root, cannot reach Services or the cluster DNS; it uses the host's DNS servers: leave hostNetwork out, or run crib as root",
                first.full_name()
            )
        })
    }

    /// A message about limits of the pods that are not applied, with the reason and the remedy; `None` if all limits are applied.
    pub(crate) fn dropped_limits(&self, pods: &[Pod]) -> Option<String> {
        let (names, reason) = self.not_applied.as_ref()?;
        let dropped: Vec<&String> =
            names.iter().filter(|name| pods.iter().any(|pod| has_limit(pod, name))).collect();
        let first = pods.iter().find(|pod| dropped.iter().any(|name| has_limit(pod, name)))?;
        let names: Vec<&str> = dropped.into_iter().map(String::as_str).collect();
        Some(format!(
            "limits of {} are not applied to pod {}: {reason}; {REMEDY}",
            names.join(" and "),
            first.full_name()
        ))
    }
}

/// Whether the pod, or one of its containers, has a limit of this resource.
fn has_limit(pod: &Pod, resource: &str) -> bool {
    let containers = pod.all_containers();
    containers
        .map(|(_, container)| container.resources.as_ref())
        .chain([pod.spec().resources.as_ref()])
        .flatten()
        .filter_map(|resources| resources.limits.as_ref())
        .any(|limits| limits.contains_key(resource))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, Pod as ApiPod, PodSpec, ResourceRequirements};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use rstest::rstest;

    use super::*;

    fn pod(limit: &str) -> Pod {
        let limits = [(limit.to_owned(), Quantity("1".to_owned()))].into();
        let container = Container {
            resources: Some(ResourceRequirements {
                limits: Some(limits),
                ..ResourceRequirements::default()
            }),
            ..Container::default()
        };
        let mut api = ApiPod::default();
        api.metadata.name = Some("p".to_owned());
        api.spec = Some(PodSpec { containers: vec![container], ..PodSpec::default() });
        Pod::new(api)
    }

    #[test]
    fn limits_of_whole_pod_count() {
        let mut api = ApiPod::default();
        api.metadata.name = Some("p".to_owned());
        let container = pod("memory").spec().containers[0].clone();
        api.spec = Some(PodSpec { resources: container.resources, ..PodSpec::default() });
        let capabilities = capabilities(Some("memory: no cgroups"));
        assert!(capabilities.dropped_limits(&[Pod::new(api)]).is_some());
    }

    #[rstest]
    #[case::root("root", "0 0 4294967295", false, None)]
    #[case::single("rootless (a single id)", "0 1000 1", false, Some("install uidmap"))]
    #[case::no_new_privs("rootless (a single id)", "0 1000 1", true, Some("no_new_privs"))]
    #[case::container("rootless (a single id)", "0 0 1", true, Some("CAP_SETUID"))]
    #[case::many("rootless (65536 ids)", "0 1000 1\n1 100000 65535", true, None)]
    fn single_id_names_what_is_missing(
        #[case] isolation: &str,
        #[case] map: &str,
        #[case] no_new_privs: bool,
        #[case] expected: Option<&str>,
    ) {
        let isolation = isolation.to_owned();
        let capabilities = RuntimeCapabilities { isolation, ..RuntimeCapabilities::default() };
        let advice = capabilities.single_id(IdMapper::of_map(map, no_new_privs));
        assert_eq!(advice.is_some(), expected.is_some(), "{advice:?}");
        assert!(advice.unwrap_or_default().contains(expected.unwrap_or_default()), "{advice:?}");
    }

    fn capabilities(not_applied: Option<&str>) -> RuntimeCapabilities {
        let mut info = HashMap::from([("isolation".to_owned(), "process".to_owned())]);
        info.extend(not_applied.map(|text| ("limitsNotApplied".to_owned(), text.to_owned())));
        RuntimeCapabilities::of_info(&info)
    }

    #[rstest]
    #[case::applied(None, "memory", None)]
    #[case::no_such_limit(Some("memory, pids: no cgroups"), "cpu", None)]
    #[case::dropped(
        Some("memory, pids: no cgroups"),
        "memory",
        Some("limits of memory are not applied to pod default/p: no cgroups; ")
    )]
    fn dropped_limits_are_those_that_pods_have(
        #[case] not_applied: Option<&str>,
        #[case] limit: &str,
        #[case] start: Option<&str>,
    ) {
        let warning = capabilities(not_applied).dropped_limits(&[pod(limit)]);
        assert_eq!(warning.is_some(), start.is_some(), "{warning:?}");
        if let (Some(warning), Some(start)) = (warning, start) {
            assert!(warning.starts_with(start) && warning.ends_with(REMEDY), "{warning}");
        }
    }
}
