//! The security modules, by files of a directory that stands for the kernel's.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Mutex;

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
    put(
        root.path(),
        "sys/kernel/security/apparmor/profiles",
        profiles,
    );
    root
}

fn box_with_selinux() -> TempDir {
    let root = TempDir::new().unwrap();
    put(root.path(), "sys/fs/selinux/context", "");
    root
}

/// A parser that does with a profile what the kernel would: it is in the list.
fn put_parser(root: &Path, script: &str) {
    let path = root.join("sbin/apparmor_parser");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
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
    SeLinuxOption {
        level: level.to_owned(),
        ..Default::default()
    }
}

fn apparmor_of(
    modules: &Modules,
    context: Option<&LinuxContainerSecurityContext>,
) -> Option<String> {
    modules.container(context, None, None).unwrap().apparmor
}

#[test]
fn the_runtimes_own_profile_is_loaded_once() {
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
    let modules = Modules::open(root.path(), Rung::Root, false);
    assert_eq!(text(root.path(), "rules"), apparmor::DEFAULT_RULES);
    assert_eq!(text(root.path(), "calls"), "--replace --skip-cache\n");
    assert_eq!(apparmor_of(&modules, None).as_deref(), Some("crib-default"));
    let [(_, said), _] = modules.describe();
    assert!(said.starts_with("crib-default"), "{said}");
    // Another daemon finds it there.
    Modules::open(root.path(), Rung::Root, false);
    assert_eq!(text(root.path(), "calls").lines().count(), 1);
}

#[test]
fn without_a_parser_that_works_only_named_profiles_confine() {
    for script in [None, Some("echo 'no such abi' >&2; exit 1")] {
        let root = box_with_apparmor("other (enforce)\n");
        if let Some(script) = script {
            put_parser(root.path(), script);
        }
        let modules = Modules::open(root.path(), Rung::Root, false);
        assert_eq!(apparmor_of(&modules, None), None);
        assert_eq!(
            apparmor_of(&modules, Some(&localhost("other"))).as_deref(),
            Some("other")
        );
        assert_eq!(modules.describe()[0].1, "named profiles only");
    }
}

#[test]
fn an_ordinary_user_loads_nothing() {
    let root = box_with_apparmor("");
    put_parser(
        root.path(),
        &format!("touch {}/called", root.path().display()),
    );
    Modules::open(root.path(), Rung::Rootless, false);
    assert!(!root.path().join("called").exists());
}

#[test]
fn a_profile_that_is_loaded_later_is_found() {
    let root = box_with_apparmor("");
    let modules = Modules::open(root.path(), Rung::Root, false);
    let refused = modules.container(Some(&localhost("later")), None, None);
    assert!(
        refused
            .unwrap_err()
            .0
            .starts_with("apparmor profile not found later")
    );
    put(
        root.path(),
        "sys/kernel/security/apparmor/profiles",
        "later (enforce)\n",
    );
    assert_eq!(
        apparmor_of(&modules, Some(&localhost("later"))).as_deref(),
        Some("later")
    );
}

#[test]
fn switched_off_is_as_not_there() {
    let root = box_with_apparmor("p (enforce)\n");
    put(root.path(), "sys/module/apparmor/parameters/enabled", "N\n");
    let modules = Modules::open(root.path(), Rung::Root, false);
    let refused = modules.container(Some(&localhost("p")), None, None);
    assert!(refused.unwrap_err().0.contains("no AppArmor"));
    assert_eq!(modules.describe()[0].1, "none");
}

#[test]
fn labels_are_for_those_who_ask_or_for_all() {
    let root = box_with_selinux();
    let asks = level("s0:c7,c8");
    for (all, of_pod, own, labelled) in [
        (false, None, None, false),
        (false, Some(&asks), None, true),
        (false, None, Some(&asks), true),
        (true, None, None, true),
    ] {
        let modules = Modules::open(root.path(), Rung::Root, all);
        let pod = modules.pod(of_pod, [].iter()).unwrap().unwrap();
        let context = LinuxContainerSecurityContext {
            selinux_options: own.cloned(),
            ..Default::default()
        };
        let given = modules
            .container(Some(&context), of_pod, Some(&pod))
            .unwrap();
        assert_eq!(given.selinux.is_some(), labelled, "{given:?}");
        assert_eq!(given.files.is_some(), labelled, "{given:?}");
        if of_pod.or(own).is_some() {
            let process = "system_u:system_r:container_t:s0:c7,c8";
            assert_eq!(given.selinux.as_deref(), Some(process));
        }
    }
}

/// On a box whose policy knows no containers pods that ask for nothing are none the worse for it.
#[test]
fn a_policy_without_containers_matters_to_those_who_ask() {
    let root = box_with_selinux();
    let modules = Modules::open(root.path(), Rung::Root, false);
    fs::remove_file(root.path().join("sys/fs/selinux/context")).unwrap();
    let asks = level("s0:c1,c2");
    let pod = modules.pod(None, [].iter()).unwrap();
    assert!(!modules.labels(None) && modules.labels(Some(&asks)));
    let given = modules.container(None, None, pod.as_ref()).unwrap();
    assert_eq!(given, modules.container(None, None, None).unwrap());
    let refused = modules.pod(Some(&asks), [].iter()).unwrap_err().0;
    assert!(
        refused.contains("container_t:s0:c1,c2 cannot be had"),
        "{refused}"
    );
}

/// A pod of an earlier version has no labels that a container's could be made of.
#[test]
fn a_pod_without_labels_has_no_containers_with_some() {
    let root = box_with_selinux();
    let modules = Modules::open(root.path(), Rung::Root, false);
    let context = LinuxContainerSecurityContext {
        selinux_options: Some(level("s0")),
        ..Default::default()
    };
    let refused = modules.container(Some(&context), None, None);
    assert!(refused.unwrap_err().0.contains("make it anew"));
    modules.container(None, None, None).unwrap();
}

#[test]
fn no_two_pods_have_the_same_level() {
    let root = box_with_selinux();
    let modules = Modules::open(root.path(), Rung::Root, true);
    let mut pods: Vec<Labels> = Vec::new();
    for _ in 0..50 {
        let labels = modules.pod(None, pods.iter()).unwrap().unwrap();
        assert!(!pods.contains(&labels));
        pods.push(labels);
    }
}

#[test]
fn a_label_is_shown_to_the_policy() {
    let root = box_with_selinux();
    let modules = Modules::open(root.path(), Rung::Root, true);
    let pod = modules.pod(Some(&level("s0:c1,c2")), [].iter()).unwrap();
    modules.container(None, None, pod.as_ref()).unwrap();
    let shown = text(root.path(), "sys/fs/selinux/context");
    assert_eq!(shown, "system_u:object_r:container_file_t:s0:c1,c2");
    // A policy that does not know it refuses the write; a directory does, too.
    fs::remove_file(root.path().join("sys/fs/selinux/context")).unwrap();
    fs::create_dir(root.path().join("sys/fs/selinux/context")).unwrap();
    let refused = modules.container(None, None, pod.as_ref()).unwrap_err().0;
    assert!(
        refused.contains("container_t:s0:c1,c2 cannot be had"),
        "{refused}"
    );
}

#[test]
fn labels_are_ignored_without_selinux() {
    let nothing = TempDir::new().unwrap();
    let labels = box_with_selinux();
    for (root, rung) in [(&nothing, Rung::Root), (&labels, Rung::Process)] {
        let modules = Modules::open(root.path(), rung, true);
        assert_eq!(modules.pod(None, [].iter()), Ok(None));
        assert_eq!(
            modules.pod(Some(&SeLinuxOption::default()), [].iter()),
            Ok(None)
        );
        assert_eq!(modules.pod(Some(&level("s0")), [].iter()), Ok(None));
        let context = LinuxContainerSecurityContext {
            selinux_options: Some(level("s0:c1,c2")),
            ..Default::default()
        };
        for context in [None, Some(&context)] {
            let given = modules.container(context, None, None).unwrap();
            assert_eq!((given.selinux, given.files), (None, None));
        }
        // What is no label on any box stays refused (containerd).
        modules.pod(Some(&level("s0,c4")), [].iter()).unwrap_err();
    }
}

#[test]
fn a_policys_own_names_are_found() {
    let root = box_with_selinux();
    put(
        root.path(),
        "etc/selinux/config",
        "SELINUX=enforcing\nSELINUXTYPE=mine\n",
    );
    put(
        root.path(),
        "etc/selinux/mine/contexts/lxc_contexts",
        "process = \"system_u:system_r:svirt_t:s0\"\n",
    );
    let process = || {
        let modules = Modules::open(root.path(), Rung::Root, true);
        modules
            .pod(Some(&level("s0")), [].iter())
            .unwrap()
            .unwrap()
            .process
    };
    assert_eq!(process(), "system_u:system_r:svirt_t:s0");
    put(
        root.path(),
        CONTEXTS,
        "process = \"system_u:system_r:best_t:s0\"\n",
    );
    assert_eq!(process(), "system_u:system_r:best_t:s0");
}

#[test]
fn the_kernel_is_told_where_it_listens() {
    let confinement = |root: &TempDir| Confinement {
        apparmor: Some("p".to_owned()),
        kernel: Some(root.path().to_owned()),
        ..Default::default()
    };
    let new = TempDir::new().unwrap();
    put(new.path(), "proc/self/attr/apparmor/exec", "");
    put(new.path(), "proc/self/attr/exec", "");
    let both = Confinement {
        selinux: Some("u:r:t:s0".to_owned()),
        ..confinement(&new)
    };
    confine(&both).unwrap();
    assert_eq!(text(new.path(), "proc/self/attr/apparmor/exec"), "exec p");
    assert_eq!(text(new.path(), "proc/self/attr/exec"), "u:r:t:s0");

    let old = TempDir::new().unwrap();
    put(old.path(), "proc/self/attr/exec", "");
    confine(&confinement(&old)).unwrap();
    assert_eq!(text(old.path(), "proc/self/attr/exec"), "exec p");

    // What is not there is not made.
    let none = TempDir::new().unwrap();
    let error = confine(&confinement(&none)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    confine(&Confinement::default()).unwrap();
}

#[test]
fn everything_below_is_visited_but_nothing_behind_a_link() {
    let root = TempDir::new().unwrap();
    put(root.path(), "a/b/deep", "");
    put(root.path(), "a/file", "");
    put(root.path(), "outside/secret", "");
    symlink("../outside", root.path().join("a/link")).unwrap();
    symlink("nowhere", root.path().join("a/b/dangling")).unwrap();
    let visited = Mutex::new(Vec::new());
    let note = |path: &Path| {
        // Where it leads, without the last link.
        let parent = fs::canonicalize(path.parent().unwrap()).unwrap();
        let below = parent.join(path.file_name().unwrap());
        let below = below
            .strip_prefix(fs::canonicalize(&root).unwrap())
            .unwrap();
        visited.lock().unwrap().push(below.display().to_string());
        Ok(())
    };
    each_below(&root.path().join("a"), &note).unwrap();
    let mut visited = visited.into_inner().unwrap();
    let at = |name: &str| visited.iter().position(|v| v == name).unwrap();
    assert!(at("a/b/deep") < at("a/b"));
    visited.sort();
    assert_eq!(
        visited,
        ["a/b", "a/b/dangling", "a/b/deep", "a/file", "a/link"]
    );
    // A file has nothing below it.
    each_below(&root.path().join("a/file"), &|_| panic!()).unwrap();
}

#[test]
fn what_is_the_hosts_is_not_relabelled() {
    let root = TempDir::new().unwrap();
    symlink("/etc", root.path().join("etc")).unwrap();
    for path in [
        Path::new("/"),
        Path::new("/usr/"),
        Path::new("/usr/../etc"),
        &root.path().join("etc"),
    ] {
        let error = relabel(path, "u:r:t:s0").unwrap_err();
        assert_eq!(
            error.kind(),
            io::ErrorKind::InvalidInput,
            "{}",
            path.display()
        );
    }
}

#[test]
fn files_get_the_label() {
    let root = TempDir::new().unwrap();
    put(root.path(), "volume/d/file", "");
    let volume = root.path().join("volume");
    let label = "system_u:object_r:container_file_t:s0:c1,c2";
    match relabel(&volume, label) {
        Ok(()) => {}
        // Where no module guards them, such attributes are root's to set.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let _ = writeln!(
                io::stderr(),
                "skipped: files_get_the_label: only root may set {XATTR}"
            );
            return;
        }
        Err(error) => panic!("{error}"),
    }
    for path in [&volume, &volume.join("d"), &volume.join("d/file")] {
        let mut there = [0; 100];
        match lgetxattr(path, XATTR, &mut there[..]) {
            Ok(length) => assert_eq!(&there[..length], label.as_bytes()),
            Err(error) => assert_eq!(error, Errno::NODATA, "a file system without labels"),
        }
    }
    relabel(&volume, label).unwrap();
}
