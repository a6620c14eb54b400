//! Containers and keepers must not inherit keys and open files from the process that started the daemon.

use std::process::Command;

use crate::support::*;

/// A pod, which optionally has its own user namespace.
async fn pod_with_users(runtime: &Runtime, own_users: bool) -> Pod {
    let mut config = runtime.sandbox("p");
    if own_users {
        config = crate::guard::userns::with_user_namespace(runtime, config).await;
    }
    Pod::run(&runtime.client, config).await.unwrap()
}

/// A script that prints the id of its session keyring (keyctl(2), KEYCTL_GET_KEYRING_ID).
fn keyring() -> String {
    let keyctl = if cfg!(target_arch = "aarch64") { 219 } else { 250 };
    format!("perl -e 'print syscall({keyctl}, 0, -3, 0), \"\\n\"'")
}

#[rstest]
#[tokio::test]
async fn containers_and_execs_have_own_session_keyrings(#[values(false, true)] own_users: bool) {
    harness::needs!(Keyrings);
    if own_users {
        harness::needs!(UserIds);
    }
    let here = Command::new("sh").args(["-c", &keyring()]).output().unwrap();
    let here = String::from_utf8(here.stdout).unwrap();
    let runtime = Runtime::start().await.unwrap();
    let pod = pod_with_users(&runtime, own_users).await;
    let first = pod.output(pod.script("a", &keyring())).await.unwrap();
    let second = pod.output(pod.script("b", &keyring())).await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let exec = runtime.client.sh(&id, &keyring()).await.unwrap();
    let next = runtime.client.sh(&id, &keyring()).await.unwrap();
    let all = [&here, &first, &second, &exec, &next];
    let mut distinct = all.to_vec();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), all.len(), "{all:?}");
    assert!(all.iter().all(|id| id.trim().parse::<u32>().is_ok()), "{all:?}");
}

/// `crib runtime 9<file`: the daemon may be started with open descriptors.
#[tokio::test]
async fn keepers_and_containers_inherit_no_descriptors() {
    let place = tempfile::tempdir().unwrap();
    let secret = place.path().join("secret");
    std::fs::write(&secret, "s").unwrap();
    let runtime = Runtime::with().descriptor(&secret).start().await.unwrap();
    let daemon = ObservedProcess { pid: runtime.pid().unwrap() };
    let has_it = |process: ObservedProcess| process.descriptors().contains(&secret);
    assert!(has_it(daemon), "it is the daemon's to have");
    let pod = runtime.pod("p").await.unwrap();
    let mark = fixture::unique("mark");
    let mut config = fixture::forever("c");
    config.args.push(mark.clone());
    let id = pod.start(config).await.unwrap();
    let member = process_of(&mark).await;
    let keeper = ObservedProcess { pid: member.parent() };
    assert!(keeper.command_line().contains("__keeper"), "{keeper:?}");
    for process in [keeper, member] {
        assert!(!has_it(process), "{:?}", process.descriptors());
    }
    let listed = runtime.client.sh(&id, "ls /proc/self/fd | wc -l").await;
    // The standard streams, and the directory being listed.
    assert_eq!(listed.unwrap().trim(), "4");
}

/// The standard input of an exec is the host's `/dev/null`, and of a container whose own is covered.
#[tokio::test]
async fn standard_input_does_not_give_dev_null_of_the_host_to_root() {
    harness::needs!(Namespaces);
    // The mode that it has already, for the case that the change succeeds.
    let script =
        "stat -L -c %F /proc/self/fd/0; cat; chmod 666 /proc/self/fd/0 && echo changed; echo done";
    let (runtime, pod, id) = with_container().await;
    let file = runtime.root().join("file");
    std::fs::write(&file, "").unwrap();
    let mut config = pod.script("d", script);
    config.mounts.push(of(&file, "/dev/null"));
    for seen in [runtime.client.sh(&id, script).await, pod.output(config).await] {
        assert_eq!(seen.unwrap(), "character special file\ndone\n");
    }
}

/// Programs log to `/dev/stderr`, so the container's user must be able to open it.
#[rstest]
#[tokio::test]
async fn standard_streams_can_be_reopened_by_container_user(
    #[values(false, true)] own_users: bool,
    #[values(0, 1000)] user: i64,
) {
    harness::needs!(UserIds);
    let runtime = Runtime::start().await.unwrap();
    let pod = pod_with_users(&runtime, own_users).await;
    let script = "echo err > /dev/stderr && echo out > /dev/stdout && echo own > /proc/self/fd/1";
    let as_user = |mut config: v1::ContainerConfig| {
        fixture::security(&mut config).run_as_user = Some(v1::Int64Value { value: user });
        config
    };
    let id = pod.start(as_user(fixture::script("a", script))).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    let mut lines: Vec<String> = pod.log(&status).into_iter().map(|line| line.text).collect();
    lines.sort();
    assert_eq!((status.exit_code, lines.join(" ")), (0, "err out own".to_owned()));
    let id = pod.start(as_user(fixture::forever("b"))).await.unwrap();
    let exec = runtime.client.exec(&id, ["sh", "-c", script], 0).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let reported = (exec.exit_code, text(&exec.stdout), text(&exec.stderr));
    assert_eq!(reported, (0, "out\nown\n".to_owned(), "err\n".to_owned()));
}
