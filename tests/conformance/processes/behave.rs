//! Behaviour scripts: images, annotations and configured names whose containers follow a script.

use std::time::Instant;

use cri::v1::{ContainerConfig, ContainerState, Int64Value, NamespaceMode, SecurityProfile};
use harness::cri_log::Stream;

use crate::guard::userns::with_user_namespace;
use crate::support::*;

/// A container of an image without a command, like most scripted images.
fn of(image: &str) -> ContainerConfig {
    of_image(fixture::container::<String>("c", []), image)
}

/// A container of an image with this script.
pub(crate) async fn acting(runtime: &Runtime, script: &str) -> ContainerConfig {
    let image = format!("crib.local/behave/{script}");
    runtime.client.pull(&image).await.unwrap();
    of(&image)
}

/// A new runtime with a pod, and a started container with this script in it.
async fn started(script: &str) -> (Runtime, Pod, String) {
    let (runtime, pod) = with_pod().await;
    let id = pod.start(acting(&runtime, script).await).await.unwrap();
    (runtime, pod, id)
}

fn limited(mut config: ContainerConfig, bytes: i64) -> ContainerConfig {
    let linux = config.linux.get_or_insert_default();
    linux.resources.get_or_insert_default().memory_limit_in_bytes = bytes;
    config
}

#[tokio::test]
async fn behave_image_is_listed_until_removed() {
    let runtime = Runtime::with().start().await.unwrap();
    let client = &runtime.client;
    let id = client.pull("crib.local/behave/exit-1:v2").await.unwrap();
    let again = client.pull("crib.local/behave/exit-1").await.unwrap();
    assert_eq!(id, again, "one image with two names");
    let image = client.image(&id).await.unwrap().unwrap();
    assert_eq!(image.repo_tags, ["crib.local/behave/exit-1:latest", "crib.local/behave/exit-1:v2"]);
    assert!(image.size > 0, "{image:?}");
    let other = client.pull("crib.local/behave/exit-2").await.unwrap();
    assert_ne!(id, other);
    client.remove_image(&id).await.unwrap();
    let left = client.list_images().await.unwrap();
    let left: Vec<&str> = left.iter().map(|image| image.id.as_str()).collect();
    assert!(left.contains(&&*other) && !left.contains(&&*id), "{left:?}");
}

#[rstest]
#[case::misspelt("exti-1", "did you mean exit-CODE[-after-TIME]?")]
#[case::value("exit-1/fork-0", "step \"fork-0\": \"0\" is not a number of processes: 1 to 1000")]
#[case::contradiction("exit-1/exit-2", "exit-1 and exit-2 exclude each other")]
#[tokio::test]
async fn pull_refuses_image_with_malformed_script(#[case] script: &str, #[case] want: &str) {
    let runtime = Runtime::with().start().await.unwrap();
    let image = format!("crib.local/behave/{script}");
    rejected(runtime.client.pull(&image).await, Code::InvalidArgument, want);
    assert_eq!(runtime.client.image(&image).await.unwrap(), None);
}

#[rstest]
#[case::as_usual(Runtime::with())]
#[case::process(Runtime::with().isolation("process"))]
#[tokio::test]
async fn container_exits_with_code_after_time(#[case] options: Options) {
    let (runtime, pod) = pod_of(options).await;
    let config = acting(&runtime, "exit-7-after-300ms").await;
    let id = pod.start(config).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (7, "Error"));
    let ran = status.finished_at - status.started_at;
    assert!(ran >= 290_000_000, "it ran for {ran} ns");
}

/// A script works with any process settings that the client requests.
#[rstest]
#[case::user(|c: &mut ContainerConfig| fixture::security(c).run_as_user = Some(Int64Value { value: 1000 }))]
#[case::no_new_privileges(|c: &mut ContainerConfig| fixture::security(c).no_new_privs = true)]
#[case::seccomp(|c: &mut ContainerConfig| fixture::security(c).seccomp = Some(SecurityProfile::default()))]
#[case::read_only(|c: &mut ContainerConfig| fixture::security(c).readonly_rootfs = true)]
#[case::privileged(|c: &mut ContainerConfig| fixture::security(c).privileged = true)]
#[case::terminal(|c: &mut ContainerConfig| c.tty = true)]
#[case::host_processes(|c: &mut ContainerConfig| {
    fixture::security(c).namespace_options.as_mut().unwrap().pid = NamespaceMode::Node.into();
})]
#[tokio::test]
async fn script_is_acted_out_as_any_process(#[case] set: fn(&mut ContainerConfig)) {
    harness::needs!(UserIds);
    let (runtime, pod) = with_pod().await;
    let mut config = acting(&runtime, "log-10-a-second/exit-3-on-term").await;
    set(&mut config);
    // A terminal ends lines with a carriage return, too.
    let end = if config.tty { "\r" } else { "" };
    let id = pod.start(config).await.unwrap();
    pod.logged(&id, &format!("line 2{end}")).await.unwrap();
    // The process has the container's user, and an exec can join it.
    let user = runtime.client.sh(&id, "id -u").await.unwrap();
    let wanted = runtime.client.container(&id).await.unwrap();
    let wanted = wanted.user.and_then(|user| user.linux).map_or(0, |user| user.uid);
    assert_eq!(user.trim(), wanted.to_string());
    runtime.client.stop(&id, 600).await.unwrap();
    assert_eq!(pod.ended(&id).await.unwrap().exit_code, 3);
}

#[rstest]
#[case::shared_processes(false)]
#[case::own_users(true)]
#[tokio::test]
async fn script_is_acted_out_in_namespaces_of_pod(#[case] users: bool) {
    harness::needs!(UserIds);
    let runtime = Runtime::with().start().await.unwrap();
    let mut sandbox = runtime.sandbox("p");
    if users {
        sandbox = with_user_namespace(&runtime, sandbox).await;
    } else {
        fixture::pod_namespaces(&mut sandbox).pid = NamespaceMode::Pod.into();
    }
    let pod = Pod::run(&runtime.client, sandbox.clone()).await.unwrap();
    let mut config = acting(&runtime, "fork-3/exit-3-on-term").await;
    fixture::security(&mut config).namespace_options =
        Some(fixture::pod_namespaces(&mut sandbox).clone());
    let id = pod.start(config).await.unwrap();
    let named = "grep -lx crib-behave /proc/[0-9]*/comm | wc -l";
    eventually(WAIT_LIMIT, "four processes of the script", async || {
        let seen = runtime.client.sh(&id, named).await.unwrap();
        if seen.trim() == "4" { Ok(()) } else { Err(seen) }
    })
    .await;
    runtime.client.stop(&id, 600).await.unwrap();
    assert_eq!(pod.ended(&id).await.unwrap().exit_code, 3);
}

#[rstest]
#[case::default("run", 600, 143)]
#[case::exits_on_term("exit-5-on-term-after-100ms", 600, 5)]
#[case::ignores_term("ignore-term", 1, 137)]
#[tokio::test]
async fn container_acts_on_term(#[case] script: &str, #[case] grace: i64, #[case] exit_code: i32) {
    let (runtime, pod, id) = started(script).await;
    let before = Instant::now();
    runtime.client.stop(&id, grace).await.unwrap();
    assert_eq!(pod.ended(&id).await.unwrap().exit_code, exit_code);
    if script == "ignore-term" {
        let waited = before.elapsed();
        assert!(waited >= Duration::from_secs(1), "killed after {waited:?}");
    }
}

#[rstest]
#[case::stdout("", Stream::Stdout)]
#[case::stderr("-to-stderr", Stream::Stderr)]
#[tokio::test]
async fn container_logs_numbered_lines_at_its_rate(#[case] to: &str, #[case] stream: Stream) {
    let script = format!("log-20-a-second{to}/exit-0-after-1s");
    let (_runtime, pod, id) = started(&script).await;
    let status = pod.ended(&id).await.unwrap();
    let lines = pod.log(&status);
    let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
    let want: Vec<String> = (1..=20).map(|number| format!("line {number}")).collect();
    assert_eq!(texts, want);
    assert!(lines.iter().all(|line| line.stream == stream), "{lines:?}");
    let time = |line: &harness::cri_log::Line| line.time.parse::<jiff::Timestamp>().unwrap();
    // The first line may be logged late, the last one never early.
    let last = time(&lines[19]).as_nanosecond() - i128::from(status.started_at);
    assert!(last >= 900_000_000, "the last line after {last} ns");
}

#[tokio::test]
async fn container_allocates_memory() {
    harness::needs!(Namespaces);
    let (runtime, _pod, id) = started("allocate-48mi").await;
    eventually(WAIT_LIMIT, "48 MiB of resident memory", async || {
        let script = "awk '/^VmRSS/ { print $2 }' /proc/1/status";
        let seen = runtime.client.sh(&id, script).await.unwrap();
        match seen.trim().parse::<u64>() {
            Ok(kib) if (48 << 10..64 << 10).contains(&kib) => Ok(()),
            _ => Err(seen),
        }
    })
    .await;
}

#[tokio::test]
async fn container_runs_out_of_memory() {
    harness::needs!(Cgroups);
    let (runtime, pod) = with_pod().await;
    let config = acting(&runtime, "log-10-a-second/allocate-until-oom-after-200ms").await;
    let id = pod.start(limited(config, 32 << 20)).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "OOMKilled"));
    let lines = pod.log(&status);
    assert!(lines.len() >= 2, "it ran before that: {lines:?}");
}

#[tokio::test]
async fn create_refuses_memory_without_end_where_no_limit_applies() {
    let (runtime, pod) = with_pod().await;
    let config = acting(&runtime, "allocate-until-oom").await;
    rejected(pod.create(config.clone()).await, Code::InvalidArgument, "set memory_limit_in_bytes");
    if Need::Cgroups.missing().is_some() {
        rejected(
            pod.create(limited(config, 32 << 20)).await,
            Code::FailedPrecondition,
            "use allocate-SIZE",
        );
    }
    let left = runtime.client.containers(Default::default()).await.unwrap();
    assert_eq!(left, []);
}

#[tokio::test]
async fn exec_hangs_until_its_timeout() {
    let (runtime, _pod, id) = started("exec-hangs").await;
    let exec = runtime.client.exec(&id, ["true"], 1).await;
    assert_eq!(code(exec), Code::DeadlineExceeded);
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerRunning);
}

#[tokio::test]
async fn command_runs_while_runtime_executes_steps() {
    let (runtime, pod) = with_pod().await;
    let command = ["/bin/sh", "-c", "echo mine"].map(str::to_owned).to_vec();
    let config =
        ContainerConfig { command: command.clone(), ..acting(&runtime, "start-takes-300ms").await };
    let id = pod.create(config).await.unwrap();
    let before = Instant::now();
    runtime.client.start(&id).await.unwrap();
    let took = before.elapsed();
    assert!(took >= Duration::from_millis(300), "{took:?}");
    pod.logged(&id, "mine").await.unwrap();
    // A scripted image does not use the command.
    let config = ContainerConfig { command, ..acting(&runtime, "exit-1").await };
    let refused = pod.create(config).await;
    assert_eq!(code(refused), Code::InvalidArgument);
}

#[tokio::test]
async fn client_that_gives_up_a_slow_creation_gets_its_container() {
    let (runtime, pod) = with_pod().await;
    let config = acting(&runtime, "create-takes-1s").await;
    let before = Instant::now();
    let given_up = tokio::time::timeout(Duration::from_millis(200), pod.create(config.clone()));
    assert!(given_up.await.is_err());
    let id = pod.create(config).await.unwrap();
    let took = before.elapsed();
    assert!(took >= Duration::from_secs(1), "{took:?}");
    let all = runtime.client.containers(Default::default()).await.unwrap();
    let all: Vec<&str> = all.iter().map(|container| container.id.as_str()).collect();
    assert_eq!(all, [id]);
}

#[tokio::test]
async fn failing_creation_leaves_nothing() {
    let (runtime, pod) = with_pod().await;
    let config = acting(&runtime, "create-fails").await;
    rejected(pod.create(config).await, Code::Internal, "create-fails");
    let left = runtime.client.containers(Default::default()).await.unwrap();
    assert_eq!(left, []);
}

#[tokio::test]
async fn failing_start_leaves_an_exited_container() {
    let (runtime, pod) = with_pod().await;
    let id = pod.create(acting(&runtime, "start-fails").await).await.unwrap();
    assert_eq!(code(runtime.client.start(&id).await), Code::Internal);
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
    assert!(status.message.contains("start-fails"), "{status:?}");
}

#[tokio::test]
async fn annotation_of_pod_replaces_command_of_its_container() {
    let runtime = Runtime::with().start().await.unwrap();
    let mut sandbox = runtime.sandbox("p");
    for (key, script) in [("crib.local/behave.a", "exit-3"), ("crib.local/behave.bad", "exit")] {
        sandbox.annotations.insert(key.to_owned(), script.to_owned());
    }
    let pod = Pod::run(&runtime.client, sandbox).await.unwrap();
    let a = pod.start(pod.script("a", "exit 1")).await.unwrap();
    let b = pod.start(pod.script("b", "exit 1")).await.unwrap();
    assert_eq!(pod.ended(&a).await.unwrap().exit_code, 3);
    assert_eq!(pod.ended(&b).await.unwrap().exit_code, 1);
    let mut own = pod.script("a2", "exit 1");
    let key = "crib.local/behave".to_owned();
    own.annotations.insert(key, "exit-4".to_owned());
    let own = pod.start(own).await.unwrap();
    assert_eq!(pod.ended(&own).await.unwrap().exit_code, 4);
    let bad = pod.create(pod.script("bad", "exit 1")).await;
    let want = "annotation crib.local/behave.bad: there is no step \"exit\"";
    rejected(bad, Code::InvalidArgument, want);
}

#[tokio::test]
async fn configured_image_acts_out_its_script_under_its_own_name() {
    let scripts = ["registry.test/app:1=exit-6", "other=log-5-a-second/exit-0"];
    let runtime = Runtime::start().with_behaviours(scripts).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    for (image, exit_code) in [("registry.test/app:1", 6), ("docker.io/library/other:latest", 0)] {
        let reference = runtime.client.pull(image).await.unwrap();
        let mut config = of(&reference);
        config.metadata.as_mut().unwrap().name = format!("c{exit_code}");
        let image_spec = config.image.as_mut().unwrap();
        image_spec.user_specified_image = image.to_owned();
        let id = pod.start(config).await.unwrap();
        let status = pod.ended(&id).await.unwrap();
        assert_eq!(status.exit_code, exit_code);
        assert_eq!(status.image.unwrap().image, image);
    }
}

#[tokio::test]
async fn behaviour_script_continues_while_daemon_is_killed() {
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let config = acting(&runtime, "log-10-a-second/exec-hangs/exit-9-on-term").await;
    let id = pod.start(config).await.unwrap();
    pod.logged(&id, "line 1").await.unwrap();
    runtime.kill_and_restart().await.unwrap();
    let pod = Pod { client: runtime.client.clone(), ..pod };
    let seen = pod.logged(&id, "line 3").await.unwrap().len();
    pod.logged(&id, &format!("line {}", seen + 2)).await.unwrap();
    let exec = runtime.client.exec(&id, ["true"], 1).await;
    assert_eq!(code(exec), Code::DeadlineExceeded);
    runtime.client.stop(&id, 600).await.unwrap();
    assert_eq!(pod.ended(&id).await.unwrap().exit_code, 9);
}

#[tokio::test]
async fn ordinary_user_has_scripts_too() {
    harness::needs!(UserNamespaces);
    let (runtime, pod) = pod_of(rootless()).await;
    let config = acting(&runtime, "log-10-a-second/fork-2/allocate-1mi/exit-3-on-term").await;
    let id = pod.start(config).await.unwrap();
    pod.logged(&id, "line 2").await.unwrap();
    let pids = runtime.client.sh(&id, "cat /proc/1/comm").await.unwrap();
    assert_eq!(pids, "crib-behave\n");
    runtime.client.stop(&id, 600).await.unwrap();
    assert_eq!(pod.ended(&id).await.unwrap().exit_code, 3);
}
