//! Rules for names of host objects in a configuration: AppArmor profiles, SELinux labels, devices of the Container Device
//! Interface (CDI).

use std::path::Path;

use cri::v1::security_profile::ProfileType;

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SEC-018": "CreateContainer refuses an AppArmor profile that is not loaded, whether the request names it in the field apparmor or in apparmor_profile.",
        CRITEST, tags ["kubelet", "apparmor"], calls [CreateContainer],
        profile_that_is_not_loaded_is_refused given [namespaces, pod], faults [
            "CreateContainer request drop config.linux.security_context.apparmor",
            "CreateContainer request drop config.linux.security_context.apparmor_profile",
            "CreateContainer swallow",
        ];
    Must "CRI-SEC-019": "Pods and containers with an SELinux label run even if the kernel has no SELinux.",
        KUBELET, tags ["kubelet", "selinux"], calls [RunPodSandbox, CreateContainer, StartContainer],
        label_without_selinux_is_ignored, faults [
            "RunPodSandbox if request config.linux.security_context.selinux_options.level = \"s0:c1,c2\" answer INVALID_ARGUMENT",
            "CreateContainer if request config.linux.security_context.selinux_options.level = \"s0:c1,c2\" answer INVALID_ARGUMENT",
            "StartContainer answer INTERNAL",
        ];
    Should "CRI-SEC-020": "CreateContainer refuses a CDI device that no CDI file describes.",
        KUBELET, tags ["kubelet", "device", "cdi"], calls [CreateContainer],
        device_that_is_not_described_is_refused given [namespaces, pod], faults [
            "CreateContainer request drop config.CDI_devices",
            "CreateContainer swallow",
        ];
};

async fn profile_that_is_not_loaded_is_refused(x: &Context, pod: Pod) -> Verdict {
    let name = fixture::unique("crib-check-not-loaded");
    let with = |old: bool, new: bool| {
        let mut config = x.forever("c");
        let security = fixture::security(&mut config);
        if new {
            let mut profile =
                v1::SecurityProfile { localhost_ref: name.clone(), ..Default::default() };
            profile.set_profile_type(ProfileType::Localhost);
            security.apparmor = Some(profile);
        }
        if old {
            named_before(security, &format!("localhost/{name}"));
        }
        config
    };
    for (field, config) in [
        ("apparmor", with(false, true)),
        ("apparmor_profile", with(true, false)),
        ("apparmor and apparmor_profile", with(true, true)),
    ] {
        let what = format!("CreateContainer with a profile that is not loaded in {field}");
        refused(&what, pod.create(config).await)?;
    }
    Ok(())
}

/// Sets the deprecated field of older clients.
#[expect(deprecated, reason = "older clients set this field alone")]
fn named_before(security: &mut v1::LinuxContainerSecurityContext, profile: &str) {
    profile.clone_into(&mut security.apparmor_profile);
}

async fn label_without_selinux_is_ignored(x: &Context) -> Verdict {
    if Path::new("/sys/fs/selinux/enforce").exists() {
        let why = "this kernel has SELinux, where a label has an effect";
        return Err(Outcome::Skipped(why.to_owned()));
    }
    let label = v1::SeLinuxOption {
        user: "system_u".to_owned(),
        role: "system_r".to_owned(),
        r#type: "container_t".to_owned(),
        level: "s0:c1,c2".to_owned(),
    };
    let mut sandbox = x.sandbox();
    let linux = sandbox.linux.get_or_insert_default();
    let security = linux.security_context.get_or_insert_default();
    security.selinux_options = Some(label.clone());
    let pod = x.pod_of(sandbox).await?;
    let mut config = x.forever("c");
    fixture::security(&mut config).selinux_options = Some(label);
    pod.start(config).await.map(drop).map_err(Outcome::from)
}

async fn device_that_is_not_described_is_refused(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.forever("c");
    config.cdi_devices.push(v1::CdiDevice {
        name: format!("crib.local/check={}", fixture::unique("no-such-device")),
    });
    let what = "CreateContainer with a device that no CDI file describes";
    refused(what, pod.create(config).await).map(drop)
}
