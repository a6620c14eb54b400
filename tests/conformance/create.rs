//! The container lifecycle: attributes, names, list filters, and rejected requests.

use cri::v1::{ContainerConfig, ContainerState};

use crate::support::*;

/// A client whose call was interrupted does not know the result, and repeats the call.
#[tokio::test]
async fn repeated_create_returns_existing_container_until_started() {
    let (runtime, pod) = with_pod().await;
    let requested = || pod.create(fixture::forever("c"));
    // The first client disconnects before or after the call completes.
    let gone = tokio::time::timeout(Duration::from_millis(1), requested()).await;
    let (a, b) = tokio::join!(requested(), requested());
    let id = a.unwrap();
    assert_eq!(b.unwrap(), id);
    if let Ok(first) = gone {
        assert_eq!(first.unwrap(), id);
    }
    let all = runtime.client.containers(Default::default()).await.unwrap();
    assert_eq!(all.len(), 1);
    runtime.client.start(&id).await.unwrap();
    assert_eq!(code(requested().await), Code::AlreadyExists);
}

#[tokio::test]
async fn create_rejects_other_configuration_under_name_of_container() {
    let (_runtime, pod) = with_pod().await;
    pod.create(fixture::forever("c")).await.unwrap();
    let mut changed = fixture::forever("c");
    changed.working_dir = "/usr".to_owned();
    assert_eq!(code(pod.create(changed).await), Code::AlreadyExists);
}

#[rstest]
#[case::name(|config: &mut ContainerConfig| config.metadata.as_mut().unwrap().name.clear())]
#[case::image(|config: &mut ContainerConfig| config.image = None)]
#[tokio::test]
async fn create_rejects_missing_name_or_image(#[case] change: fn(&mut ContainerConfig)) {
    let (runtime, pod) = with_pod().await;
    let mut config = fixture::forever("c");
    change(&mut config);
    assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
    assert_eq!(runtime.client.containers(Default::default()).await.unwrap(), []);
}

/// The root of the image is the host's.
#[tokio::test]
async fn working_dir_is_created_in_container_only() {
    harness::needs!(Namespaces);
    let (_runtime, pod) = with_pod().await;
    let directory = fixture::unique("/made/for/this");
    let mut config = pod.script("c", "pwd");
    config.working_dir = directory.clone();
    assert_eq!(pod.output(config).await.unwrap(), format!("{directory}\n"));
    assert!(!std::path::Path::new(&directory).exists(), "made on the host");
}

#[tokio::test]
async fn create_rejects_relative_working_dir() {
    let (_runtime, pod) = with_pod().await;
    let mut config = fixture::script("c", "true");
    config.working_dir = "srv".to_owned();
    rejected(pod.create(config).await, Code::InvalidArgument, "\"srv\"");
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
            assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
            assert!(status.message.contains(named), "{status:?}");
            client.remove(&id).await.unwrap();
        }
    }
    // The name is free after removal.
    assert_eq!(pod.output(fixture::script("c", "echo fine")).await.unwrap(), "fine\n");
}
