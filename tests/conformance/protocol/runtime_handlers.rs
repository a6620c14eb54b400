//! Runtime handlers: named pod settings from the runtime's configuration.

use cri::v1::{PodSandboxFilter, RunPodSandboxRequest};

use crate::support::*;

const HANDLERS: &str = "handlers:
  strict: {no_new_privs: true, read_only_root: true, seccomp_default: true}
  filtered: {seccomp_default: true}
";

async fn run(runtime: &Runtime, handler: &str) -> Result<Pod, tonic::Status> {
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
    rejected(run(&runtime, "no-such-handler").await, Code::InvalidArgument, "\"strict\"");
    let pod = run(&runtime, "filtered").await.unwrap();
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
        let pod = run(&runtime, handler).await.unwrap();
        assert_eq!(pod.output(pod.script("c", look)).await.unwrap(), expected);
        let id = pod.start(fixture::forever("d")).await.unwrap();
        assert_eq!(runtime.client.sh(&id, look).await.unwrap(), expected);
    }
}
