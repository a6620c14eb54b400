//! Namespaces: what containers see of the host and of each other.

use std::collections::BTreeMap;

use cri::v1::{ContainerConfig, KeyValue, NamespaceMode, PodSandboxConfig};
use harness::witness::{self, Witness};
use harness::{PATIENCE, Pod, Runtime, eventually, fixture};
use rstest::rstest;
use tonic::Code;

use crate::support::{Means, code, skip_if, trimmed};

/// Starts a container, and finds its first process from outside.
async fn start_with_witness(pod: &Pod, mut config: ContainerConfig) -> Witness {
    let mark = fixture::unique("mark");
    config.envs.push(KeyValue {
        key: "CRIB_TEST_MARK".to_owned(),
        value: mark.clone().into(),
    });
    let id = pod.start(config).await.unwrap();
    // The shell's children have the same environment but start later.
    eventually(
        PATIENCE,
        &format!("the process of container {id}"),
        || async {
            witness::marked(&format!("CRIB_TEST_MARK={mark}"))
                .first()
                .copied()
                .ok_or("no such process")
        },
    )
    .await
}

fn differing_namespaces(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<String> {
    ["ipc", "mnt", "net", "pid", "uts"]
        .into_iter()
        .filter(|name| {
            assert!(
                a.contains_key(*name) && b.contains_key(*name),
                "{a:?} {b:?}"
            );
            a[*name] != b[*name]
        })
        .map(ToOwned::to_owned)
        .collect()
}

#[tokio::test]
async fn containers_share_ipc_net_and_uts_namespaces_of_pod() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "containers_share_ipc_net_and_uts_namespaces_of_pod",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let other_pod = runtime.pod("q").await.unwrap();
    let first = start_with_witness(&pod, fixture::forever("a"))
        .await
        .namespaces();
    let second = start_with_witness(&pod, fixture::forever("b"))
        .await
        .namespaces();
    let third = start_with_witness(&other_pod, fixture::forever("a"))
        .await
        .namespaces();
    let host = witness::own().namespaces();
    let all = ["ipc", "mnt", "net", "pid", "uts"];
    assert_eq!(differing_namespaces(&first, &host), all);
    assert_eq!(differing_namespaces(&first, &third), all);
    assert_eq!(differing_namespaces(&first, &second), ["mnt", "pid"]);
}

/// The container has a cgroup namespace, so it does not see the host's cgroups above its own.
#[tokio::test]
async fn container_sees_own_cgroup_as_root() {
    const LOOK: &str = "cut -d: -f3- /proc/self/cgroup | sort -u";
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "container_sees_own_cgroup_as_root",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    assert_eq!(pod.output(pod.script("a", LOOK)).await.unwrap(), "/\n");
    let id = pod.start(fixture::forever("b")).await.unwrap();
    assert_eq!(runtime.client.sh(&id, LOOK).await.unwrap(), "/\n");
}

#[tokio::test]
async fn pod_uses_host_namespaces_when_requested() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "pod_uses_host_namespaces_when_requested",
        Means::of(&runtime).await.no_namespaces()
    );
    let mut config = runtime.sandbox("p");
    config.hostname.clear();
    let options = fixture::pod_namespaces(&mut config);
    options.network = NamespaceMode::Node.into();
    options.ipc = NamespaceMode::Node.into();
    options.pid = NamespaceMode::Node.into();
    let options = options.clone();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let mut container = fixture::forever("c");
    fixture::security(&mut container).namespace_options = Some(options);
    let id = pod.start(container.clone()).await.unwrap();
    let script = format!("cat /proc/{}/comm", std::process::id());
    let seen = runtime.client.sh(&id, &script).await.unwrap();
    assert_eq!(seen, std::fs::read_to_string("/proc/self/comm").unwrap());
    container.metadata.as_mut().unwrap().name = "d".to_owned();
    let inside = start_with_witness(&pod, container).await;
    assert_eq!(
        differing_namespaces(&inside.namespaces(), &witness::own().namespaces()),
        ["mnt"]
    );
    let status = runtime.client.pod(&pod.id).await.unwrap().status.unwrap();
    assert_eq!(status.network.unwrap().ip, "");
}

#[tokio::test]
async fn pid_namespace_is_private_or_shared_as_requested() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "pid_namespace_is_private_or_shared_as_requested",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("own").await.unwrap();
    assert_eq!(pod.output(pod.script("a", "echo $$")).await.unwrap(), "1\n");

    let mut config = runtime.sandbox("shared");
    fixture::pod_namespaces(&mut config).pid = NamespaceMode::Pod.into();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let shared = |mut config: ContainerConfig| {
        let options = fixture::security(&mut config)
            .namespace_options
            .get_or_insert_default();
        options.pid = NamespaceMode::Pod.into();
        config
    };
    let neighbour = fixture::container("neighbour", ["sleep", "86399"]);
    let id = pod.start(shared(neighbour)).await.unwrap();
    let out = pod
        .output(shared(pod.script(
            "a",
            "echo $$; grep -c 86399 /proc/[0-9]*/cmdline | grep -c ':1$'",
        )))
        .await
        .unwrap();
    let (pid, seen) = out.split_once('\n').unwrap();
    assert_ne!(pid, "1");
    // At least the neighbour; perhaps also the shell and grep.
    assert!(trimmed(seen).parse::<u32>().unwrap() >= 2, "{out:?}");
    let ours = runtime.client.sh(&id, "cat /proc/1/comm").await.unwrap();
    assert_ne!(ours, "sleep\n");
    runtime.client.stop(&id, 0).await.unwrap();
    assert!(runtime.client.pod_is_ready(&pod.id).await.unwrap());
}

fn with_target_container(mut config: ContainerConfig, target: &str) -> ContainerConfig {
    let options = fixture::security(&mut config)
        .namespace_options
        .get_or_insert_default();
    options.pid = NamespaceMode::Target.into();
    target.clone_into(&mut options.target_id);
    config
}

/// A kubelet requests this for `kubectl debug --target`.
#[tokio::test]
async fn target_mode_joins_pid_namespace_of_container() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "target_mode_joins_pid_namespace_of_container",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let target = pod.start(fixture::forever("app")).await.unwrap();
    let script = "tr '\\0' ' ' < /proc/1/cmdline";
    let debug = with_target_container(pod.script("debug", script), &target[..13]);
    let seen = pod.output(debug).await.unwrap();
    assert!(seen.contains("sleep 1000"), "{seen}");
    // It can signal the target's first process, and ends with the PID namespace.
    let debug = with_target_container(
        pod.script("killer", "kill -TERM 1; exec sleep 1000"),
        &target,
    );
    let killer = pod.start(debug).await.unwrap();
    assert_eq!(pod.ended(&target).await.unwrap().exit_code, 143);
    assert_eq!(pod.ended(&killer).await.unwrap().exit_code, 137);
    let late = with_target_container(fixture::forever("late"), &target);
    assert_eq!(code(pod.create(late).await), Code::FailedPrecondition);
}

#[tokio::test]
async fn create_rejects_invalid_pid_target() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let other = runtime.pod("q").await.unwrap();
    let elsewhere = other.start(fixture::forever("c")).await.unwrap();
    let created = pod.create(fixture::forever("created")).await.unwrap();
    for (target, expected) in [
        ("", Code::InvalidArgument),
        ("no-such-container", Code::NotFound),
        (&elsewhere, Code::InvalidArgument),
        (&created, Code::FailedPrecondition),
    ] {
        let config = with_target_container(fixture::forever("debug"), target);
        assert_eq!(code(pod.create(config).await), expected, "{target:?}");
    }
}

#[tokio::test]
async fn etc_files_follow_hostname_and_dns_config() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "etc_files_follow_hostname_and_dns_config",
        Means::of(&runtime).await.no_namespaces()
    );
    let mut config = runtime.sandbox("web-0");
    config.hostname = "front".to_owned();
    config.dns_config = Some(cri::v1::DnsConfig {
        servers: vec!["192.0.2.53".to_owned()],
        searches: vec!["svc.example".to_owned(), "example".to_owned()],
        options: vec!["ndots:5".to_owned()],
    });
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let out = pod
        .output(pod.script("a", "hostname; cat /etc/hostname; cat /etc/resolv.conf"))
        .await
        .unwrap();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..2], ["front", "front"]);
    for line in [
        "nameserver 192.0.2.53",
        "search svc.example example",
        "options ndots:5",
    ] {
        assert!(lines.contains(&line), "{out}");
    }
    let hosts = pod.output(pod.script("b", "cat /etc/hosts")).await.unwrap();
    let names = |name: &str| {
        hosts
            .lines()
            .any(|line| line.split_whitespace().skip(1).any(|word| word == name))
    };
    assert!(names("localhost") && names("front"), "{hosts}");
}

#[rstest]
#[case::shared_memory("kernel.shm_rmid_forced", "1")]
#[case::network("net.ipv4.ip_unprivileged_port_start", "80")]
#[tokio::test]
async fn sysctl_applies_to_pod_only(#[case] name: &str, #[case] value: &str) {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "sysctl_applies_to_pod_only",
        Means::of(&runtime).await.no_namespaces()
    );
    let mut config = runtime.sandbox("p");
    config
        .linux
        .as_mut()
        .unwrap()
        .sysctls
        .insert(name.to_owned(), value.to_owned());
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    let inside = pod
        .output(pod.script("a", &format!("cat {path}")))
        .await
        .unwrap();
    assert_eq!(trimmed(&inside), value);
    let other = runtime.pod("q").await.unwrap();
    let outside = other
        .output(other.script("a", &format!("cat {path}")))
        .await
        .unwrap();
    assert_ne!(trimmed(&outside), value);
}

#[rstest]
#[case::host_sysctl("vm.swappiness")]
#[case::host_sysctl_with_pod_prefix("kernel.hostname")]
#[case::dot_dot("net/../kernel/hostname")]
#[case::many_dots("net....kernel.hostname")]
#[case::unknown("net.no.such.thing")]
#[tokio::test]
async fn run_pod_rejects_sysctl_outside_pod_namespaces(#[case] name: &str) {
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("p");
    config
        .linux
        .as_mut()
        .unwrap()
        .sysctls
        .insert(name.to_owned(), "1".to_owned());
    assert_eq!(
        code(runtime.client.run_pod(config).await),
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn run_pod_rejects_net_sysctl_in_host_network() {
    let runtime = Runtime::start().await.unwrap();
    let mut config: PodSandboxConfig = runtime.sandbox("p");
    fixture::pod_namespaces(&mut config).network = NamespaceMode::Node.into();
    let sysctls = &mut config.linux.as_mut().unwrap().sysctls;
    sysctls.insert("net.ipv4.ip_forward".to_owned(), "1".to_owned());
    assert_eq!(
        code(runtime.client.run_pod(config).await),
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn run_pod_rejects_user_namespace_without_mappings() {
    let runtime = Runtime::with().start().await.unwrap();
    let mut config = runtime.sandbox("p");
    fixture::pod_namespaces(&mut config).userns_options = Some(cri::v1::UserNamespace {
        mode: NamespaceMode::Pod.into(),
        ..Default::default()
    });
    assert_eq!(
        code(runtime.client.run_pod(config).await),
        Code::InvalidArgument
    );
}

/// A pod in the host network also has the host's UTS namespace.
#[tokio::test]
async fn run_pod_rejects_hostname_in_host_network() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "run_pod_rejects_hostname_in_host_network",
        Means::of(&runtime).await.no_namespaces()
    );
    let mut config = runtime.sandbox("p");
    fixture::pod_namespaces(&mut config).network = NamespaceMode::Node.into();
    let refused = runtime.client.run_pod(config.clone()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("hostname \"p\""), "{refused}");
    config.hostname.clear();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let own = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let script = "hostname; echo $HOSTNAME; cat /etc/hostname";
    let said = pod.output(pod.script("c", script)).await.unwrap();
    assert!(said.starts_with(&format!("{own}\n{own}\n")), "{said}");
}

/// All runtimes set HOSTNAME, unless the client sets it.
#[tokio::test]
async fn hostname_variable_is_set_unless_given() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "hostname_variable_is_set_unless_given",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("front").await.unwrap();
    let script = "printenv HOSTNAME";
    let said = pod.output(pod.script("own", script)).await.unwrap();
    assert_eq!(said, "front\n");
    let mut config = pod.script("told", script);
    config.envs.push(cri::v1::KeyValue {
        key: "HOSTNAME".to_owned(),
        value: b"other".to_vec(),
    });
    assert_eq!(pod.output(config).await.unwrap(), "other\n");
}
