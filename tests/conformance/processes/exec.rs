//! ExecSync: additional processes in a container.

use crate::support::*;

/// The maximum message size of a kubelet's client (Kubernetes 1.36, cri-client), and the tolerance below it.
const LONGEST: usize = 16 << 20;
const SHORTER: usize = 64 << 10;

#[tokio::test]
async fn exec_rejects_invalid_request() {
    let (runtime, _pod, id) = with_container().await;
    assert_eq!(code(runtime.client.exec::<&str>(&id, [], 0).await), Code::InvalidArgument);
    assert_eq!(code(runtime.client.exec(&id, ["true"], -1).await), Code::InvalidArgument);
    let error = runtime.client.exec(&id, ["no-such-command"], 0).await.unwrap_err();
    assert!(error.message().contains("no-such-command"), "{error:?}");
}

#[tokio::test]
async fn exec_timeout_kills_all_processes_of_exec() {
    let (runtime, _pod, id) = with_container().await;
    let mark = fixture::unique("mark");
    // Daemonized processes, which leave the session and parent; without namespaces they cannot be found.
    let alone = match Need::Namespaces.missing() {
        None => "(setsid sleep 1000 &); (setsid sh -c 'sleep 1000 & sleep 1000' &);",
        Some(_) => "sleep 1000 &",
    };
    let script = format!(
        "export CRIB_TEST_MARK={mark}; sleep 1000 & {alone} sh -c 'sleep 1000; true'; true"
    );
    let late = runtime.client.exec(&id, ["sh", "-c", &script], 1).await;
    assert_eq!(code(late), Code::DeadlineExceeded);
    eventually(WAIT_LIMIT, "the end of what was run", || async {
        let left: Vec<String> = procfs::marked(&format!("CRIB_TEST_MARK={mark}"))
            .into_iter()
            .map(ObservedProcess::command_line)
            .collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    assert_eq!(runtime.client.sh(&id, "echo fine").await.unwrap(), "fine\n");
}

#[tokio::test]
async fn exec_truncates_outputs_to_message_limit() {
    let (runtime, _pod, id) = with_container().await;
    let run = async |script: &str| runtime.client.exec(&id, ["sh", "-c", script], 0).await.unwrap();
    let answer = run("yes | head -c 20000000; echo end >&2").await;
    assert!(
        (LONGEST - SHORTER..=LONGEST).contains(&answer.stdout.len()),
        "{}",
        answer.stdout.len()
    );
    assert!(answer.stdout.chunks_exact(2).all(|line| line == b"y\n"));
    assert_eq!((answer.stderr.as_slice(), answer.exit_code), (b"end\n".as_slice(), 0));

    let answer = run("yes | head -c 20000000; yes | head -c 20000000 >&2; exit 7").await;
    let (out, err) = (answer.stdout.len(), answer.stderr.len());
    assert!(
        (LONGEST - SHORTER..=LONGEST).contains(&(out + err)) && out > SHORTER && err > SHORTER,
        "{out} {err}"
    );
    assert_eq!(answer.exit_code, 7);
}

/// Neither the daemon nor the keeper keeps descriptors of ended processes and failed calls.
#[tokio::test]
async fn execs_and_failed_calls_leak_no_descriptors() {
    let (runtime, pod, id) = with_container().await;
    let daemon = ObservedProcess { pid: runtime.pid().unwrap() };
    let keeper_log = runtime.state_dir().join("sandboxes").join(&pod.id).join("keeper.log");
    let keeper = procfs::processes()
        .into_iter()
        .find(|process| {
            process.status("Name").as_deref() == Some("crib-keeper")
                && process.descriptors().contains(&keeper_log)
        })
        .unwrap();
    let round = async || {
        for _ in 0..5 {
            runtime.client.sh(&id, "echo fine").await.unwrap();
            runtime.client.exec(&id, ["no-such-command"], 0).await.unwrap_err();
            let failing =
                pod.create(fixture::container("failing", ["no-such-command"])).await.unwrap();
            runtime.client.start(&failing).await.unwrap_err();
            runtime.client.remove(&failing).await.unwrap();
            let mut impossible = fixture::forever("impossible");
            impossible.working_dir = "/etc/passwd".to_owned();
            pod.create(impossible).await.unwrap_err();
        }
    };
    // The first round opens descriptors that stay open.
    round().await;
    let open = || (daemon.descriptors().len(), keeper.descriptors().len());
    let before = open();
    round().await;
    round().await;
    eventually(WAIT_LIMIT, "as many open files as before", || async {
        let now = open();
        if now.0 <= before.0 && now.1 <= before.1 { Ok(()) } else { Err((before, now)) }
    })
    .await;
}
