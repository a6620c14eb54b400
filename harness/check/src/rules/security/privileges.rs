//! Rules for combined security settings: dropped and added capabilities, privileged and read-only, setuid and `no_new_privs`;
//! and for containers without masked and read-only paths.

use crate::images::programs;
use crate::prelude::*;
use crate::rules::image::{add, pull};
use crate::rules::security::{number, output_with, status_of};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SEC-016": "A container that drops ALL capabilities and adds one has only the added capability; pods under the restricted Pod Security Standard require this.",
        KUBELET, tags ["kubelet", "capabilities"], calls [CreateContainer],
        added_capability_is_left, faults [
            "CreateContainer request drop config.linux.security_context.capabilities.add_capabilities",
            "CreateContainer request drop config.linux.security_context.capabilities.drop_capabilities",
            "CreateContainer request drop config.linux.security_context.capabilities",
        ];
    Must "CRI-SEC-017": "readonly_rootfs makes the root filesystem of a privileged container read-only, too.",
        KUBELET, tags ["kubelet", "mounts"], calls [CreateContainer],
        root_of_privileged_container_is_read_only, faults [
            "CreateContainer request drop config.linux.security_context.readonly_rootfs",
            "CreateContainer request set config.linux.security_context.readonly_rootfs false",
        ];
    Must "CRI-SEC-022": "A setuid program of the image runs as its owner, unless no_new_privs is set.",
        CRITEST, tags ["kubelet", "user"], calls [CreateContainer],
        set_user_id_program_has_id_of_owner given [users], faults [
            "CreateContainer request drop config.linux.security_context.no_new_privs",
            "CreateContainer request set config.linux.security_context.no_new_privs true",
        ];
};

const NET_BIND_SERVICE: u64 = 1 << 10;

async fn added_capability_is_left(x: &Context) -> Verdict {
    let status = status_of(x, |security| {
        let capabilities = security.capabilities.get_or_insert_default();
        capabilities.drop_capabilities = vec!["ALL".to_owned()];
        capabilities.add_capabilities = vec!["NET_BIND_SERVICE".to_owned()];
    })
    .await?;
    let set = number(&status, "CapEff")?;
    let what = "CapEff with ALL dropped and NET_BIND_SERVICE added";
    equal(what, &format!("{set:x}"), &format!("{NET_BIND_SERVICE:x}"))
}

async fn root_of_privileged_container_is_read_only(x: &Context) -> Verdict {
    let script = "touch /written 2>/dev/null && echo written; echo done";
    let output = output_with(x, script, |security| {
        security.privileged = true;
        security.readonly_rootfs = true;
    })
    .await?;
    equal("the output", output.as_str(), "done\n")
}

async fn set_user_id_program_has_id_of_owner(x: &Context) -> Verdict {
    let skip = |why: String| Outcome::Skipped(why);
    let base = programs(&["sh", "id"]).map_err(|error| skip(error.to_string()))?;
    let id = std::fs::read("/usr/bin/id").map_err(|error| skip(format!("no program: {error}")))?;
    let program = Layer::new().file("program", 0o4755, id);
    let (image, _) = add(x, "1", |image| image.layer(base).layer(program))?;
    pull(x, &image).await?;
    for (no_new_privs, expected) in [(false, "0\n"), (true, "1000\n")] {
        let mut config = x.script("c", "/program -u");
        image.clone_into(&mut config.image.get_or_insert_default().image);
        let security = fixture::security(&mut config);
        security.run_as_user = Some(v1::Int64Value { value: 1000 });
        security.no_new_privs = no_new_privs;
        let output = x.output(config).await?;
        let what = format!("the id with no_new_privs {no_new_privs}");
        equal(&what, output.as_str(), expected)?;
    }
    Ok(())
}

pub(crate) const MASKED_PATHS: &[Rule] = rules! {
    Should "CRI-SEC-038": "If a container's configuration has no masked and no read-only paths, nothing is mounted below /proc, as procMount Unmasked requires.",
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
