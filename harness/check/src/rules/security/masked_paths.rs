//! Rules for containers without masked and read-only paths.

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-SEC-038": "Without masked and read-only paths, nothing is mounted below /proc, as procMount Unmasked requires.",
        KUBELET, tags ["kubelet", "files"], calls [CreateContainer],
        nothing_is_covered given [namespaces], faults [
            "CreateContainer request set config.linux.security_context.masked_paths [\"/proc/timer_list\"]",
            "CreateContainer request set config.linux.security_context.readonly_paths [\"/proc/sys\"]",
        ];
};

async fn nothing_is_covered(x: &Context) -> Verdict {
    let mut config = x.script("c", "cat /proc/self/mountinfo");
    let security = harness::fixture::security(&mut config);
    security.masked_paths.clear();
    security.readonly_paths.clear();
    let mounts = x.output(config).await?;
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let covered: Vec<&str> = places.filter(|place| place.starts_with("/proc/")).collect();
    let what = "mounts below /proc without masked and read-only paths";
    ensure(covered.is_empty(), what, "none", covered)
}
