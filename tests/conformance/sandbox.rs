//! Pod sandboxes: lifecycle, lists, runtime handlers, and rejected requests.

use cri::v1::{PodSandboxFilter, RunPodSandboxRequest};

use crate::support::*;

#[tokio::test]
async fn run_pod_rejects_other_configuration_under_name_of_pod() {
    let runtime = Runtime::start().await.unwrap();
    let config = runtime.sandbox("p");
    runtime.client.run_pod(config.clone()).await.unwrap();
    let other = v1::PodSandboxConfig { hostname: "another".to_owned(), ..config };
    assert_eq!(code(runtime.client.run_pod(other).await), Code::AlreadyExists);
}

#[rstest]
#[case::name(|config: &mut v1::PodSandboxConfig| config.metadata.as_mut().unwrap().name.clear())]
#[case::namespace(|config: &mut v1::PodSandboxConfig| config.metadata.as_mut().unwrap().namespace.clear())]
#[case::uid(|config: &mut v1::PodSandboxConfig| config.metadata.as_mut().unwrap().uid.clear())]
#[tokio::test]
async fn run_pod_rejects_missing_metadata(#[case] change: fn(&mut v1::PodSandboxConfig)) {
    let runtime = Runtime::with().start().await.unwrap();
    let mut config = runtime.sandbox("p");
    change(&mut config);
    assert_eq!(code(runtime.client.run_pod(config).await), Code::InvalidArgument);
    assert_eq!(runtime.client.pods(PodSandboxFilter::default()).await.unwrap(), []);
}

/// Concurrent pods, and no leftovers.
#[tokio::test]
async fn twenty_concurrent_pods_leave_nothing() {
    twenty_pods(Runtime::with().start().await.unwrap()).await;
}

/// As root, the same with an ordinary user without subordinate ids.
#[tokio::test]
async fn twenty_concurrent_pods_leave_nothing_with_single_id() {
    harness::needs!(Root, UserNamespaces);
    let options = Runtime::with().user(NOBODY, NOBODY).isolation("rootless");
    let runtime = options.start().await.unwrap();
    assert_eq!(runtime.isolation().await.unwrap(), "rootless (a single id)");
    twenty_pods(runtime).await;
}

async fn twenty_pods(runtime: Runtime) {
    let lives = (0..20).map(|number| {
        let (client, config) = (runtime.client.clone(), runtime.sandbox(&format!("pod-{number}")));
        tokio::spawn(async move {
            let pod = Pod::run(&client, config).await.unwrap();
            let out = pod.output(pod.script("c", "cat /etc/hostname")).await.unwrap();
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
    let left = std::fs::read_dir(runtime.state_dir().join("sandboxes")).unwrap().count();
    assert_eq!(left, 0);
}

/// Users can detect a weaker mode than expected.
#[rstest]
#[case::as_usual(Runtime::with())]
#[case::ordinary_user(rootless())]
#[tokio::test]
async fn isolation_is_in_log_and_status(#[case] options: Options) {
    harness::needs!(UserNamespaces);
    let runtime = options.start().await.unwrap();
    let isolation = runtime.isolation().await.unwrap();
    assert!(!isolation.is_empty());
    let log = runtime.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(" isolation=")).collect();
    let reported = format!(" isolation={isolation}");
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(&reported)), "{log}");
}

const HANDLERS: &str = "handlers:
  strict: {no_new_privs: true, read_only_root: true, seccomp_default: true}
  filtered: {seccomp_default: true}
";

async fn run_with_handler(runtime: &Runtime, handler: &str) -> Result<Pod, tonic::Status> {
    let config = runtime.sandbox(&fixture::unique("p"));
    let request =
        RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.to_owned() };
    let answer = runtime.client.runtime.clone().run_pod_sandbox(request).await?;
    Ok(Pod { id: answer.into_inner().pod_sandbox_id, config, client: runtime.client.clone() })
}

#[tokio::test]
async fn status_lists_configured_handlers() {
    let runtime = Runtime::with().config(HANDLERS).start().await.unwrap();
    let status = runtime.client.status().await.unwrap();
    let names: Vec<&str> =
        status.runtime_handlers.iter().map(|handler| handler.name.as_str()).collect();
    assert_eq!(names, ["", "filtered", "strict"]);
    assert!(status.runtime_handlers.iter().all(|h| h.features.is_some()));
    rejected(
        run_with_handler(&runtime, "no-such-handler").await,
        Code::InvalidArgument,
        "\"strict\"",
    );
    let pod = run_with_handler(&runtime, "filtered").await.unwrap();
    let status = runtime.client.pod(&pod.id).await.unwrap().status.unwrap();
    assert_eq!(status.runtime_handler, "filtered");
    let filter = PodSandboxFilter { id: pod.id.clone(), ..Default::default() };
    let listed = runtime.client.pods(filter).await.unwrap();
    assert_eq!(listed[0].runtime_handler, "filtered");
}

/// The settings apply to first processes and execs.
#[tokio::test]
async fn containers_follow_settings_of_handler() {
    harness::needs!(Namespaces);
    let runtime = Runtime::with().config(HANDLERS).start().await.unwrap();
    let look = "grep -oE '(NoNewPrivs|Seccomp):.*' /proc/self/status; (echo x > /x) 2>/dev/null && echo writable; true";
    for (handler, expected) in [
        ("", "NoNewPrivs:\t0\nSeccomp:\t0\nwritable\n"),
        ("filtered", "NoNewPrivs:\t0\nSeccomp:\t2\nwritable\n"),
        ("strict", "NoNewPrivs:\t1\nSeccomp:\t2\n"),
    ] {
        let pod = run_with_handler(&runtime, handler).await.unwrap();
        assert_eq!(pod.output(pod.script("c", look)).await.unwrap(), expected);
        let id = pod.start(fixture::forever("d")).await.unwrap();
        assert_eq!(runtime.client.sh(&id, look).await.unwrap(), expected);
    }
}
