//! AppArmor and SELinux, with a directory in place of the kernel's files (`--kernel-files`), so that the tests run on every kernel.

use std::fs;
use std::path::Path;

use cri::v1::{
    ContainerConfig, PodSandboxConfig, SeLinuxOption, SecurityProfile,
    security_profile::ProfileType,
};
use tempfile::TempDir;

use crate::support::*;

const EXEC: &str = "proc/self/attr/apparmor/exec";

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A kernel with these AppArmor profiles.
fn apparmor(profiles: &str) -> TempDir {
    let kernel = TempDir::new().unwrap();
    put(kernel.path(), "sys/module/apparmor/parameters/enabled", "Y\n");
    put(kernel.path(), "sys/kernel/security/apparmor/profiles", profiles);
    put(kernel.path(), EXEC, "");
    kernel
}

async fn on(kernel: &TempDir) -> Runtime {
    let files = format!("--kernel-files={}", kernel.path().display());
    Runtime::with().argument(files).start().await.unwrap()
}

/// Reads and clears the exec attribute.
fn take_exec_attribute(kernel: &TempDir) -> String {
    let path = kernel.path().join(EXEC);
    let reported = fs::read_to_string(&path).unwrap();
    fs::write(path, "").unwrap();
    reported
}

fn named(mut config: ContainerConfig, name: &str) -> ContainerConfig {
    fixture::security(&mut config).apparmor = Some(SecurityProfile {
        profile_type: ProfileType::Localhost.into(),
        localhost_ref: name.to_owned(),
    });
    config
}

#[allow(deprecated)]
fn with_deprecated_apparmor_profile(mut config: ContainerConfig, name: &str) -> ContainerConfig {
    fixture::security(&mut config).apparmor_profile = format!("localhost/{name}");
    config
}

fn level(level: &str) -> SeLinuxOption {
    SeLinuxOption { level: level.to_owned(), ..Default::default() }
}

fn labelled(name: &str, wished: &str) -> PodSandboxConfig {
    let mut config = fixture::sandbox(name);
    let linux = config.linux.get_or_insert_default();
    linux.security_context.get_or_insert_default().selinux_options = Some(level(wished));
    config
}

#[rstest]
#[case::runtime_default(|config| config, "exec crib-default")]
#[case::named(|config| named(config, "web"), "exec web")]
#[case::deprecated_field(|config| with_deprecated_apparmor_profile(config, "web"), "exec web")]
#[case::newer_field_wins(|config| named(with_deprecated_apparmor_profile(config, "gone"), "web"), "exec web")]
#[case::privileged(|mut config| { fixture::security(&mut config).privileged = true; config }, "")]
#[tokio::test]
async fn apparmor_profile_is_set_for_first_process_and_execs(
    #[case] change: fn(ContainerConfig) -> ContainerConfig,
    #[case] wanted: &str,
) {
    let kernel = apparmor("crib-default (enforce)\nweb (enforce)\n");
    let runtime = on(&kernel).await;
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(change(fixture::forever("c"))).await.unwrap();
    assert_eq!(take_exec_attribute(&kernel), wanted);
    // An exec gets the profile of its container, even if it has been unloaded since.
    put(kernel.path(), "sys/kernel/security/apparmor/profiles", "");
    runtime.client.sh(&id, "true").await.unwrap();
    assert_eq!(take_exec_attribute(&kernel), wanted);
}

#[tokio::test]
async fn create_rejects_apparmor_profile_until_it_is_loaded() {
    let kernel = apparmor("crib-default (enforce)\nweb (enforce)\n");
    let runtime = on(&kernel).await;
    let pod = runtime.pod("p").await.unwrap();
    for config in [
        named(fixture::forever("a"), "we"),
        with_deprecated_apparmor_profile(fixture::forever("b"), "we"),
        named(with_deprecated_apparmor_profile(fixture::forever("c"), "web"), "we"),
    ] {
        let created = pod.create(config).await;
        rejected(created, Code::FailedPrecondition, "apparmor profile not found we:");
    }
    // An administrator or another pod has loaded it in the meantime.
    let profiles = "sys/kernel/security/apparmor/profiles";
    put(kernel.path(), profiles, "crib-default (enforce)\nwe (enforce)\n");
    pod.start(named(fixture::forever("a"), "we")).await.unwrap();
    assert_eq!(take_exec_attribute(&kernel), "exec we");
    let info = runtime.client.status().await.unwrap().info;
    assert!(info["apparmor"].starts_with("crib-default"), "{info:?}");
}

/// If the daemon may not read the list of profiles, the container's process gets the kernel's error.
#[tokio::test]
async fn create_reports_apparmor_profile_unknown_to_kernel() {
    let kernel = apparmor("");
    fs::remove_file(kernel.path().join("sys/kernel/security/apparmor/profiles")).unwrap();
    fs::remove_file(kernel.path().join(EXEC)).unwrap();
    let runtime = on(&kernel).await;
    let pod = runtime.pod("p").await.unwrap();
    let created = pod.create(named(fixture::forever("a"), "web")).await;
    rejected(created, Code::FailedPrecondition, "apparmor profile not found web:");
}

/// A kubelet rejects such a pod, too: no container runs with less protection than requested.
#[tokio::test]
async fn named_apparmor_profile_is_refused_without_apparmor() {
    let kernel = TempDir::new().unwrap();
    let runtime = on(&kernel).await;
    let pod = runtime.pod("p").await.unwrap();
    for config in [
        with_deprecated_apparmor_profile(fixture::forever("a"), "profile"),
        named(fixture::forever("b"), "profile"),
    ] {
        assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
    }
    // A kubelet sends the RuntimeDefault profile and empty labels.
    let mut config = fixture::forever("d");
    let context = fixture::security(&mut config);
    context.apparmor = Some(SecurityProfile::default());
    context.selinux_options = Some(SeLinuxOption::default());
    pod.start(config).await.unwrap();
}

/// As in containerd and CRI-O, so that the same manifest runs on every node.
#[tokio::test]
async fn selinux_options_are_ignored_without_selinux_and_logged_once() {
    let kernel = TempDir::new().unwrap();
    let runtime = on(&kernel).await;
    for name in ["p", "q"] {
        let config = labelled(name, "s0:c1,c2");
        let pod = Pod::run(&runtime.client, config).await.unwrap();
        let mut config = fixture::forever("c");
        let options = SeLinuxOption {
            user: "system_u".to_owned(),
            role: "system_r".to_owned(),
            r#type: "container_t".to_owned(),
            ..level("s0:c3")
        };
        fixture::security(&mut config).selinux_options = Some(options);
        let id = pod.start(config).await.unwrap();
        assert_eq!(runtime.client.sh(&id, "echo runs").await.unwrap(), "runs\n");
    }
    let log = runtime.log();
    assert_eq!(log.matches("selinux_options are ignored").count(), 1, "{log}");
    let info = runtime.client.status().await.unwrap().info;
    assert_eq!(info["selinux"], "none");
}

#[rstest]
#[case::with_selinux(true)]
#[case::without_selinux(false)]
#[tokio::test]
async fn malformed_selinux_level_is_refused(#[case] selinux: bool) {
    let kernel = TempDir::new().unwrap();
    if selinux {
        put(kernel.path(), "sys/fs/selinux/context", "");
    }
    let runtime = on(&kernel).await;
    rejected(
        runtime.client.run_pod(labelled("p", "s0,c4,c5")).await,
        Code::InvalidArgument,
        "\"s0,c4,c5\"",
    );
}
