//! ◆ The update strategies of Deployments, DaemonSets and StatefulSets. Pure.
//!
//! Source: Kubernetes 1.36, pkg/apis/apps/validation/validation.go and pkg/apis/apps/v1/defaults.go.

use k8s_openapi::api::apps::v1::{
    DaemonSetUpdateStrategy, DeploymentStrategy, StatefulSetUpdateStrategy,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::manifest::validate::Check;

/// The types of the strategies of DaemonSets and StatefulSets.
const KINDS: [&str; 2] = ["OnDelete", "RollingUpdate"];
const UPDATE: &str = "spec.updateStrategy.rollingUpdate";

/// Validates the strategy of a Deployment.
pub(super) fn deployment(check: &mut Check, strategy: &DeploymentStrategy) {
    const AT: &str = "spec.strategy.rollingUpdate";
    let kind = given(strategy.type_.as_deref());
    check.maybe_one_of("spec.strategy.type", kind, &["Recreate", "RollingUpdate"]);
    let Some(rolling) = &strategy.rolling_update else {
        return;
    };
    if kind == Some("Recreate") {
        check.forbidden(AT, "may not be specified when strategy `type` is 'Recreate'");
    }
    let (surge, unavailable) = (rolling.max_surge.as_ref(), rolling.max_unavailable.as_ref());
    amount(check, &format!("{AT}.maxSurge"), surge, false);
    let field = format!("{AT}.maxUnavailable");
    amount(check, &field, unavailable, true);
    // The default of both is 25%.
    if surge.is_some_and(is_zero)
        && let Some(unavailable) = unavailable.filter(|value| is_zero(value))
    {
        check.invalid(field, shown(unavailable), "may not be 0 when `maxSurge` is 0");
    }
}

/// Validates the strategy of a DaemonSet.
pub(super) fn daemon_set(check: &mut Check, strategy: &DaemonSetUpdateStrategy) {
    let kind = given(strategy.type_.as_deref());
    check.maybe_one_of("spec.updateStrategy.type", kind, &KINDS);
    let rolling = strategy.rolling_update.as_ref();
    let Some(rolling) = rolling.filter(|_| kind != Some("OnDelete")) else {
        return;
    };
    let (surge, unavailable) = (rolling.max_surge.as_ref(), rolling.max_unavailable.as_ref());
    let (surge_field, field) = (format!("{UPDATE}.maxSurge"), format!("{UPDATE}.maxUnavailable"));
    amount(check, &surge_field, surge, true);
    amount(check, &field, unavailable, true);
    // The default of maxSurge is 0, that of maxUnavailable is 1.
    let surge = surge.filter(|value| !is_zero(value));
    match (surge, unavailable.is_some_and(is_zero)) {
        (Some(surge), false) => {
            let detail = "may not be set when maxUnavailable is non-zero, as by default";
            check.invalid(surge_field, shown(surge), detail);
        }
        (None, true) => check.required(field, "cannot be 0 when maxSurge is 0"),
        (Some(_), true) | (None, false) => {}
    }
}

/// Validates the strategy of a StatefulSet. Its maxUnavailable has no effect.
pub(super) fn stateful_set(check: &mut Check, strategy: &StatefulSetUpdateStrategy) {
    let kind = given(strategy.type_.as_deref());
    check.maybe_one_of("spec.updateStrategy.type", kind, &KINDS);
    let Some(rolling) = &strategy.rolling_update else {
        return;
    };
    if kind == Some("OnDelete") {
        check.invalid(UPDATE, "", "only allowed for updateStrategy 'RollingUpdate'");
    }
    check.not_negative(UPDATE, &[("partition", rolling.partition)]);
}

/// A text that is set: an API server replaces an empty one by the default.
fn given(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// Whether a number of pods is zero: 0, or 0 %.
fn is_zero(value: &IntOrString) -> bool {
    match value {
        IntOrString::Int(number) => *number == 0,
        IntOrString::String(text) => text.trim_end_matches('%').parse() == Ok(0),
    }
}

fn shown(value: &IntOrString) -> String {
    match value {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.clone(),
    }
}

/// A number of pods, or a percentage, which `is_part` limits to 100.
fn amount(check: &mut Check, field: &str, value: Option<&IntOrString>, is_part: bool) {
    match value {
        Some(IntOrString::Int(number)) if *number < 0 => {
            check.invalid(field, number, "must be greater than or equal to 0");
        }
        Some(IntOrString::String(text)) => {
            let number = text.strip_suffix('%').and_then(|number| number.parse::<u32>().ok());
            match number {
                None => {
                    check.invalid(field, text, "must be a number or a percentage, such as 25%");
                }
                Some(101..) if is_part => {
                    check.invalid(field, text, "must not be greater than 100%");
                }
                Some(_) => {}
            }
        }
        Some(IntOrString::Int(_)) | None => {}
    }
}
