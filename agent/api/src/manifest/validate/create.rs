//! What a pod may not have when it is created.

use k8s_openapi::api::core::v1::PodSpec;

use crate::manifest::validate::Check;

pub(super) fn of_pod(check: &mut Check, spec: &PodSpec) {
    let ephemeral = spec.ephemeral_containers.as_ref();
    if ephemeral.is_some_and(|containers| !containers.is_empty()) {
        check.forbidden("spec.ephemeralContainers", "cannot be set on create");
    }
    let account = [&spec.service_account_name, &spec.service_account];
    if account.iter().any(|name| name.as_deref().is_some_and(|name| !name.is_empty())) {
        return;
    }
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let projected = volume.projected.iter();
        let sources = projected.flat_map(|projected| projected.sources.iter().flatten());
        for (number, source) in sources.enumerate() {
            if source.service_account_token.is_some() {
                check.forbidden(
                    format!(
                        "spec.volumes[{index}].projected.sources[{number}].serviceAccountToken"
                    ),
                    "must not be specified when serviceAccountName is not set",
                );
            }
        }
    }
}
