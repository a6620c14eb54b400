//! ExecSync: additional processes in a container.

use cri::v1::{ContainerState, KeyValue, NamespaceMode};
use harness::witness::{self, Witness};
use harness::{PATIENCE, Runtime, eventually, fixture};
use tonic::Code;

use crate::support::{Means, code, skip_if};

/// The largest message that a kubelet's client accepts (Kubernetes 1.36, cri-client), and the tolerance below it.
const LONGEST: usize = 16 << 20;
const SHORTER: usize = 64 << 10;

#[tokio::test]
async fn exec_returns_both_outputs_and_exit_code() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let run = async |command: &[&str]| {
        let answer = runtime
            .client
            .exec(&id, command.iter().copied(), 30)
            .await
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(answer.stdout), text(answer.stderr), answer.exit_code)
    };
    let answer = |out: &str, err: &str, code| (out.to_owned(), err.to_owned(), code);
    assert_eq!(run(&["echo", "-n", "hello"]).await, answer("hello", "", 0));
    assert_eq!(
        run(&["sh", "-c", "echo out; echo err >&2; exit 3"]).await,
        answer("out\n", "err\n", 3)
    );
    assert_eq!(
        run(&["sh", "-c", "kill -KILL $$"]).await,
        answer("", "", 137)
    );
    assert_eq!(run(&["cat"]).await, answer("", "", 0));
    // Exec output does not go into the container log.
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(pod.log(&status), []);
}

#[tokio::test]
async fn exec_rejects_invalid_request_and_stopped_container() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.create(fixture::forever("c")).await.unwrap();
    assert_eq!(
        code(runtime.client.exec(&id, ["true"], 0).await),
        Code::FailedPrecondition
    );
    runtime.client.start(&id).await.unwrap();
    assert_eq!(
        code(runtime.client.exec::<&str>(&id, [], 0).await),
        Code::InvalidArgument
    );
    assert_eq!(
        code(runtime.client.exec(&id, ["true"], -1).await),
        Code::InvalidArgument
    );
    let error = runtime
        .client
        .exec(&id, ["no-such-command"], 0)
        .await
        .unwrap_err();
    assert!(error.message().contains("no-such-command"), "{error:?}");
    runtime.client.stop(&id, 0).await.unwrap();
    assert_eq!(
        code(runtime.client.exec(&id, ["true"], 0).await),
        Code::FailedPrecondition
    );
}

#[tokio::test]
async fn exec_runs_in_context_of_container() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "exec_runs_in_context_of_container",
        Means::of(&runtime).await.no_namespaces()
    );
    let mut config = runtime.sandbox("somewhere");
    fixture::pod_namespaces(&mut config).pid = NamespaceMode::Container.into();
    let pod = harness::Pod::run(&runtime.client, config).await.unwrap();
    let look = "pwd; echo $WHO; hostname; id; for ns in ipc mnt net pid uts; do readlink /proc/self/ns/$ns; done;
        grep -E '^(Cap|NoNewPrivs|Groups)' /proc/self/status; cat /proc/1/comm; cat /tmp/note";
    let script = format!(
        "echo private > /tmp/note; {{ {look}; }} > /tmp/facts; echo ready; sleep 1000; exit"
    );
    let mut config = pod.script("c", &script);
    config.working_dir = "/usr".to_owned();
    config.envs.push(KeyValue {
        key: "WHO".to_owned(),
        value: "me".into(),
    });
    let security = fixture::security(&mut config);
    security.no_new_privs = true;
    security.capabilities = Some(cri::v1::Capability {
        drop_capabilities: vec!["NET_RAW".to_owned()],
        ..Default::default()
    });
    let id = pod.start(config).await.unwrap();
    pod.logged(&id, "ready").await.unwrap();
    let facts = runtime.client.sh(&id, "cat /tmp/facts").await.unwrap();
    assert_eq!(runtime.client.sh(&id, look).await.unwrap(), facts);
    assert!(facts.starts_with("/usr\nme\nsomewhere\nuid=0"), "{facts}");
}

#[tokio::test]
async fn exec_timeout_kills_all_processes_of_exec() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let mark = fixture::unique("mark");
    // Daemonized processes, which leave the session and parent; without namespaces they cannot be found.
    let alone = match Means::of(&runtime).await.no_namespaces() {
        None => "(setsid sleep 1000 &); (setsid sh -c 'sleep 1000 & sleep 1000' &);",
        Some(_) => "sleep 1000 &",
    };
    let script = format!(
        "export CRIB_TEST_MARK={mark}; sleep 1000 & {alone} sh -c 'sleep 1000; true'; true"
    );
    let late = runtime.client.exec(&id, ["sh", "-c", &script], 1).await;
    assert_eq!(code(late), Code::DeadlineExceeded);
    eventually(PATIENCE, "the end of what was run", || async {
        let left: Vec<String> = witness::marked(&format!("CRIB_TEST_MARK={mark}"))
            .into_iter()
            .map(Witness::command_line)
            .collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    assert_eq!(runtime.client.sh(&id, "echo fine").await.unwrap(), "fine\n");
}

#[tokio::test]
async fn exec_returns_while_orphan_holds_outputs() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let answer = runtime
        .client
        .exec(&id, ["sh", "-c", "sleep 1000 & echo done"], 0);
    let answer = tokio::time::timeout(PATIENCE, answer)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (answer.stdout.as_slice(), answer.exit_code),
        (b"done\n".as_slice(), 0)
    );
}

#[tokio::test]
async fn exec_truncates_outputs_to_message_limit() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let run = async |script: &str| {
        runtime
            .client
            .exec(&id, ["sh", "-c", script], 0)
            .await
            .unwrap()
    };
    let answer = run("yes | head -c 20000000; echo end >&2").await;
    assert!(
        (LONGEST - SHORTER..=LONGEST).contains(&answer.stdout.len()),
        "{}",
        answer.stdout.len()
    );
    assert!(answer.stdout.chunks_exact(2).all(|line| line == b"y\n"));
    assert_eq!(
        (answer.stderr.as_slice(), answer.exit_code),
        (b"end\n".as_slice(), 0)
    );

    let answer = run("yes | head -c 20000000; yes | head -c 20000000 >&2; exit 7").await;
    let (out, err) = (answer.stdout.len(), answer.stderr.len());
    assert!(
        (LONGEST - SHORTER..=LONGEST).contains(&(out + err)) && out > SHORTER && err > SHORTER,
        "{out} {err}"
    );
    assert_eq!(answer.exit_code, 7);
}

#[tokio::test]
async fn concurrent_execs_return_their_own_output() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let mut execs = tokio::task::JoinSet::new();
    for number in 0..30 {
        let (client, id) = (runtime.client.clone(), id.clone());
        execs.spawn(async move {
            let answer = client
                .exec(
                    &id,
                    ["sh", "-c", &format!("echo {number}; exit {number}")],
                    30,
                )
                .await
                .unwrap();
            assert_eq!(answer.stdout, format!("{number}\n").into_bytes());
            assert_eq!(answer.exit_code, number);
        });
    }
    while let Some(result) = execs.join_next().await {
        result.unwrap();
    }
}

#[tokio::test]
async fn exec_works_during_grace_period_and_ends_with_container() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = pod.start(pod.script("c", script)).await.unwrap();
    pod.logged(&id, "ready").await.unwrap();
    let (client, same) = (runtime.client.clone(), id.clone());
    let stop = tokio::spawn(async move { client.stop(&same, 3600).await });
    pod.logged(&id, "asked").await.unwrap();
    assert_eq!(
        runtime.client.sh(&id, "echo still here").await.unwrap(),
        "still here\n"
    );

    let (client, same) = (runtime.client.clone(), id.clone());
    let exec = tokio::spawn(async move {
        client
            .exec(
                &same,
                ["sh", "-c", "echo begun > /tmp/begun; sleep 1000"],
                0,
            )
            .await
    });
    eventually(PATIENCE, "the exec to begin", || async {
        runtime.client.sh(&id, "cat /tmp/begun").await
    })
    .await;
    runtime.client.stop(&id, 0).await.unwrap();
    stop.await.unwrap().unwrap();
    let answer = tokio::time::timeout(PATIENCE, exec)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(answer.exit_code, 137);
    assert_eq!(
        runtime.client.container(&id).await.unwrap().state(),
        ContainerState::ContainerExited
    );
}

/// Neither the daemon nor the keeper keeps descriptors of ended processes and failed calls.
#[tokio::test]
async fn execs_and_failed_calls_leak_no_descriptors() {
    let runtime = Runtime::with().start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let daemon = Witness {
        pid: runtime.pid().unwrap(),
    };
    let keeper_log = runtime
        .state_dir()
        .join("sandboxes")
        .join(&pod.id)
        .join("keeper.log");
    let keeper = witness::processes()
        .into_iter()
        .find(|process| {
            process.status("Name").as_deref() == Some("crib-keeper")
                && process.descriptors().contains(&keeper_log)
        })
        .unwrap();
    let round = async || {
        for _ in 0..5 {
            runtime.client.sh(&id, "echo fine").await.unwrap();
            runtime
                .client
                .exec(&id, ["no-such-command"], 0)
                .await
                .unwrap_err();
            let failing = pod
                .create(fixture::container("failing", ["no-such-command"]))
                .await
                .unwrap();
            runtime.client.start(&failing).await.unwrap_err();
            runtime.client.remove(&failing).await.unwrap();
            let mut impossible = fixture::forever("impossible");
            impossible.working_dir = "/etc/passwd".to_owned();
            pod.create(impossible).await.unwrap_err();
        }
    };
    // The first round opens descriptors that are kept for good.
    round().await;
    let open = || (daemon.descriptors().len(), keeper.descriptors().len());
    let before = open();
    round().await;
    round().await;
    eventually(PATIENCE, "as many open files as before", || async {
        let now = open();
        if now.0 <= before.0 && now.1 <= before.1 {
            Ok(())
        } else {
            Err((before, now))
        }
    })
    .await;
}

#[tokio::test]
async fn command_has_the_oom_score_of_its_container() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    let linux = config.linux.get_or_insert_default();
    linux.resources.get_or_insert_default().oom_score_adj = 777;
    let id = pod.start(config).await.unwrap();
    let tell = "cat /proc/self/oom_score_adj";
    let answer = runtime.client.sh(&id, tell).await.unwrap();
    assert_eq!(answer, "777\n");
}
