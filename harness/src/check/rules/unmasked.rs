//! Rules of what nothing is laid over: the files of the kernel, where no masked paths are given.

use crate::check::context::Context;
use crate::check::outcome::{Verdict, ensure};
use crate::check::rule::sources::KUBELET;
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[Rule {
    id: "CRI-SEC-038",
    severity: Severity::Should,
    says: "Where neither masked nor read-only paths are given nothing below /proc is covered: what procMount Unmasked asks for.",
    source: KUBELET,
    tags: &["kubelet", "files"],
    calls: &["CreateContainer"],
    faults: &[
        "CreateContainer request set config.linux.security_context.masked_paths [\"/proc/timer_list\"]",
        "CreateContainer request set config.linux.security_context.readonly_paths [\"/proc/sys\"]",
    ],
    body: |x| Box::pin(nothing_is_covered(x)),
}];

async fn nothing_is_covered(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let mut config = x.script("c", "cat /proc/self/mountinfo");
    let security = crate::fixture::security(&mut config);
    security.masked_paths.clear();
    security.readonly_paths.clear();
    let mounts = x.output(config).await?;
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let covered: Vec<&str> = places.filter(|place| place.starts_with("/proc/")).collect();
    let what = "mounts below /proc where no paths are given";
    ensure(covered.is_empty(), what, "none", covered)
}
