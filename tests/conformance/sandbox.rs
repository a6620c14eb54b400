//! Pod sandboxes: lifecycle, lists, and rejected requests.

use std::collections::HashMap;

use cri::v1::{
    NamespaceMode, PodSandboxFilter, PodSandboxState, PodSandboxStateValue, RunPodSandboxRequest,
};
use harness::{Pod, Runtime, fixture};
use rstest::rstest;
use tonic::Code;

use crate::support::{code, graceful_container, is_daemon};

fn with_id(id: &str) -> PodSandboxFilter {
    PodSandboxFilter {
        id: id.to_owned(),
        ..Default::default()
    }
}

#[tokio::test]
async fn pod_goes_through_ready_not_ready_and_removed() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let pod = runtime.pod("p").await.unwrap();
    assert!(client.pod_is_ready(&pod.id).await.unwrap());
    assert_eq!(
        client.pods(with_id(&pod.id)).await.unwrap()[0].state(),
        PodSandboxState::SandboxReady
    );

    client.stop_pod(&pod.id).await.unwrap();
    assert!(!client.pod_is_ready(&pod.id).await.unwrap());
    assert_eq!(
        client.pods(with_id(&pod.id)).await.unwrap()[0].state(),
        PodSandboxState::SandboxNotready
    );

    client.remove_pod(&pod.id).await.unwrap();
    assert_eq!(client.pods(with_id(&pod.id)).await.unwrap(), []);
    assert_eq!(code(client.pod(&pod.id).await), Code::NotFound);
}

#[tokio::test]
async fn status_and_list_return_given_sandbox_config() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let mut config = runtime.sandbox("p");
    config.labels = HashMap::from([("app".to_owned(), "x".to_owned())]);
    config.annotations = HashMap::from([("note".to_owned(), "two\nlines".to_owned())]);
    config.metadata.as_mut().unwrap().attempt = 3;
    fixture::pod_namespaces(&mut config).pid = NamespaceMode::Pod.into();
    let pod = Pod::run(client, config.clone()).await.unwrap();

    let answer = client.pod(&pod.id).await.unwrap();
    assert!(answer.timestamp > 0);
    assert_eq!(answer.containers_statuses, []);
    let status = answer.status.unwrap();
    assert_eq!(status.id, pod.id);
    assert_eq!(status.metadata, config.metadata);
    assert_eq!(status.labels, config.labels);
    assert_eq!(status.annotations, config.annotations);
    assert!(status.created_at > 0);
    let options = status.linux.unwrap().namespaces.unwrap().options.unwrap();
    assert_eq!(
        Some(options),
        config
            .linux
            .unwrap()
            .security_context
            .unwrap()
            .namespace_options
    );

    let listed = client.pods(with_id(&pod.id)).await.unwrap().remove(0);
    assert_eq!(listed.metadata, config.metadata);
    assert_eq!(listed.labels, config.labels);
    assert_eq!(listed.annotations, config.annotations);
    assert_eq!(listed.created_at, status.created_at);
    assert_eq!(listed.runtime_handler, "");
}

/// StopPodSandbox and RemovePodSandbox must be idempotent (api.proto).
#[tokio::test]
async fn stop_and_remove_pod_are_idempotent() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    client.stop_pod("nothing").await.unwrap();
    client.remove_pod("nothing").await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    for _ in 0..2 {
        client.stop_pod(&pod.id).await.unwrap();
    }
    for _ in 0..2 {
        client.remove_pod(&pod.id).await.unwrap();
    }
    client.stop_pod(&pod.id).await.unwrap();
}

#[tokio::test]
async fn stop_and_remove_pod_include_its_containers() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let pod = runtime.pod("p").await.unwrap();
    let running = pod.start(fixture::forever("running")).await.unwrap();
    let created = pod.create(fixture::forever("created")).await.unwrap();

    client.stop_pod(&pod.id).await.unwrap();
    for id in [&running, &created] {
        let status = client.container(id).await.unwrap();
        assert_eq!(
            status.state(),
            cri::v1::ContainerState::ContainerExited,
            "{status:?}"
        );
    }
    assert_eq!(
        client.pod(&pod.id).await.unwrap().containers_statuses.len(),
        2
    );

    client.remove_pod(&pod.id).await.unwrap();
    for id in [&running, &created] {
        assert_eq!(code(client.container(id).await), Code::NotFound);
    }
}

#[tokio::test]
async fn pod_list_applies_all_filters() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let suite = fixture::unique("suite");
    let mut pods = Vec::new();
    for (name, tier) in [("a", "front"), ("b", "back"), ("c", "back")] {
        let mut config = runtime.sandbox(name);
        config.labels = HashMap::from([
            ("suite".to_owned(), suite.clone()),
            ("tier".to_owned(), tier.to_owned()),
        ]);
        pods.push(Pod::run(client, config).await.unwrap());
    }
    client.stop_pod(&pods[2].id).await.unwrap();

    let list = async |id: &str, state: Option<PodSandboxState>, labels: &[(&str, &str)]| {
        let filter = PodSandboxFilter {
            id: id.to_owned(),
            state: state.map(|state| PodSandboxStateValue {
                state: state.into(),
            }),
            label_selector: labels
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        };
        let listed = client.pods(filter).await.unwrap();
        let mut names: Vec<String> = listed
            .into_iter()
            .map(|pod| pod.metadata.unwrap().name)
            .collect();
        names.sort();
        names.join(" ")
    };
    let suite = suite.as_str();
    let ready = Some(PodSandboxState::SandboxReady);
    let stopped = Some(PodSandboxState::SandboxNotready);
    assert_eq!(list("", None, &[("suite", suite)]).await, "a b c");
    assert_eq!(list("", ready, &[("suite", suite)]).await, "a b");
    assert_eq!(list("", stopped, &[("suite", suite)]).await, "c");
    assert_eq!(
        list("", None, &[("suite", suite), ("tier", "back")]).await,
        "b c"
    );
    assert_eq!(
        list("", ready, &[("suite", suite), ("tier", "back")]).await,
        "b"
    );
    assert_eq!(
        list("", None, &[("suite", suite), ("tier", "side")]).await,
        ""
    );
    assert_eq!(list(&pods[0].id, None, &[]).await, "a");
    assert_eq!(list(&pods[0].id[..13], None, &[]).await, "a");
    assert_eq!(list(&pods[0].id, stopped, &[]).await, "");
    assert_eq!(list("nothing", None, &[]).await, "");
}

/// A client whose call was interrupted does not know the result, and repeats the call.
#[tokio::test]
async fn repeated_run_returns_existing_pod_until_used() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let config = runtime.sandbox("p");
    let (a, b) = tokio::join!(
        client.run_pod(config.clone()),
        client.run_pod(config.clone())
    );
    let id = a.unwrap();
    assert_eq!(b.unwrap(), id);
    assert_eq!(client.run_pod(config.clone()).await.unwrap(), id);

    let container = client
        .create(&id, fixture::forever("c"), config.clone())
        .await
        .unwrap();
    assert_eq!(
        code(client.run_pod(config.clone()).await),
        Code::AlreadyExists
    );
    client.remove(&container).await.unwrap();
    client.stop_pod(&id).await.unwrap();
    assert_eq!(code(client.run_pod(config).await), Code::AlreadyExists);
    client.remove_pod(&id).await.unwrap();
}

#[tokio::test]
async fn pod_name_is_unique_until_removal() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let config = runtime.sandbox("p");
    let first = client.run_pod(config.clone()).await.unwrap();
    let mut other = config.clone();
    other.hostname = "another".to_owned();
    assert_eq!(code(client.run_pod(other).await), Code::AlreadyExists);
    let mut next = config.clone();
    next.metadata.as_mut().unwrap().attempt += 1;
    let second = client.run_pod(next).await.unwrap();
    assert_ne!(first, second);

    client.remove_pod(&first).await.unwrap();
    let again = client.run_pod(config).await.unwrap();
    assert_ne!(first, again);
    for id in [second, again] {
        client.remove_pod(&id).await.unwrap();
    }
}

#[tokio::test]
async fn calls_accept_id_prefix_but_not_empty_id() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let (short_pod, short) = (&pod.id[..13], &id[..13]);
    assert_eq!(
        client.pod(short_pod).await.unwrap().status.unwrap().id,
        pod.id
    );
    assert_eq!(client.container(short).await.unwrap().id, id);
    assert_eq!(client.sh(short, "echo here").await.unwrap(), "here\n");
    client.reopen_log(short).await.unwrap();
    client.stop(short, 10).await.unwrap();
    client.remove(short).await.unwrap();
    assert_eq!(code(client.container(&id).await), Code::NotFound);
    client.stop_pod(short_pod).await.unwrap();
    client.remove_pod(short_pod).await.unwrap();
    assert_eq!(code(client.pod(&pod.id).await), Code::NotFound);
    // An empty id is not a prefix of every id.
    assert_eq!(code(client.pod("").await), Code::NotFound);
    assert_eq!(code(client.container("").await), Code::NotFound);
}

#[rstest]
#[case::metadata(|config: &mut cri::v1::PodSandboxConfig| config.metadata = None)]
#[case::name(|config: &mut cri::v1::PodSandboxConfig| config.metadata.as_mut().unwrap().name.clear())]
#[case::namespace(|config: &mut cri::v1::PodSandboxConfig| config.metadata.as_mut().unwrap().namespace.clear())]
#[case::uid(|config: &mut cri::v1::PodSandboxConfig| config.metadata.as_mut().unwrap().uid.clear())]
#[tokio::test]
async fn run_pod_rejects_missing_metadata(#[case] change: fn(&mut cri::v1::PodSandboxConfig)) {
    let runtime = Runtime::with().start().await.unwrap();
    let mut config = runtime.sandbox("p");
    change(&mut config);
    assert_eq!(
        code(runtime.client.run_pod(config).await),
        Code::InvalidArgument
    );
    assert_eq!(
        runtime
            .client
            .pods(PodSandboxFilter::default())
            .await
            .unwrap(),
        []
    );
}

#[tokio::test]
async fn run_pod_rejects_unknown_handler_and_missing_config() {
    let runtime = Runtime::start().await.unwrap();
    let mut calls = runtime.client.runtime.clone();
    let request = |handler: &str, config| RunPodSandboxRequest {
        config,
        runtime_handler: handler.to_owned(),
    };
    let config = Some(runtime.sandbox("p"));
    let unknown = calls.run_pod_sandbox(request("no-such-handler", config));
    assert_eq!(code(unknown.await), Code::InvalidArgument);
    let all = PodSandboxFilter::default();
    assert_eq!(runtime.client.pods(all).await.unwrap(), []);
    let nothing = calls.run_pod_sandbox(request("", None)).await;
    assert_eq!(code(nothing), Code::InvalidArgument);
}

#[tokio::test]
async fn version_and_status_satisfy_kubelet() {
    let runtime = Runtime::start().await.unwrap();
    let version = runtime.client.version().await.unwrap();
    assert_eq!(version.version, "0.1.0");
    assert!(!version.runtime_name.is_empty());
    assert_eq!(version.runtime_api_version, "v1");
    let numbers: Vec<&str> = version.runtime_version.splitn(3, '.').collect();
    assert!(
        numbers.len() == 3 && numbers[0].parse::<u32>().is_ok(),
        "{version:?}"
    );

    let status = runtime.client.status().await.unwrap();
    for kind in ["RuntimeReady", "NetworkReady"] {
        let conditions = &status.status.as_ref().unwrap().conditions;
        assert!(
            conditions.iter().any(|c| c.r#type == kind && c.status),
            "{status:?}"
        );
    }
    assert!(
        status
            .runtime_handlers
            .iter()
            .any(|handler| handler.name.is_empty()),
        "{status:?}"
    );
    assert!(status.features.unwrap().supplemental_groups_policy);
}

/// Concurrent pods, and no leftovers.
#[tokio::test]
async fn twenty_concurrent_pods_leave_nothing() {
    twenty_pods(Runtime::with().start().await.unwrap()).await;
}

/// As root, the same for an ordinary user without subordinate ids.
#[tokio::test]
async fn twenty_concurrent_pods_leave_nothing_with_single_id() {
    if !nix::unistd::geteuid().is_root() {
        harness::skip!(
            "twenty_concurrent_pods_leave_nothing_with_single_id",
            "needs root to switch users"
        );
    }
    const NOBODY: u32 = 65534;
    match Runtime::with()
        .user(NOBODY, NOBODY)
        .isolation("rootless")
        .start()
        .await
    {
        Ok(runtime) => {
            assert_eq!(runtime.isolation().await.unwrap(), "rootless (a single id)");
            twenty_pods(runtime).await;
        }
        Err(error)
            if error
                .to_string()
                .contains("isolation rootless is unavailable") =>
        {
            harness::skip!(
                "twenty_concurrent_pods_leave_nothing_with_single_id",
                "{error}"
            );
        }
        Err(error) => panic!("{error}"),
    }
}

async fn twenty_pods(runtime: Runtime) {
    let lives = (0..20).map(|number| {
        let (client, config) = (
            runtime.client.clone(),
            runtime.sandbox(&format!("pod-{number}")),
        );
        tokio::spawn(async move {
            let pod = Pod::run(&client, config).await.unwrap();
            let out = pod
                .output(pod.script("c", "cat /etc/hostname"))
                .await
                .unwrap();
            assert_eq!(out, format!("pod-{number}\n"));
            let id = graceful_container(&pod, "d").await;
            client.stop(&id, 30).await.unwrap();
            assert_eq!(client.container(&id).await.unwrap().exit_code, 143);
            client.stop_pod(&pod.id).await.unwrap();
            client.remove_pod(&pod.id).await.unwrap();
        })
    });
    for life in lives.collect::<Vec<_>>() {
        life.await.unwrap();
    }
    // Only the daemon is left.
    let leaks: Vec<String> = runtime
        .leaks()
        .processes()
        .iter()
        .filter(|leak| !matches!(leak, harness::leak::Leak::Process { process, .. } if is_daemon(&runtime, *process)))
        .map(ToString::to_string)
        .collect();
    assert_eq!(leaks, Vec::<String>::new());
    let left = std::fs::read_dir(runtime.state_dir().join("sandboxes"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}
