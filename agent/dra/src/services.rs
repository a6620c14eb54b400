//! ◆ Chooses the service of a driver that the agent calls. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go validateSupportedServices.

/// A version of the DRA plugin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    V1,
    V1beta1,
}

impl Service {
    /// The path of the call that prepares claims.
    pub(crate) fn prepare_path(self) -> &'static str {
        match self {
            Self::V1 => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            Self::V1beta1 => "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
        }
    }

    /// The path of the call that unprepares claims.
    pub(crate) fn unprepare_path(self) -> &'static str {
        match self {
            Self::V1 => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            Self::V1beta1 => {
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources"
            }
        }
    }
}

/// The full names of the services, newest first. Drivers use them as their versions.
const NAMES: [(&str, Service); 2] =
    [("v1.DRAPlugin", Service::V1), ("v1beta1.DRAPlugin", Service::V1beta1)];

/// The newest service of the driver that the agent supports.
///
/// # Errors
/// If there is none.
pub(crate) fn choose(driver: &str, endpoint: &str, offered: &[String]) -> Result<Service, String> {
    let wrong = |why: String| {
        format!(
            "invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: {why}"
        )
    };
    if offered.is_empty() {
        return Err(wrong(
            "empty list of supported gRPC services (aka supported versions)".to_owned(),
        ));
    }
    let known = |name: &String| NAMES.iter().find(|(known, _)| known == name);
    let chosen = offered.iter().find_map(known).map(|(_, service)| *service);
    chosen.ok_or_else(|| {
        let offered: Vec<String> = offered.iter().map(|name| format!("{name:?}")).collect();
        let known = NAMES.map(|(name, _)| format!("{name:?}"));
        wrong(format!(
            "none of services supported by the plugin ([{}]) are supported by the kubelet ([{}])",
            offered.join(" "),
            known.join(" ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(&["v1.DRAPlugin"], Some(Service::V1))]
    #[case(&["v1beta1.DRAPlugin"], Some(Service::V1beta1))]
    #[case(&["v1alpha1.DRAResourceHealth", "v1.DRAPlugin", "v1beta1.DRAPlugin"], Some(Service::V1))]
    #[case(&["v1beta1.DRAPlugin", "v1.DRAPlugin"], Some(Service::V1beta1))]
    #[case(&["v1alpha4.Node", "1.0.0"], None)]
    #[case(&[], None)]
    fn choose_returns_newest_supported_service(
        #[case] offered: &[&str],
        #[case] expected: Option<Service>,
    ) {
        let offered: Vec<String> = offered.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(choose("d", "/d.sock", &offered).ok(), expected);
    }

    #[test]
    fn choose_rejects_drivers_with_the_kubelets_error() {
        let begin = "invalid supported gRPC versions of DRA driver plugin d at endpoint /d.sock: ";
        let why = "empty list of supported gRPC services (aka supported versions)";
        assert_eq!(choose("d", "/d.sock", &[]), Err(format!("{begin}{why}")));
        let why = "none of services supported by the plugin ([\"a\" \"b\"]) are supported by the kubelet ([\"v1.DRAPlugin\" \
                   \"v1beta1.DRAPlugin\"])";
        let offered = ["a".to_owned(), "b".to_owned()];
        assert_eq!(choose("d", "/d.sock", &offered), Err(format!("{begin}{why}")));
    }
}
