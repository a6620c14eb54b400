//! Client strings that are written to files or to the environment of plugins are rejected or have no effect.

use cri::v1::{ContainerConfig, PodSandboxConfig};

use crate::support::*;

type P = PodSandboxConfig;
type C = ContainerConfig;

#[rstest]
#[case::name(|c: &mut P, s: String| c.metadata.as_mut().unwrap().name = s, "a\nb")]
#[case::namespace(|c: &mut P, s: String| c.metadata.as_mut().unwrap().namespace = s, "a\0b")]
#[case::uid(|c: &mut P, s: String| c.metadata.as_mut().unwrap().uid = s, "a\u{1b}[2J")]
#[case::hostname_of_two_lines(|c: &mut P, s: String| c.hostname = s, "p\n6.6.6.6 example.com")]
#[case::two_hostnames(|c: &mut P, s: String| c.hostname = s, "p example.com")]
#[case::server(|c: &mut P, s: String| c.dns_config.get_or_insert_default().servers = vec![s], "10.0.0.1\nnameserver 6.6.6.6")]
#[case::search(|c: &mut P, s: String| c.dns_config.get_or_insert_default().searches = vec![s], "a\nnameserver 6.6.6.6")]
#[case::option(|c: &mut P, s: String| c.dns_config.get_or_insert_default().options = vec![s], "ndots:5 debug")]
#[case::log_directory(|c: &mut P, s: String| c.log_directory = s, "/tmp/a\nb")]
#[case::cgroup_with_dot_dot(|c: &mut P, s: String| c.linux.as_mut().unwrap().cgroup_parent = s, "/a/../../b")]
#[case::cgroup_of_two_lines(|c: &mut P, s: String| c.linux.as_mut().unwrap().cgroup_parent = s, "/a\nb")]
#[case::sysctl(|c: &mut P, s: String| drop(c.linux.as_mut().unwrap().sysctls.insert(s, "1".into())), "net.ipv4.ip_forward\nx")]
#[case::sysctl_with_dot_dot(|c: &mut P, s: String| drop(c.linux.as_mut().unwrap().sysctls.insert(s, "1".into())), "net/../kernel/panic")]
#[tokio::test]
async fn run_pod_rejects_hostile_string(#[case] set: fn(&mut P, String), #[case] text: &str) {
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("p");
    set(&mut config, text.to_owned());
    assert_eq!(code(runtime.client.run_pod(config).await), Code::InvalidArgument);
}

#[rstest]
#[case::name(|c: &mut C, s: String| c.metadata.as_mut().unwrap().name = s, "a\nb")]
#[case::log_path(|c: &mut C, s: String| c.log_path = s, "a\nb")]
#[case::log_path_with_dot_dot(|c: &mut C, s: String| c.log_path = s, "../b")]
#[case::mount(|c: &mut C, s: String| c.mounts = vec![Mount { container_path: s, host_path: "/tmp".into(), ..Default::default() }], "/a\nb")]
#[case::working_dir(|c: &mut C, s: String| c.working_dir = s, "/a\0b")]
#[case::variable(|c: &mut C, s: String| c.envs = vec![v1::KeyValue { key: s, value: "1".into() }], "A=B")]
#[case::value(|c: &mut C, s: String| c.envs = vec![v1::KeyValue { key: "A".into(), value: s.into() }], "a\0B=c")]
#[case::argument(|c: &mut C, s: String| c.args = vec![s], "a\0b")]
#[case::cgroup_file(|c: &mut C, s: String| drop(c.linux.as_mut().unwrap().resources.get_or_insert_default().unified.insert(s, "1".into())), "../cgroup.procs")]
#[case::page_size(|c: &mut C, s: String| c.linux.as_mut().unwrap().resources.get_or_insert_default().hugepage_limits = vec![v1::HugepageLimit { page_size: s, limit: 1 }], "2MB/../../x")]
#[tokio::test]
async fn create_rejects_hostile_string(#[case] set: fn(&mut C, String), #[case] text: &str) {
    let (_runtime, pod) = with_pod().await;
    let mut config = fixture::forever("c");
    set(&mut config, text.to_owned());
    assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
}

/// Labels and other strings that the runtime only stores may have any content.
#[tokio::test]
async fn uninterpreted_strings_reach_no_file() {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("p");
    config.hostname.clear();
    let metadata = config.metadata.as_mut().unwrap();
    metadata.name = "a;K8S_POD_UID=x 6.6.6.6".to_owned();
    metadata.namespace = "b;c=d".to_owned();
    for map in [&mut config.labels, &mut config.annotations] {
        map.insert("two\nlines".to_owned(), "6.6.6.6 example.com\n".to_owned());
    }
    let pod = Pod::run(&runtime.client, config.clone()).await.unwrap();
    let script = "hostname; cat /etc/hostname; grep -c . /etc/hosts; tail -n 1 /etc/hosts";
    let reported = pod.output(pod.script("c", script)).await.unwrap();
    let name = "a-K8S_POD_UID=x-6.6.6.6";
    assert_eq!(reported, format!("{name}\n{name}\n3\n127.0.1.1\t{name}\n"));
    let status = runtime.client.pod(&pod.id).await.unwrap().status.unwrap();
    assert_eq!((status.labels, status.annotations), (config.labels, config.annotations));
}
