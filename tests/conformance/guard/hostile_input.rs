//! Hostile input: the runtime always responds, and keeps working.

use cri::v1::{ContainerConfig, NamespaceMode, PodSandboxConfig};

use crate::support::*;

/// Asserts that a response came from the runtime, not from a broken connection.
#[track_caller]
fn assert_answered<T>(result: Result<T, Status>) {
    if let Err(error) = result {
        assert!(
            !matches!(error.code(), Code::Unknown | Code::Unavailable | Code::Cancelled),
            "{error:?}"
        );
        assert!(error.message().len() < 4096, "a message of {} bytes", error.message().len());
    }
}

fn long() -> String {
    "x".repeat(1 << 20)
}

#[rstest]
#[case::empty("")]
#[case::slashes("../../../etc/passwd")]
#[case::root("/")]
#[case::nul("a\0b")]
#[case::newline("a\nb")]
#[case::not_ascii("é🦀")]
#[case::dot(".")]
#[case::two_dots("..")]
#[case::format_string("%s%n%x")]
#[tokio::test]
async fn calls_survive_hostile_ids(#[case] id: &str) {
    let runtime = Runtime::with().start().await.unwrap();
    let client = &runtime.client;
    let pod = runtime.pod("p").await.unwrap();
    for id in [id, &long()] {
        assert_eq!(client.pod(id).await.unwrap_err().code(), Code::NotFound);
        assert_eq!(client.container(id).await.unwrap_err().code(), Code::NotFound);
        assert_eq!(client.start(id).await.unwrap_err().code(), Code::NotFound);
        assert_eq!(client.exec(id, ["true"], 0).await.unwrap_err().code(), Code::NotFound);
        assert_eq!(client.reopen_log(id).await.unwrap_err().code(), Code::NotFound);
        assert_answered(client.create(id, fixture::forever("c"), pod.config.clone()).await);
        client.stop(id, 0).await.unwrap();
        client.remove(id).await.unwrap();
        client.stop_pod(id).await.unwrap();
        client.remove_pod(id).await.unwrap();
        assert_answered(client.image(id).await);
        assert_answered(client.remove_image(id).await);
        assert_answered(client.pull(id).await);
    }
    assert!(client.pod_is_ready(&pod.id).await.unwrap());
    assert_alive(&runtime).await;
}

#[rstest]
#[case::name(|c: &mut PodSandboxConfig, s: String| c.metadata.as_mut().unwrap().name = s)]
#[case::namespace(|c: &mut PodSandboxConfig, s: String| c.metadata.as_mut().unwrap().namespace = s)]
#[case::uid(|c: &mut PodSandboxConfig, s: String| c.metadata.as_mut().unwrap().uid = s)]
#[case::hostname(|c: &mut PodSandboxConfig, s: String| c.hostname = s)]
#[case::log_directory(|c: &mut PodSandboxConfig, s: String| c.log_directory = s)]
#[case::label(|c: &mut PodSandboxConfig, s: String| drop(c.labels.insert(s.clone(), s)))]
#[case::annotation(|c: &mut PodSandboxConfig, s: String| drop(c.annotations.insert(s.clone(), s)))]
#[case::nameserver(|c: &mut PodSandboxConfig, s: String| c.dns_config.get_or_insert_default().servers = vec![s])]
#[case::search(|c: &mut PodSandboxConfig, s: String| c.dns_config.get_or_insert_default().searches = vec![s])]
#[case::cgroup(|c: &mut PodSandboxConfig, s: String| c.linux.as_mut().unwrap().cgroup_parent = s)]
#[case::sysctl(|c: &mut PodSandboxConfig, s: String| drop(c.linux.as_mut().unwrap().sysctls.insert(s, "1".into())))]
#[case::sysctl_value(|c: &mut PodSandboxConfig, s: String| drop(c.linux.as_mut().unwrap().sysctls.insert("kernel.msgmax".into(), s)))]
#[tokio::test]
async fn run_pod_survives_hostile_strings(#[case] set: fn(&mut PodSandboxConfig, String)) {
    let runtime = Runtime::with().start().await.unwrap();
    for word in ["../../escape", "/", "nul\0nul", "two\nlines", "é🦀", &long()] {
        let mut config = runtime.sandbox("p");
        set(&mut config, word.to_owned());
        match Pod::run(&runtime.client, config).await {
            Ok(pod) => {
                // An accepted configuration must work.
                match pod.create(fixture::script("c", "true")).await {
                    Ok(id) => assert_answered(runtime.client.start(&id).await),
                    error => assert_answered(error),
                }
                runtime.client.remove_pod(&pod.id).await.unwrap();
            }
            error => assert_answered(error),
        }
    }
    assert_alive(&runtime).await;
}

#[rstest]
#[case::name(|c: &mut ContainerConfig, s: String| c.metadata.as_mut().unwrap().name = s)]
#[case::image(|c: &mut ContainerConfig, s: String| c.image.as_mut().unwrap().image = s)]
#[case::command(|c: &mut ContainerConfig, s: String| c.command = vec![s])]
#[case::argument(|c: &mut ContainerConfig, s: String| c.args = vec![s])]
#[case::directory(|c: &mut ContainerConfig, s: String| c.working_dir = s)]
#[case::variable(|c: &mut ContainerConfig, s: String| c.envs.push(v1::KeyValue { key: s.clone(), value: s.into() }))]
#[case::log_path(|c: &mut ContainerConfig, s: String| c.log_path = s)]
#[case::label(|c: &mut ContainerConfig, s: String| drop(c.labels.insert(s.clone(), s)))]
#[case::user(|c: &mut ContainerConfig, s: String| fixture::security(c).run_as_username = s)]
#[case::capability(|c: &mut ContainerConfig, s: String| fixture::security(c).capabilities.get_or_insert_default().add_capabilities = vec![s])]
#[case::masked_path(|c: &mut ContainerConfig, s: String| fixture::security(c).masked_paths = vec![s])]
#[case::read_only_path(|c: &mut ContainerConfig, s: String| fixture::security(c).readonly_paths = vec![s])]
#[case::mount_source(|c: &mut ContainerConfig, s: String| c.mounts.push(Mount { host_path: s, container_path: "/mnt".into(), ..Default::default() }))]
#[case::mount_target(|c: &mut ContainerConfig, s: String| c.mounts.push(Mount { host_path: "/usr".into(), container_path: s, ..Default::default() }))]
#[tokio::test]
async fn create_survives_hostile_strings(#[case] set: fn(&mut ContainerConfig, String)) {
    let (runtime, pod) = with_pod().await;
    for word in [
        "",
        "../../../escape",
        "/",
        "/proc",
        "nul\0nul",
        "two\nlines",
        "é🦀",
        "/proc/self/exe",
        &long(),
    ] {
        let mut config = fixture::script(&fixture::unique("c"), "true");
        set(&mut config, word.to_owned());
        match pod.create(config).await {
            Ok(id) => {
                assert_answered(runtime.client.start(&id).await);
                runtime.client.remove(&id).await.unwrap();
            }
            error => assert_answered(error),
        }
    }
    assert!(runtime.client.pod_is_ready(&pod.id).await.unwrap());
    assert_eq!(pod.output(pod.script("fine", "echo fine")).await.unwrap(), "fine\n");
}

/// Enum values that no version of the CRI defines.
#[rstest]
#[case::sandbox_network(|p: &mut PodSandboxConfig, _: &mut ContainerConfig| fixture::pod_namespaces(p).network = 77)]
#[case::sandbox_pid(|p: &mut PodSandboxConfig, _: &mut ContainerConfig| fixture::pod_namespaces(p).pid = -1)]
#[case::sandbox_ipc(|p: &mut PodSandboxConfig, _: &mut ContainerConfig| fixture::pod_namespaces(p).ipc = i32::MAX)]
#[case::sandbox_ipc_container(|p: &mut PodSandboxConfig, _: &mut ContainerConfig| fixture::pod_namespaces(p).ipc = NamespaceMode::Container.into())]
#[case::container_pid(|_: &mut PodSandboxConfig, c: &mut ContainerConfig| fixture::security(c).namespace_options.as_mut().unwrap().pid = 77)]
#[case::stop_signal(|_: &mut PodSandboxConfig, c: &mut ContainerConfig| c.stop_signal = 7777)]
#[case::propagation(|_: &mut PodSandboxConfig, c: &mut ContainerConfig| c.mounts.push(Mount { host_path: "/usr".into(), container_path: "/mnt".into(), propagation: 9, ..Default::default() }))]
#[case::groups_policy(|_: &mut PodSandboxConfig, c: &mut ContainerConfig| fixture::security(c).supplemental_groups_policy = 9)]
#[tokio::test]
async fn unknown_enum_values_are_rejected(
    #[case] set: fn(&mut PodSandboxConfig, &mut ContainerConfig),
) {
    let runtime = Runtime::with().start().await.unwrap();
    let (mut sandbox, mut container) = (runtime.sandbox("p"), fixture::script("c", "true"));
    set(&mut sandbox, &mut container);
    // One of the calls must fail: the runtime must not run a different configuration.
    let refused = async {
        let pod = Pod::run(&runtime.client, sandbox).await?;
        pod.start(container).await
    };
    assert_eq!(refused.await.unwrap_err().code(), Code::InvalidArgument);
    assert_alive(&runtime).await;
}

/// INVALID_ARGUMENT for any errno of the kernel, so that a kubelet does not retry forever.
#[rstest]
#[case::log_directory(|p: &mut PodSandboxConfig, _: &mut ContainerConfig, s| p.log_directory = s)]
#[case::log_path(|_: &mut PodSandboxConfig, c: &mut ContainerConfig, s: String| c.log_path = s[1..].into())]
#[case::directory(|_: &mut PodSandboxConfig, c: &mut ContainerConfig, s| c.working_dir = s)]
#[case::masked_path(|_: &mut PodSandboxConfig, c: &mut ContainerConfig, s| fixture::security(c).masked_paths = vec![s])]
#[case::mount_source(|_: &mut PodSandboxConfig, c: &mut ContainerConfig, s| c.mounts.push(Mount { host_path: s, container_path: "/mnt".into(), ..Default::default() }))]
#[case::mount_target(|_: &mut PodSandboxConfig, c: &mut ContainerConfig, s| c.mounts.push(Mount { host_path: "/usr".into(), container_path: s, ..Default::default() }))]
#[case::device(|_: &mut PodSandboxConfig, c: &mut ContainerConfig, s| c.devices.push(v1::Device { host_path: s, ..Default::default() }))]
#[case::device_target(|_: &mut PodSandboxConfig, c: &mut ContainerConfig, s| c.devices.push(v1::Device { host_path: "/dev/null".into(), container_path: s, ..Default::default() }))]
#[tokio::test]
async fn megabyte_long_paths_are_rejected_with_short_message(
    #[case] set: fn(&mut PodSandboxConfig, &mut ContainerConfig, String),
) {
    let runtime = Runtime::with().start().await.unwrap();
    for path in ["/abc".repeat(1 << 18), format!("/{}", "x".repeat(1 << 20))] {
        let (mut sandbox, mut container) = (runtime.sandbox("p"), fixture::script("c", "true"));
        set(&mut sandbox, &mut container, path);
        let refused = async {
            let pod = Pod::run(&runtime.client, sandbox).await?;
            let created = pod.create(container).await;
            runtime.client.remove_pod(&pod.id).await?;
            created
        };
        let error = refused.await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
        assert!(error.message().len() < 4096, "{error:?}");
    }
    assert_alive(&runtime).await;
}

/// A message may have 16 MiB, so the runtime must store, list and send a record of 10 MiB.
#[tokio::test]
async fn ten_megabytes_of_labels_are_kept() {
    let runtime = Runtime::with().start().await.unwrap();
    let mut config = runtime.sandbox("p");
    for number in 0..100 {
        config.labels.insert(format!("label-{number}"), "x".repeat(100_000));
    }
    let labels = config.labels.clone();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let status = runtime.client.pod(&pod.id).await.unwrap().status.unwrap();
    assert_eq!(status.labels, labels);
    runtime.client.remove_pod(&pod.id).await.unwrap();
    assert_alive(&runtime).await;
}

#[tokio::test]
async fn oversized_message_is_rejected() {
    let runtime = Runtime::with().start().await.unwrap();
    let mut config = runtime.sandbox("p");
    config.annotations.insert("long".to_owned(), "x".repeat(20 << 20));
    let error = runtime.client.run_pod(config).await.unwrap_err();
    assert!(matches!(error.code(), Code::OutOfRange | Code::ResourceExhausted), "{error:?}");
    assert_alive(&runtime).await;
}

#[tokio::test]
async fn server_survives_bytes_that_are_not_grpc() {
    use tokio::io::AsyncWriteExt as _;
    let runtime = Runtime::with().start().await.unwrap();
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff".to_vec(),
    ] {
        let mut stream = tokio::net::UnixStream::connect(runtime.socket()).await.unwrap();
        // The server may close the connection before everything is written.
        let _ = stream.write_all(&bytes).await;
        assert_alive(&runtime).await;
    }
}
