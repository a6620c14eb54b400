//! The security modules, on a directory that simulates the kernel's files.

use cri::v1::{SecurityProfile, security_profile::ProfileType};
use tempfile::TempDir;

use super::*;

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn text(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap()
}

fn box_with_apparmor(profiles: &str) -> TempDir {
    let root = TempDir::new().unwrap();
    put(root.path(), "sys/module/apparmor/parameters/enabled", "Y\n");
    put(root.path(), "sys/kernel/security/apparmor/profiles", profiles);
    root
}

fn box_with_selinux() -> TempDir {
    let root = TempDir::new().unwrap();
    put(root.path(), "sys/fs/selinux/context", "");
    root
}

/// A parser that does what the kernel would with a profile: it adds it to the list.
fn put_parser(root: &Path, script: &str) {
    let path = root.join("sbin/apparmor_parser");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // A shell writes it: a child that another test forks while this process writes would keep the file open (ETXTBSY).
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod 755 "$0""#;
    let status = Command::new("/bin/sh").arg("-c").arg(write).arg(path).arg(script).status();
    assert!(status.unwrap().success());
}

fn localhost(name: &str) -> LinuxContainerSecurityContext {
    LinuxContainerSecurityContext {
        apparmor: Some(SecurityProfile {
            profile_type: ProfileType::Localhost.into(),
            localhost_ref: name.to_owned(),
        }),
        ..Default::default()
    }
}

fn level(level: &str) -> SeLinuxOption {
    SeLinuxOption { level: level.to_owned(), ..Default::default() }
}

fn apparmor_of(
    modules: &Modules,
    context: Option<&LinuxContainerSecurityContext>,
) -> Option<String> {
    modules.container(context, None, None).unwrap().apparmor_profile
}

#[test]
fn default_apparmor_profile_is_loaded_once() {
    let root = box_with_apparmor("other (enforce)\n");
    let list = root.path().join("sys/kernel/security/apparmor/profiles");
    put_parser(
        root.path(),
        &format!(
            "cat > {0}/rules; echo \"$@\" >> {0}/calls; echo 'crib-default (enforce)' >> {1}",
            root.path().display(),
            list.display()
        ),
    );
    let modules = Modules::open(root.path(), IsolationMode::Root, false);
    assert_eq!(text(root.path(), "rules"), apparmor::DEFAULT_RULES);
    assert_eq!(text(root.path(), "calls"), "--replace --skip-cache\n");
    assert_eq!(apparmor_of(&modules, None).as_deref(), Some("crib-default"));
    let [(_, said), _] = modules.describe();
    assert!(said.starts_with("crib-default"), "{said}");
    // Another daemon finds the profile loaded.
    Modules::open(root.path(), IsolationMode::Root, false);
    assert_eq!(text(root.path(), "calls").lines().count(), 1);
}

#[test]
fn default_apparmor_profile_needs_working_parser() {
    for script in [None, Some("echo 'no such abi' >&2; exit 1")] {
        let root = box_with_apparmor("other (enforce)\n");
        if let Some(script) = script {
            put_parser(root.path(), script);
        }
        let modules = Modules::open(root.path(), IsolationMode::Root, false);
        assert_eq!(apparmor_of(&modules, None), None);
        assert_eq!(apparmor_of(&modules, Some(&localhost("other"))).as_deref(), Some("other"));
        assert_eq!(modules.describe()[0].1, "named profiles only");
    }
}

#[test]
fn rootless_runtime_loads_no_profile() {
    let root = box_with_apparmor("");
    put_parser(root.path(), &format!("touch {}/called", root.path().display()));
    Modules::open(root.path(), IsolationMode::Rootless, false);
    assert!(!root.path().join("called").exists());
}

#[test]
fn apparmor_profile_loaded_later_is_found() {
    let root = box_with_apparmor("");
    let modules = Modules::open(root.path(), IsolationMode::Root, false);
    let refused = modules.container(Some(&localhost("later")), None, None);
    assert_eq!(refused, Err(ProfileError::NotLoaded("later".to_owned())));
    put(root.path(), "sys/kernel/security/apparmor/profiles", "later (enforce)\n");
    assert_eq!(apparmor_of(&modules, Some(&localhost("later"))).as_deref(), Some("later"));
}

#[test]
fn disabled_apparmor_counts_as_absent() {
    let root = box_with_apparmor("p (enforce)\n");
    put(root.path(), "sys/module/apparmor/parameters/enabled", "N\n");
    let modules = Modules::open(root.path(), IsolationMode::Root, false);
    let refused = modules.container(Some(&localhost("p")), None, None);
    assert!(refused.unwrap_err().to_string().contains("no AppArmor"));
    assert_eq!(modules.describe()[0].1, "none");
}

#[test]
fn selinux_labels_apply_on_request_or_to_all() {
    let root = box_with_selinux();
    let asks = level("s0:c7,c8");
    for (all, of_pod, own, labelled) in [
        (false, None, None, false),
        (false, Some(&asks), None, true),
        (false, None, Some(&asks), true),
        (true, None, None, true),
    ] {
        let modules = Modules::open(root.path(), IsolationMode::Root, all);
        let pod = modules.pod(of_pod, [].iter()).unwrap().unwrap();
        let context =
            LinuxContainerSecurityContext { selinux_options: own.cloned(), ..Default::default() };
        let given = modules.container(Some(&context), of_pod, Some(&pod)).unwrap();
        assert_eq!(given.selinux_label.is_some(), labelled, "{given:?}");
        assert_eq!(given.mount_label.is_some(), labelled, "{given:?}");
        if of_pod.or(own).is_some() {
            let process = "system_u:system_r:container_t:s0:c7,c8";
            assert_eq!(given.selinux_label.as_deref(), Some(process));
        }
    }
}

/// On a machine whose policy has no container types, pods that request no label still run.
#[test]
fn policy_without_container_types_fails_on_request_only() {
    let root = box_with_selinux();
    let modules = Modules::open(root.path(), IsolationMode::Root, false);
    fs::remove_file(root.path().join("sys/fs/selinux/context")).unwrap();
    let asks = level("s0:c1,c2");
    let pod = modules.pod(None, [].iter()).unwrap();
    assert!(!modules.labels(None) && modules.labels(Some(&asks)));
    let given = modules.container(None, None, pod.as_ref()).unwrap();
    assert_eq!(given, modules.container(None, None, None).unwrap());
    let refused = modules.pod(Some(&asks), [].iter()).unwrap_err().0;
    assert!(refused.contains("container_t:s0:c1,c2 is unavailable"), "{refused}");
}

/// A pod of an earlier version has no labels to derive a container's from.
#[test]
fn container_labels_need_labelled_pod() {
    let root = box_with_selinux();
    let modules = Modules::open(root.path(), IsolationMode::Root, false);
    let context =
        LinuxContainerSecurityContext { selinux_options: Some(level("s0")), ..Default::default() };
    let refused = modules.container(Some(&context), None, None);
    assert!(refused.unwrap_err().to_string().contains("recreate it"));
    modules.container(None, None, None).unwrap();
}

#[test]
fn pods_get_distinct_selinux_levels() {
    let root = box_with_selinux();
    let modules = Modules::open(root.path(), IsolationMode::Root, true);
    let mut pods: Vec<Labels> = Vec::new();
    for _ in 0..50 {
        let labels = modules.pod(None, pods.iter()).unwrap().unwrap();
        assert!(!pods.contains(&labels));
        pods.push(labels);
    }
}

#[test]
fn selinux_labels_are_validated_by_policy() {
    let root = box_with_selinux();
    let modules = Modules::open(root.path(), IsolationMode::Root, true);
    let pod = modules.pod(Some(&level("s0:c1,c2")), [].iter()).unwrap();
    modules.container(None, None, pod.as_ref()).unwrap();
    let shown = text(root.path(), "sys/fs/selinux/context");
    assert_eq!(shown, "system_u:object_r:container_file_t:s0:c1,c2");
    // A policy without the label refuses the write; so does a directory.
    fs::remove_file(root.path().join("sys/fs/selinux/context")).unwrap();
    fs::create_dir(root.path().join("sys/fs/selinux/context")).unwrap();
    let refused = modules.container(None, None, pod.as_ref()).unwrap_err().to_string();
    assert!(refused.contains("container_t:s0:c1,c2 is unavailable"), "{refused}");
}

#[test]
fn labels_are_ignored_without_selinux() {
    let nothing = TempDir::new().unwrap();
    let labels = box_with_selinux();
    for (root, isolation) in [(&nothing, IsolationMode::Root), (&labels, IsolationMode::Process)] {
        let modules = Modules::open(root.path(), isolation, true);
        assert_eq!(modules.pod(None, [].iter()), Ok(None));
        assert_eq!(modules.pod(Some(&SeLinuxOption::default()), [].iter()), Ok(None));
        assert_eq!(modules.pod(Some(&level("s0")), [].iter()), Ok(None));
        let context = LinuxContainerSecurityContext {
            selinux_options: Some(level("s0:c1,c2")),
            ..Default::default()
        };
        for context in [None, Some(&context)] {
            let given = modules.container(context, None, None).unwrap();
            assert_eq!((given.selinux_label, given.mount_label), (None, None));
        }
        // A label that is invalid on every machine stays refused (containerd).
        modules.pod(Some(&level("s0,c4")), [].iter()).unwrap_err();
    }
}

#[test]
fn policy_context_file_is_read() {
    let root = box_with_selinux();
    put(root.path(), "etc/selinux/config", "SELINUX=enforcing\nSELINUXTYPE=mine\n");
    put(
        root.path(),
        "etc/selinux/mine/contexts/lxc_contexts",
        "process = \"system_u:system_r:svirt_t:s0\"\n",
    );
    let process = || {
        let modules = Modules::open(root.path(), IsolationMode::Root, true);
        modules.pod(Some(&level("s0")), [].iter()).unwrap().unwrap().process
    };
    assert_eq!(process(), "system_u:system_r:svirt_t:s0");
    put(root.path(), CONTEXTS, "process = \"system_u:system_r:best_t:s0\"\n");
    assert_eq!(process(), "system_u:system_r:best_t:s0");
}
