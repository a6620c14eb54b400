//! Log files in the CRI format, `TIME STREAM TAGS TEXT` (Kubernetes 1.36, cri-client logs).

use crate::support::*;

#[rstest]
#[case::no_path("", true)]
#[case::no_directory("c.log", false)]
#[tokio::test]
async fn container_runs_without_log(#[case] log_path: &str, #[case] directory: bool) {
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("p");
    if !directory {
        config.log_directory.clear();
    }
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let mut config = pod.script("c", "seq 100000");
    config.log_path = log_path.to_owned();
    let id = pod.start(config).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    assert_eq!((status.exit_code, status.log_path.as_str()), (0, ""));
}

#[rstest]
#[case::dot_dot("../escaped.log")]
#[case::dot_dot_inside("a/../../escaped.log")]
#[case::absolute("/tmp/escaped.log")]
#[tokio::test]
async fn create_rejects_log_path_outside_log_directory(#[case] log_path: &str) {
    let (_runtime, pod) = with_pod().await;
    let mut config = pod.script("c", "echo escaped");
    config.log_path = log_path.to_owned();
    assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
    assert!(!pod.log_directory().join(log_path).exists());
}

/// A container that mounts the log directory could create symlinks there.
#[rstest]
#[case::file("c.log", "c.log")]
#[case::directory("d/c.log", "d")]
#[tokio::test]
async fn log_is_not_written_through_symlink(#[case] log_path: &str, #[case] link: &str) {
    let (runtime, pod) = with_pod().await;
    std::fs::create_dir_all(pod.log_directory()).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let target =
        if link == log_path { elsewhere.path().join("c.log") } else { elsewhere.path().to_owned() };
    std::os::unix::fs::symlink(target, pod.log_directory().join(link)).unwrap();
    let mut config = pod.script("c", "echo escaped");
    config.log_path = log_path.to_owned();
    assert_eq!(code(pod.create(config.clone()).await), Code::InvalidArgument);

    // A symlink created after CreateContainer makes the start fail with a reason.
    std::fs::remove_file(pod.log_directory().join(link)).unwrap();
    let id = pod.create(config).await.unwrap();
    let whole = pod.log_directory().join(log_path);
    if link != log_path {
        std::fs::remove_dir(pod.log_directory().join(link)).unwrap();
    }
    std::os::unix::fs::symlink(elsewhere.path(), pod.log_directory().join(link)).unwrap();
    let error = runtime.client.start(&id).await.unwrap_err();
    assert!(error.message().contains(&whole.display().to_string()), "{error:?}");
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn missing_log_directories_are_created() {
    let (_runtime, pod) = with_pod().await;
    let mut config = pod.script("c", "echo deep");
    config.log_path = "a/b/c.log".to_owned();
    let id = pod.start(config).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    assert_eq!(status.log_path, pod.log_directory().join("a/b/c.log").display().to_string());
    assert_eq!(pod.log(&status)[0].text, "deep");
}

#[tokio::test]
async fn failed_create_leaves_no_log() {
    let (_runtime, pod) = with_pod().await;
    let mut config = pod.script("c", "true");
    fixture::security(&mut config).run_as_username = "no-such-user".to_owned();
    code(pod.create(config).await);
    assert!(!pod.log_directory().join("c.log").exists());
}

/// `max_size` is for hosts where no client rotates logs.
#[tokio::test]
async fn log_stays_within_max_size() {
    let (runtime, pod) = pod_of(Runtime::with().config("logs: {max_size: 1048576}\n")).await;
    let script =
        "i=0; while [ $i -lt 30000 ]; do echo $i 0123456789012345678901234567890; i=$((i+1)); done";
    let id = pod.start(pod.script("c", script)).await.unwrap();
    assert_eq!(pod.ended(&id).await.unwrap().exit_code, 0);
    let path = runtime.client.container(&id).await.unwrap().log_path;
    let log = std::fs::read_to_string(path).unwrap();
    assert!(log.len() <= 1 << 20, "{}", log.len());
    let numbers: Vec<u32> =
        log.lines().map(|line| line.split(' ').nth(3).unwrap().parse().unwrap()).collect();
    // The log contains all lines from some line on.
    assert!(numbers[0] > 0 && numbers.last() == Some(&29_999));
    assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1));
}
