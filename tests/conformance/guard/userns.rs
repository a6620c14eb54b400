//! Pods with their own user namespace: ids, file owners, and ownership of the other namespaces.

use std::os::unix::fs::MetadataExt as _;

use cri::v1::{
    Capability, ContainerConfig, IdMapping, Int64Value, Mount, NamespaceMode, PodSandboxConfig,
    UserNamespace,
};

use crate::guard::security;
use crate::support::*;

fn mapping((container_id, host_id, length): (u32, u32, u32)) -> IdMapping {
    IdMapping { host_id, container_id, length }
}

/// The mapping of critest, or ids from the range of a rootless runtime.
async fn ids(runtime: &Runtime) -> (u32, u32, u32) {
    if runtime.isolation().await.unwrap() == "root" { (0, 1000, 100_000) } else { (0, 2000, 3000) }
}

fn user_namespace(mode: NamespaceMode, maps: &[(u32, u32, u32)]) -> UserNamespace {
    let maps: Vec<IdMapping> = maps.iter().copied().map(mapping).collect();
    UserNamespace { mode: mode.into(), uids: maps.clone(), gids: maps }
}

fn with(mut config: PodSandboxConfig, users: UserNamespace) -> PodSandboxConfig {
    fixture::pod_namespaces(&mut config).userns_options = Some(users);
    config
}

/// Adds a user namespace for the pod to `config`.
pub(crate) async fn with_user_namespace(
    runtime: &Runtime,
    config: PodSandboxConfig,
) -> PodSandboxConfig {
    with(config, user_namespace(NamespaceMode::Pod, &[ids(runtime).await]))
}

async fn pod(runtime: &Runtime) -> Pod {
    let config = with_user_namespace(runtime, runtime.sandbox("p")).await;
    Pod::run(&runtime.client, config).await.unwrap()
}

/// The words of a text.
fn split_words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Root of the pod has power over the pod's namespaces, and none over the host's.
#[tokio::test]
async fn root_in_user_namespace_has_power_over_pod_only() {
    harness::needs!(UserIds);
    let runtime = Runtime::start().await.unwrap();
    let mut config =
        with(runtime.sandbox("p"), user_namespace(NamespaceMode::Pod, &[ids(&runtime).await]));
    let linux = config.linux.as_mut().unwrap();
    linux.sysctls.insert("kernel.shm_rmid_forced".to_owned(), "1".to_owned());
    linux.sysctls.insert("net.ipv4.ip_unprivileged_port_start".to_owned(), "80".to_owned());
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let mut config = pod.script(
        "c",
        "mkdir /tmp/m && mount -t tmpfs none /tmp/m && echo mounted
        hostname
        hostname other && hostname
        cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start
        echo x > /dev/null && head -c 1 /dev/zero | wc -c
        echo x > /dev/shm/x && stat -c %u /dev/shm /dev/shm/x /dev/pts /dev
        (echo 1 > /proc/sys/kernel/panic) 2>/dev/null && echo changed the host; true",
    );
    fixture::security(&mut config).capabilities = Some(Capability {
        add_capabilities: vec!["SYS_ADMIN".to_owned(), "NET_ADMIN".to_owned()],
        ..Default::default()
    });
    let out = pod.output(config).await.unwrap();
    assert_eq!(out, "mounted\np\nother\n1\n80\n1\n0\n0\n0\n0\n");
}

/// A pod's sysctl uses the group ids of its own user namespace.
#[tokio::test]
async fn requested_ping_range_is_in_groups_of_user_namespace() {
    harness::needs!(UserIds);
    let runtime = Runtime::start().await.unwrap();
    let mapped = ids(&runtime).await;
    let all = format!("0 {}", mapped.2 - 1);
    let cases = [("part", "5 1000", "5 1000"), ("all", "0 2147483647", all.as_str())];
    for (name, requested, expected) in cases {
        let mut config = with(runtime.sandbox(name), user_namespace(NamespaceMode::Pod, &[mapped]));
        let linux = config.linux.as_mut().unwrap();
        linux.sysctls.insert("net.ipv4.ping_group_range".to_owned(), requested.to_owned());
        let pod = Pod::run(&runtime.client, config).await.unwrap();
        let script = pod.script("c", "cat /proc/sys/net/ipv4/ping_group_range");
        let out = pod.output(script).await.unwrap();
        assert_eq!(split_words(&out).join(" "), expected);
    }
}

/// In the pod, files of an image and new files have the image's ids; on disk they have the mapped ids.
#[tokio::test]
async fn image_files_keep_owners_in_user_namespace() {
    harness::needs!(UserIds);
    let lower = Layer::new()
        .file("etc/passwd", 0o644, "alice:x:1001:1002::/:/bin/sh\n")
        .file("data", 0o600, "x")
        .owned_by(1001, 1002)
        .directory("tmp", 0o1777);
    let lower = with_programs(lower, &["/bin/sh", "/usr/bin/stat", "/bin/cat", "/bin/ls"]);
    let upper = Layer::new().file("more", 0o644, "y").owned_by(7, 8);
    let name = "example.com/owners:1";
    let place = tempfile::tempdir().unwrap();
    let archive = place.path().join("image.tar");
    let image = ImageBuilder::new(name).layer(lower).layer(upper);
    image.write_docker(&archive).unwrap();
    let runtime = Runtime::with().archive(&archive).start().await.unwrap();
    runtime.client.pull(name).await.unwrap();
    let pod = pod(&runtime).await;
    let script = "stat -c '%u %g' / /etc/passwd /data /more /etc/hosts
        echo z > /new && echo z >> /more && stat -c '%u %g' /new /more";
    let config = of_image(pod.script("c", script), name);
    let out = pod.output(config).await.unwrap();
    assert_eq!(split_words(&out).join(" "), "0 0 0 0 1001 1002 7 8 0 0 0 0 7 8", "{out}");
    let mut config = pod.script("d", "cat /data && echo z > /tmp/z && stat -c '%u %g' /tmp/z");
    config.image.as_mut().unwrap().image = name.to_owned();
    fixture::security(&mut config).run_as_username = "alice".to_owned();
    let out = pod.output(config).await.unwrap();
    assert_eq!(split_words(&out).join(" "), "x1001 1002");
}

#[rstest]
#[tokio::test]
async fn host_root_keeps_owners_in_user_namespace(#[values(false, true)] readonly_rootfs: bool) {
    harness::needs!(UserIds);
    let runtime = Runtime::start().await.unwrap();
    let pod = pod(&runtime).await;
    let mut config = pod.script(
        "c",
        "(echo x > /etc/crib-test) 2>/dev/null && stat -c %u /etc/crib-test /etc/passwd; echo x > /dev/shm/y; stat -c %u /etc/hosts",
    );
    fixture::security(&mut config).readonly_rootfs = readonly_rootfs;
    let out = pod.output(config).await.unwrap();
    if readonly_rootfs {
        assert_eq!(out, "0\n");
    } else if runtime.isolation().await.unwrap() == "root" {
        assert_eq!(out, "0\n0\n0\n");
    }
}

fn volume(path: &std::path::Path, maps: &[(u32, u32, u32)]) -> Mount {
    let maps: Vec<IdMapping> = maps.iter().copied().map(mapping).collect();
    Mount {
        container_path: "/volume".to_owned(),
        host_path: path.to_str().unwrap().to_owned(),
        uid_mappings: maps.clone(),
        gid_mappings: maps,
        ..Default::default()
    }
}

fn with_mount(mut config: ContainerConfig, mount: Mount) -> ContainerConfig {
    config.mounts.push(mount);
    config
}

#[tokio::test]
async fn volume_mappings_translate_file_owners() {
    harness::needs!(Namespaces);
    let place = tempfile::tempdir().unwrap();
    let volume_at = place.path().join("volume");
    std::fs::create_dir(&volume_at).unwrap();
    std::fs::write(volume_at.join("old"), "x").unwrap();
    let runtime = Runtime::start().await.unwrap();
    if runtime.isolation().await.unwrap() != "root" {
        let pod = runtime.pod("p").await.unwrap();
        let config = with_mount(fixture::forever("c"), volume(&volume_at, &[(0, 2000, 1000)]));
        rejected(pod.create(config).await, Code::InvalidArgument, "root");
        return;
    }
    let pod = pod(&runtime).await;
    let script = "stat -c '%u %g' /volume/old; (echo x > /volume/new) 2>/dev/null; true";
    let run = async |pod: &Pod, maps: &[(u32, u32, u32)]| {
        let config = pod.script(&fixture::unique("c"), script);
        let config = with_mount(config, volume(&volume_at, maps));
        pod.output(config).await.unwrap()
    };
    assert_eq!(run(&pod, &[]).await, "65534 65534\n");
    assert!(!volume_at.join("new").exists());
    assert_eq!(run(&pod, &[(0, 1000, 100_000)]).await, "0 0\n");
    let new = std::fs::metadata(volume_at.join("new")).unwrap();
    assert_eq!((new.uid(), new.gid()), (0, 0));
    // A mapping that differs from the pod's, and a pod without a user namespace.
    assert_eq!(run(&pod, &[(0, 1005, 10)]).await, "5 5\n");
    let plain = runtime.pod("q").await.unwrap();
    assert_eq!(run(&plain, &[(0, 300, 10)]).await, "300 300\n");
}

#[rstest]
#[case::none(&[])]
#[case::no_ids(&[(0, 1000, 0)])]
#[case::beyond_all_ids(&[(0, u32::MAX - 3, 10)])]
#[tokio::test]
async fn run_pod_rejects_user_namespace_without_ids(#[case] maps: &[(u32, u32, u32)]) {
    let runtime = Runtime::start().await.unwrap();
    let config = with(runtime.sandbox("p"), user_namespace(NamespaceMode::Pod, maps));
    let result = runtime.client.run_pod(config).await;
    assert_eq!(code(result), Code::InvalidArgument);
}

/// A rootless runtime has only its subordinate ids.
#[tokio::test]
async fn rootless_runtime_rejects_ids_outside_its_range() {
    let runtime = Runtime::start().await.unwrap();
    if !runtime.isolation().await.unwrap().contains("rootless") {
        return;
    }
    let users = user_namespace(NamespaceMode::Pod, &[(0, 1000, 100_000_000)]);
    rejected(
        runtime.client.run_pod(with(runtime.sandbox("p"), users)).await,
        Code::InvalidArgument,
        "cannot be mapped",
    );
}

#[tokio::test]
async fn node_mode_uses_user_namespace_of_runtime() {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    let users = user_namespace(NamespaceMode::Node, &[]);
    let config = with(runtime.sandbox("p"), users.clone());
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let mut config = pod.script("c", "readlink /proc/self/ns/user");
    let options = fixture::security(&mut config).namespace_options.as_mut();
    options.unwrap().userns_options = Some(users);
    let daemon = ObservedProcess { pid: runtime.pid().unwrap() };
    assert_eq!(pod.output(config).await.unwrap().trim(), daemon.namespaces()["user"]);
    // A container cannot have another user namespace than its pod.
    let mut config = fixture::forever("d");
    let options = fixture::security(&mut config).namespace_options.as_mut();
    options.unwrap().userns_options = Some(user_namespace(NamespaceMode::Pod, &[(0, 1000, 10)]));
    assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
}

/// With a shared PID namespace, and with the host network.
#[rstest]
#[case::shared_processes(NamespaceMode::Pod, NamespaceMode::Pod)]
#[case::host_network(NamespaceMode::Node, NamespaceMode::Container)]
#[tokio::test]
async fn user_namespace_works_with_shared_pids_and_host_network(
    #[case] network: NamespaceMode,
    #[case] pid: NamespaceMode,
) {
    harness::needs!(UserIds);
    let runtime = Runtime::start().await.unwrap();
    let users = user_namespace(NamespaceMode::Pod, &[ids(&runtime).await]);
    let mut config = with(runtime.sandbox("p"), users);
    if network == NamespaceMode::Node {
        config.hostname.clear();
    }
    let options = fixture::pod_namespaces(&mut config);
    options.network = network.into();
    options.pid = pid.into();
    let options = options.clone();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let of_pod = |mut config: ContainerConfig| {
        fixture::security(&mut config).namespace_options = Some(options.clone());
        config
    };
    let look = "read inside outside count < /proc/self/uid_map; echo $outside; ls /sys/class/net | grep -c lo";
    let id = pod.start(of_pod(fixture::forever("c"))).await.unwrap();
    let (_, outside, _) = ids(&runtime).await;
    let expected = format!("{outside}\n1\n");
    assert_eq!(runtime.client.sh(&id, look).await.unwrap(), expected);
    let out = pod.output(of_pod(pod.script("d", look))).await.unwrap();
    assert_eq!(out, expected);
}

#[tokio::test]
async fn container_in_user_namespace_runs_as_mapped_user() {
    harness::needs!(UserIds);
    let runtime = Runtime::start().await.unwrap();
    let pod = pod(&runtime).await;
    let mut config = pod.script("c", "id -u; id -G; grep Seccomp: /proc/self/status");
    let security = fixture::security(&mut config);
    security.run_as_user = Some(Int64Value { value: 1001 });
    security.run_as_group = Some(Int64Value { value: 1002 });
    security.supplemental_groups = vec![5];
    security.seccomp = Some(v1::SecurityProfile::default());
    let out = pod.output(config).await.unwrap();
    assert_eq!(split_words(&out).join(" "), "1001 1002 5 Seccomp: 2");
    // An unmapped user id.
    let mut config = fixture::forever("d");
    fixture::security(&mut config).run_as_user = Some(Int64Value { value: 900_000 });
    assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
}

/// Some versions of containerd lose the mapping: later containers and execs must be in the namespace too.
#[tokio::test]
async fn user_namespace_mapping_survives_daemon_restart() {
    harness::needs!(UserIds);
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let pod = pod(&runtime).await;
    let id = pod.start(fixture::forever("c")).await.unwrap();
    runtime.kill_and_restart().await.unwrap();
    let pod = Pod { client: runtime.client.clone(), ..pod };
    let look = "cat /proc/self/uid_map; readlink /proc/self/ns/user";
    let exec = runtime.client.sh(&id, look).await.unwrap();
    let (inside, outside, count) = ids(&runtime).await;
    let expected = format!("{inside} {outside} {count}");
    assert!(split_words(&exec).join(" ").starts_with(&expected), "{exec}");
    let next = pod.output(pod.script("d", look)).await.unwrap();
    assert_eq!(next, exec);
}

/// Whether a user may have processes with this id: its own, or one assigned to it in `/etc/subuid` or `/etc/subgid`.
fn may_have(id: u32, own: u32, file: &str, of: &str) -> bool {
    let given = std::fs::read_to_string(file).unwrap_or_default();
    let mut ranges = given.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let user = fields.next().filter(|user| *user == of)?;
        let mut number = || fields.next()?.parse::<u32>().ok();
        (!user.is_empty()).then_some((number()?, number()?))
    });
    id == own || ranges.any(|(first, count)| (first..first + count).contains(&id))
}

/// These ids limit a program that escapes from its container.
#[tokio::test]
async fn processes_of_rootless_runtime_have_ids_of_its_user() {
    harness::needs!(Namespaces, UserNamespaces);
    let runtime = rootless().start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let (id, root) = security::start_with_witness(&pod, fixture::forever("root")).await;
    let mut witnesses = vec![root];
    if !runtime.isolation().await.unwrap().contains("single id") {
        let mut config = fixture::forever("user");
        fixture::security(&mut config).run_as_user = Some(Int64Value { value: 1001 });
        witnesses.push(security::start_with_witness(&pod, config).await.1);
        let own_users = self::pod(&runtime).await;
        let config = fixture::forever("own");
        witnesses.push(security::start_with_witness(&own_users, config).await.1);
    }
    let mark = fixture::unique("mark");
    let client = runtime.client.clone();
    let script = format!(": {mark}; sleep 1000; :");
    let exec = tokio::spawn(async move { client.sh(&id, &script).await });
    let exec_process = eventually(WAIT_LIMIT, "the process of the exec", || async {
        let mut all = procfs::processes().into_iter();
        all.find(|process| process.command_line().contains(&mark)).ok_or("no process")
    })
    .await;
    witnesses.push(exec_process);
    let leaks = runtime.leaks().processes();
    witnesses.extend(leaks.iter().filter_map(|leak| {
        let harness::leak::Leak::Process { process, .. } = leak else { return None };
        Some(*process)
    }));
    let names: Vec<String> = witnesses.iter().map(|process| process.text("comm")).collect();
    for name in ["crib-keeper", "crib-zygote"] {
        assert!(names.iter().any(|seen| seen.trim() == name), "{names:?}");
    }
    let user =
        if nix::unistd::geteuid().is_root() { NOBODY } else { nix::unistd::geteuid().as_raw() };
    let group =
        if nix::unistd::geteuid().is_root() { NOBODY } else { nix::unistd::getegid().as_raw() };
    let name = nix::unistd::User::from_uid(user.into()).unwrap().unwrap().name;
    for process in witnesses {
        for (field, own, file) in [("Uid", user, "/etc/subuid"), ("Gid", group, "/etc/subgid")] {
            // The process may have exited.
            let ids = process.status(field).unwrap_or_default();
            let mut ids = ids.split_whitespace().map(|id| id.parse().unwrap());
            assert!(ids.all(|id| may_have(id, own, file, &name)), "{process:?}: {field}");
        }
    }
    exec.abort();
}
