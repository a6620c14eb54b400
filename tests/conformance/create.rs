//! The container lifecycle: attributes, names, list filters, and rejected requests.

use std::collections::HashMap;
use std::time::Duration;

use cri::v1::{
    ContainerConfig, ContainerFilter, ContainerState, ContainerStateValue, CreateContainerRequest,
    KeyValue,
};
use harness::{Runtime, fixture};
use rstest::rstest;
use tonic::Code;

use crate::support::{Means, code, skip_if};

fn with_id(id: &str) -> ContainerFilter {
    ContainerFilter {
        id: id.to_owned(),
        ..Default::default()
    }
}

#[tokio::test]
async fn container_goes_through_created_running_and_exited() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.create(pod.script("c", "exit 0")).await.unwrap();
    let created = client.container(&id).await.unwrap();
    assert_eq!(created.state(), ContainerState::ContainerCreated);
    assert!(created.created_at > 0);
    assert_eq!((created.started_at, created.finished_at), (0, 0));
    assert_eq!(
        client.containers(with_id(&id)).await.unwrap()[0].state(),
        ContainerState::ContainerCreated
    );

    client.start(&id).await.unwrap();
    let ended = pod.ended(&id).await.unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_str()), (0, "Completed"));
    assert!(
        ended.created_at <= ended.started_at && ended.started_at <= ended.finished_at,
        "{ended:?}"
    );
    assert_eq!(
        client.containers(with_id(&id)).await.unwrap()[0].state(),
        ContainerState::ContainerExited
    );
    let of_pod = client.pod(&pod.id).await.unwrap().containers_statuses;
    assert_eq!(of_pod, [ended]);
}

#[tokio::test]
async fn remove_works_in_every_state_and_is_idempotent() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let pod = runtime.pod("p").await.unwrap();
    let created = pod.create(fixture::forever("created")).await.unwrap();
    let running = pod.start(fixture::forever("running")).await.unwrap();
    let ended = pod.start(pod.script("ended", "true")).await.unwrap();
    pod.ended(&ended).await.unwrap();
    for id in [created, running, ended] {
        client.remove(&id).await.unwrap();
        assert_eq!(client.containers(with_id(&id)).await.unwrap(), []);
        assert_eq!(code(client.container(&id).await), Code::NotFound);
        client.remove(&id).await.unwrap();
    }
    assert!(client.pod_is_ready(&pod.id).await.unwrap());
}

#[tokio::test]
async fn unknown_container_is_not_found_except_by_stop_and_remove() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    assert_eq!(code(client.container("nothing").await), Code::NotFound);
    assert_eq!(code(client.start("nothing").await), Code::NotFound);
    assert_eq!(
        code(client.exec("nothing", ["true"], 0).await),
        Code::NotFound
    );
    assert_eq!(code(client.reopen_log("nothing").await), Code::NotFound);
    // StopContainer and RemoveContainer must be idempotent (api.proto).
    client.stop("nothing", 0).await.unwrap();
    client.remove("nothing").await.unwrap();
}

#[tokio::test]
async fn status_and_list_return_given_container_config() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let pod = runtime.pod("p").await.unwrap();
    let image = client.image(&fixture::image()).await.unwrap().unwrap();
    let mut config = fixture::forever("c");
    config.metadata.as_mut().unwrap().attempt = 7;
    config.labels = HashMap::from([("app".to_owned(), "x".to_owned())]);
    config.annotations = HashMap::from([("note".to_owned(), "y".to_owned())]);
    config.log_path = "c/7.log".to_owned();
    // A kubelet sends the image id, and the user's reference in `user_specified_image`.
    let spec = config.image.as_mut().unwrap();
    spec.user_specified_image = std::mem::replace(&mut spec.image, image.id.clone());
    let id = pod.create(config.clone()).await.unwrap();

    let status = client.container(&id).await.unwrap();
    assert_eq!(status.id, id);
    assert_eq!(status.metadata, config.metadata);
    assert_eq!(status.labels, config.labels);
    assert_eq!(status.annotations, config.annotations);
    let mut named = config.image.clone().unwrap();
    named.image.clone_from(&image.repo_tags[0]);
    assert_eq!(status.image, Some(named));
    // The host's image has no digest.
    assert_eq!(status.image_ref, image.id);
    assert_eq!(status.image_id, image.id);
    assert_eq!(
        status.log_path,
        pod.log_directory().join("c/7.log").display().to_string()
    );

    let listed = client.containers(with_id(&id)).await.unwrap().remove(0);
    assert_eq!(listed.pod_sandbox_id, pod.id);
    assert_eq!(listed.metadata, config.metadata);
    assert_eq!(listed.labels, config.labels);
    assert_eq!(listed.annotations, config.annotations);
    assert_eq!(listed.image, config.image);
    assert_eq!(listed.image_ref, image.id);
    assert_eq!(listed.created_at, status.created_at);
}

#[tokio::test]
async fn container_list_applies_all_filters() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let (pod, other) = (
        runtime.pod("p").await.unwrap(),
        runtime.pod("q").await.unwrap(),
    );
    let label = |mut config: ContainerConfig, tier: &str| {
        config.labels = HashMap::from([
            ("tier".to_owned(), tier.to_owned()),
            ("all".to_owned(), "yes".to_owned()),
        ]);
        config
    };
    let a = pod
        .start(label(fixture::forever("a"), "front"))
        .await
        .unwrap();
    let b = pod
        .create(label(fixture::forever("b"), "back"))
        .await
        .unwrap();
    other
        .create(label(fixture::forever("c"), "back"))
        .await
        .unwrap();
    let d = other
        .start(label(other.script("d", "true"), "back"))
        .await
        .unwrap();
    other.ended(&d).await.unwrap();

    let list = async |id: &str,
                      pod_sandbox_id: &str,
                      state: Option<ContainerState>,
                      labels: &[(&str, &str)]| {
        let filter = ContainerFilter {
            id: id.to_owned(),
            pod_sandbox_id: pod_sandbox_id.to_owned(),
            state: state.map(|state| ContainerStateValue {
                state: state.into(),
            }),
            label_selector: labels
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        };
        let listed = client.containers(filter).await.unwrap();
        let mut names: Vec<String> = listed
            .into_iter()
            .map(|c| c.metadata.unwrap().name)
            .collect();
        names.sort();
        names.join(" ")
    };
    let created = Some(ContainerState::ContainerCreated);
    let (pod, other) = (pod.id.as_str(), other.id.as_str());
    assert_eq!(list("", pod, None, &[]).await, "a b");
    assert_eq!(list("", &other[..13], None, &[]).await, "c d");
    assert_eq!(list("", pod, created, &[]).await, "b");
    assert_eq!(
        list("", other, Some(ContainerState::ContainerExited), &[]).await,
        "d"
    );
    assert_eq!(
        list("", pod, Some(ContainerState::ContainerRunning), &[]).await,
        "a"
    );
    assert_eq!(list("", pod, None, &[("tier", "back")]).await, "b");
    assert_eq!(
        list("", other, created, &[("tier", "back"), ("all", "yes")]).await,
        "c"
    );
    assert_eq!(
        list("", pod, None, &[("tier", "back"), ("all", "no")]).await,
        ""
    );
    assert_eq!(list(&a, "", None, &[]).await, "a");
    assert_eq!(list(&b[..13], "", None, &[]).await, "b");
    assert_eq!(list(&a, other, None, &[]).await, "");
    assert_eq!(list("nothing", "", None, &[]).await, "");
}

/// A client whose call was interrupted does not know the result, and repeats the call.
#[tokio::test]
async fn repeated_create_returns_existing_container_until_started() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let asked = || pod.create(fixture::forever("c"));
    // The first client disconnects before or after the call completes.
    let gone = tokio::time::timeout(Duration::from_millis(1), asked()).await;
    let (a, b) = tokio::join!(asked(), asked());
    let id = a.unwrap();
    assert_eq!(b.unwrap(), id);
    if let Ok(first) = gone {
        assert_eq!(first.unwrap(), id);
    }
    let all = runtime.client.containers(Default::default()).await.unwrap();
    assert_eq!(all.len(), 1);
    runtime.client.start(&id).await.unwrap();
    assert_eq!(code(asked().await), Code::AlreadyExists);
}

#[tokio::test]
async fn container_name_is_unique_until_removal() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let pod = runtime.pod("p").await.unwrap();
    let first = pod.create(fixture::forever("c")).await.unwrap();
    let mut changed = fixture::forever("c");
    changed.working_dir = "/usr".to_owned();
    assert_eq!(code(pod.create(changed).await), Code::AlreadyExists);
    let mut next = fixture::forever("c");
    next.metadata.as_mut().unwrap().attempt += 1;
    assert_ne!(pod.create(next).await.unwrap(), first);
    let other = runtime.pod("q").await.unwrap();
    other.create(fixture::forever("c")).await.unwrap();
    client.remove(&first).await.unwrap();
    assert_ne!(pod.create(fixture::forever("c")).await.unwrap(), first);
}

#[rstest]
#[case::metadata(|config: &mut ContainerConfig| config.metadata = None)]
#[case::name(|config: &mut ContainerConfig| config.metadata.as_mut().unwrap().name.clear())]
#[case::image(|config: &mut ContainerConfig| config.image = None)]
#[case::local_image(|config: &mut ContainerConfig| config.image.as_mut().unwrap().image = "example.com/not/here:1".into())]
#[tokio::test]
async fn create_rejects_missing_metadata_name_or_image(#[case] change: fn(&mut ContainerConfig)) {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    change(&mut config);
    let error = pod.create(config).await.unwrap_err();
    assert!(
        matches!(error.code(), Code::InvalidArgument | Code::NotFound),
        "{error:?}"
    );
    let filter = ContainerFilter {
        pod_sandbox_id: pod.id.clone(),
        ..Default::default()
    };
    assert_eq!(runtime.client.containers(filter).await.unwrap(), []);
}

#[tokio::test]
async fn create_and_start_require_ready_sandbox() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut calls = runtime.client.runtime.clone();
    let nothing = CreateContainerRequest {
        pod_sandbox_id: "nothing".to_owned(),
        config: Some(fixture::forever("c")),
        sandbox_config: Some(pod.config.clone()),
    };
    assert_eq!(
        code(calls.create_container(nothing.clone()).await),
        Code::NotFound
    );
    let no_config = CreateContainerRequest {
        pod_sandbox_id: pod.id.clone(),
        config: None,
        ..nothing
    };
    assert_eq!(
        code(calls.create_container(no_config).await),
        Code::InvalidArgument
    );

    let created = pod.create(fixture::forever("c")).await.unwrap();
    runtime.client.stop_pod(&pod.id).await.unwrap();
    assert_eq!(
        code(pod.create(fixture::forever("d")).await),
        Code::FailedPrecondition
    );
    assert_eq!(
        code(runtime.client.start(&created).await),
        Code::FailedPrecondition
    );
}

#[tokio::test]
async fn start_fails_after_first_start() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    assert_eq!(
        code(runtime.client.start(&id).await),
        Code::FailedPrecondition
    );
    runtime.client.stop(&id, 0).await.unwrap();
    assert_eq!(
        code(runtime.client.start(&id).await),
        Code::FailedPrecondition
    );
}

#[tokio::test]
async fn process_gets_arguments_environment_and_working_dir() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "process_gets_arguments_environment_and_working_dir",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let directory = fixture::unique("/made/for/this");
    let mut config = fixture::container("c", ["/bin/sh", "-c", r#"pwd; echo "$WHO|$EMPTY|$1|$2""#]);
    config.args = ["sh", "two words", "$WHO"].map(ToOwned::to_owned).to_vec();
    config.working_dir = directory.clone();
    config.envs = [("WHO", "first"), ("EMPTY", ""), ("WHO", "it's me = you")]
        .map(|(key, value)| KeyValue {
            key: key.to_owned(),
            value: value.into(),
        })
        .to_vec();
    let out = pod.output(config).await.unwrap();
    assert_eq!(out, format!("{directory}\nit's me = you||two words|$WHO\n"));
    assert!(
        !std::path::Path::new(&directory).exists(),
        "made on the host"
    );

    let mut config = fixture::script("d", "true");
    config.working_dir = "/etc/passwd".to_owned();
    let failed = match pod.create(config).await {
        Ok(id) => runtime.client.start(&id).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(failed.message().contains("/etc/passwd"), "{failed:?}");
    let mut config = fixture::script("e", "true");
    config.working_dir = "srv".to_owned();
    let failed = pod.create(config).await.unwrap_err();
    assert_eq!(failed.code(), Code::InvalidArgument, "{failed:?}");
    assert!(failed.message().contains("\"srv\""), "{failed:?}");
}

#[tokio::test]
async fn stdin_is_empty_unless_requested() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    // Without `stdin` the program reads end of file at once.
    assert_eq!(
        pod.output(fixture::container("closed", ["cat"]))
            .await
            .unwrap(),
        ""
    );
    let mut open = fixture::script("open", "(timeout 0.2 cat; echo $?) 2>&1");
    open.stdin = true;
    // With `stdin` it waits for input until the timeout.
    assert_eq!(pod.output(open).await.unwrap(), "124\n");
}

#[rstest]
#[case::missing_command(&["no-such-command"], "no-such-command")]
#[case::missing_path(&["/no/such/command"], "/no/such/command")]
#[case::not_executable(&["/etc/passwd"], "/etc/passwd")]
#[case::directory(&["/etc"], "/etc")]
#[tokio::test]
async fn start_fails_when_program_cannot_run(#[case] command: &[&str], #[case] named: &str) {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let pod = runtime.pod("p").await.unwrap();
    let config = fixture::container("c", command.iter().copied());
    // Some runtimes check the program in CreateContainer.
    match pod.create(config).await {
        Err(error) => assert!(error.message().contains(named), "{error:?}"),
        Ok(id) => {
            let error = client.start(&id).await.unwrap_err();
            assert!(error.message().contains(named), "{error:?}");
            let status = client.container(&id).await.unwrap();
            assert_eq!(status.state(), ContainerState::ContainerExited);
            assert_eq!(
                (status.exit_code, status.reason.as_str()),
                (128, "StartError")
            );
            assert!(status.message.contains(named), "{status:?}");
            client.remove(&id).await.unwrap();
        }
    }
    // The name is free after removal.
    assert_eq!(
        pod.output(fixture::script("c", "echo fine")).await.unwrap(),
        "fine\n"
    );
}
