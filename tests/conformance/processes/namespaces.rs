//! Namespaces: what containers see of the host and of each other.

use cri::v1::{ContainerConfig, NamespaceMode, PodSandboxConfig};

use crate::support::*;

/// The container has a cgroup namespace, so it does not see the host's cgroups above its own.
#[tokio::test]
async fn container_sees_own_cgroup_as_root() {
    harness::needs!(Namespaces);
    const LOOK: &str = "cut -d: -f3- /proc/self/cgroup | sort -u";
    let (runtime, pod) = with_pod().await;
    assert_eq!(pod.output(pod.script("a", LOOK)).await.unwrap(), "/\n");
    let id = pod.start(fixture::forever("b")).await.unwrap();
    assert_eq!(runtime.client.sh(&id, LOOK).await.unwrap(), "/\n");
}

fn with_target_container(mut config: ContainerConfig, target: &str) -> ContainerConfig {
    let options = fixture::security(&mut config).namespace_options.get_or_insert_default();
    options.pid = NamespaceMode::Target.into();
    target.clone_into(&mut options.target_id);
    config
}

/// A kubelet requests this for `kubectl debug --target`.
#[tokio::test]
async fn target_mode_joins_pid_namespace_of_container() {
    harness::needs!(Namespaces);
    let (_runtime, pod) = with_pod().await;
    let target = pod.start(fixture::forever("app")).await.unwrap();
    let script = "tr '\\0' ' ' < /proc/1/cmdline";
    let debug = with_target_container(pod.script("debug", script), &target[..13]);
    let seen = pod.output(debug).await.unwrap();
    assert!(seen.contains("sleep 1000"), "{seen}");
    // The debugging container can signal the target's first process, and ends with the PID namespace.
    let debug =
        with_target_container(pod.script("killer", "kill -TERM 1; exec sleep 1000"), &target);
    let killer = pod.start(debug).await.unwrap();
    assert_eq!(pod.ended(&target).await.unwrap().exit_code, 143);
    assert_eq!(pod.ended(&killer).await.unwrap().exit_code, 137);
    let late = with_target_container(fixture::forever("late"), &target);
    assert_eq!(code(pod.create(late).await), Code::FailedPrecondition);
}

#[tokio::test]
async fn create_rejects_invalid_pid_target() {
    let (runtime, pod) = with_pod().await;
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
async fn etc_hosts_names_pod() {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("web-0");
    config.hostname = "front".to_owned();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let hosts = pod.output(pod.script("b", "cat /etc/hosts")).await.unwrap();
    let names = |name: &str| {
        hosts.lines().any(|line| line.split_whitespace().skip(1).any(|word| word == name))
    };
    assert!(names("localhost") && names("front"), "{hosts}");
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
    config.linux.as_mut().unwrap().sysctls.insert(name.to_owned(), "1".to_owned());
    assert_eq!(code(runtime.client.run_pod(config).await), Code::InvalidArgument);
}

#[tokio::test]
async fn run_pod_rejects_net_sysctl_in_host_network() {
    let runtime = Runtime::start().await.unwrap();
    let mut config: PodSandboxConfig = runtime.sandbox("p");
    fixture::pod_namespaces(&mut config).network = NamespaceMode::Node.into();
    let sysctls = &mut config.linux.as_mut().unwrap().sysctls;
    sysctls.insert("net.ipv4.ip_forward".to_owned(), "1".to_owned());
    assert_eq!(code(runtime.client.run_pod(config).await), Code::InvalidArgument);
}

/// A pod in the host network also has the host's UTS namespace.
#[tokio::test]
async fn run_pod_rejects_hostname_in_host_network() {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("p");
    fixture::pod_namespaces(&mut config).network = NamespaceMode::Node.into();
    rejected(runtime.client.run_pod(config.clone()).await, Code::InvalidArgument, "hostname \"p\"");
    config.hostname.clear();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let own = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let script = "hostname; echo $HOSTNAME; cat /etc/hostname";
    let message = pod.output(pod.script("c", script)).await.unwrap();
    assert!(message.starts_with(&format!("{own}\n{own}\n")), "{message}");
}
