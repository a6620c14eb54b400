//! Rules for StopContainer: signals, grace periods, idempotence.

use tokio::time::Instant;

use crate::prelude::*;
use crate::rules::namespaces::{self, container_mode};
use crate::rules::sandbox::UNKNOWN;

/// A grace period that no rule waits for: a year, whose milliseconds exceed 32 bits.
const LONG: i64 = 365 * 24 * 3600;
/// Prints `asked` on SIGTERM and does not exit.
const IGNORES_SIGTERM: &str =
    "trap 'echo asked' TERM; echo ready; while :; do sleep 1000 & wait $!; done";

/// Prints `asked` on SIGTERM, does not exit, and counts half seconds from then on.
const COUNTING: &str = "trap 'asked=yes; echo asked' TERM; echo ready; n=0
    while :; do sleep 0.5 & wait $!; [ -z \"$asked\" ] || { n=$((n + 1)); echo $n; }; done";

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-STP-001": "When StopContainer returns, ContainerStatus and ListContainers report the container as exited.",
        CRITEST, tags ["kubelet", "state"], calls [StopContainer, ContainerStatus, ListContainers],
        stopped_container_is_exited given [container], faults [
            "StopContainer swallow",
            "ContainerStatus set status.state \"CONTAINER_RUNNING\"",
            "ListContainers set containers.state \"CONTAINER_RUNNING\"",
        ];
    Must "CRI-STP-002": "StopContainer of an exited container succeeds.",
        API, tags ["kubelet", "idempotence"], calls [StopContainer],
        second_stop_succeeds given [container], faults [
            "StopContainer after 1 answer FAILED_PRECONDITION",
            "StopContainer after 1 hang",
        ];
    Must "CRI-STP-003": "StopContainer of an unknown container succeeds.",
        CRITEST, tags ["kubelet", "idempotence"], calls [StopContainer],
        stop_of_unknown_container_succeeds, faults ["StopContainer answer NOT_FOUND"];
    Must "CRI-STP-004": "StopContainer first sends SIGTERM; if the container then exits, ContainerStatus reports its exit code.",
        KUBELET, tags ["kubelet", "signal", "exit"], calls [StopContainer, ContainerStatus],
        stop_sends_sigterm given [container], faults [
            "StopContainer request set timeout 0",
            "StopContainer if request.timeout == 31536000 request set timeout 0",
            "ContainerStatus set status.exit_code 137",
        ];
    Must "CRI-STP-005": "StopContainer kills a container that is still running at the end of its grace period, not earlier and at most 8 s later.",
        KUBELET, tags ["kubelet", "signal", "time"], calls [StopContainer],
        stop_kills_after_grace_period, faults [
            "StopContainer if request.timeout == 3 request set timeout 1",
            "StopContainer if request.timeout == 3 request set timeout 10",
            "StopContainer request set timeout 3600",
            "StopContainer request set timeout 0",
            "StopContainer delay 10",
            "StopContainer request set timeout 6",
        ];
    Must "CRI-STP-006": "A second StopContainer call with a shorter grace period takes precedence over the first call.",
        CRIO, tags ["kubelet", "signal", "concurrency"], calls [StopContainer],
        shorter_grace_period_wins, faults ["StopContainer request set timeout 3600"];
    Should "CRI-STP-007": "StopContainer sends the configured stop signal, which ContainerStatus reports.",
        KUBELET, tags ["signal"], calls [StopContainer, ContainerStatus],
        configured_signal_is_sent given [pod], faults [
            "CreateContainer request drop config.stop_signal",
            "ContainerStatus set status.stop_signal \"SIGTERM\"",
        ];
    Should "CRI-STP-014": "Whichever stop signal a pod configures, including a real-time signal, StopContainer sends this signal and ContainerStatus reports it.",
        KUBELET, tags ["signal"], calls [StopContainer, ContainerStatus],
        each_signal_is_sent, faults [
            "CreateContainer request set config.stop_signal \"SIGINT\"",
            "CreateContainer after 3 request drop config.stop_signal",
            "ContainerStatus after 1 set status.stop_signal \"SIGTERM\"",
        ];
    Should "CRI-STP-008": "A cancelled StopContainer does not kill the container at the end of the grace period.",
        CONTAINERD, tags ["cancellation"], calls [StopContainer],
        cancelled_stop_does_not_kill given [pod], faults ["StopContainer request set timeout 0"];
    Must "CRI-STP-009": "Commands can be executed in a container during its grace period.",
        CRIO, tags ["kubelet", "exec"], calls [StopContainer, ExecSync],
        exec_works_in_grace_period, faults [
            "ExecSync answer FAILED_PRECONDITION",
            "StopContainer request set timeout 0",
        ];
    Must "CRI-STP-010": "Concurrent StopContainer calls for one container all succeed.",
        CRIO, tags ["concurrency"], calls [StopContainer],
        concurrent_stops_succeed, faults [
            "StopContainer after 5 answer UNAVAILABLE",
            "StopContainer after 5 hang",
        ];
    Must "CRI-STP-011": "StopContainer of a container that was never started leaves it exited or created, and the container never runs.",
        API, tags ["state"], calls [StopContainer],
        created_container_is_stopped given [pod], faults [
            "StopContainer answer FAILED_PRECONDITION",
            "ContainerStatus set status.state \"CONTAINER_RUNNING\"",
        ];
    Must "CRI-STP-012": "StopContainer with a grace period of 0 kills the container immediately, without sending the stop signal first.",
        API, tags ["kubelet", "signal", "time"], calls [StopContainer],
        stop_without_grace_period_kills given [container], faults [
            "StopContainer request set timeout 10",
            "StopContainer request set timeout 2",
            "StopContainer delay 10",
        ];
    Must "CRI-STP-013": "In a shared PID namespace, StopContainer ends every process of a container, including grandchildren, and no process of another container.",
        CRIO, tags ["kubelet", "namespaces", "process"], calls [StopContainer, RunPodSandbox, CreateContainer],
        every_process_of_container_ends, faults [
            "StopContainer swallow",
            container_mode!("pid", "CONTAINER"),
        ];
};

async fn start_ignoring_sigterm(x: &Context) -> Verdict<(Pod, String)> {
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, x.script("c", IGNORES_SIGTERM)).await?;
    Ok((pod, id))
}

/// Calls StopContainer in the background.
fn stop_in_background(
    x: &Context,
    id: &str,
    grace: i64,
) -> tokio::task::JoinHandle<Result<(), Status>> {
    let (client, id) = (x.client.clone(), id.to_owned());
    tasks::spawn(async move { client.stop(&id, grace).await })
}

async fn stopped_container_is_exited(x: &Context, id: String) -> Verdict {
    x.client.stop(&id, 30).await?;
    x.container_is(&id, ContainerState::ContainerExited).await
}

async fn second_stop_succeeds(x: &Context, id: String) -> Verdict {
    x.client.stop(&id, 30).await?;
    Ok(x.client.stop(&id, 30).await?)
}

async fn stop_of_unknown_container_succeeds(x: &Context) -> Verdict {
    Ok(x.client.stop(UNKNOWN, 30).await?)
}

async fn stop_sends_sigterm(x: &Context, id: String) -> Verdict {
    x.client.stop(&id, LONG).await?;
    let status = x.client.container(&id).await?;
    equal("the exit code", &status.exit_code, &143)?;
    equal("the reason", status.reason.as_str(), "Error")
}

async fn stop_kills_after_grace_period(x: &Context) -> Verdict {
    tokio::try_join!(kills_after(x, 1), kills_after(x, 3)).map(drop)
}

async fn kills_after(x: &Context, grace: u32) -> Verdict {
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, x.script("c", COUNTING)).await?;
    let began = Instant::now();
    x.client.stop(&id, grace.into()).await?;
    let took = began.elapsed().as_secs_f64();
    let least = f64::from(grace) - 0.1;
    let in_time = (least..least + 8.0).contains(&took);
    let what = format!("seconds that StopContainer takes with a grace period of {grace} s");
    ensure(in_time, &what, &format!("between {least} and {}", least + 8.0), took)?;
    let status = x.client.container(&id).await?;
    equal("the exit code", &status.exit_code, &137)?;
    x.logged(&pod, "asked").await?;
    // On a slow machine the container counts too few half seconds, never too many.
    let lines = x.lines(&pod);
    let most = (2 * grace + 6).to_string();
    let late = lines.iter().any(|line| line.text == most);
    let what = format!(
        "half seconds that the container has counted since SIGTERM, with a grace period of {grace} s"
    );
    let last = lines.last().map(|line| &line.text);
    ensure(!late, &what, &format!("less than {most}"), last)
}

async fn stop_without_grace_period_kills(x: &Context, id: String) -> Verdict {
    let began = Instant::now();
    x.client.stop(&id, 0).await?;
    let took = began.elapsed();
    let status = x.client.container(&id).await?;
    // After SIGTERM the exit code would be 143.
    equal("the exit code", &status.exit_code, &137)?;
    let what = "StopContainer with a grace period of 0";
    ensure(took < Duration::from_secs(9), what, "to take less than 9 s", took)
}

/// The arguments of each container's sleep processes, which identify them.
const SLEEPS: [&str; 2] = ["4242.1", "4242.2"];

async fn every_process_of_container_ends(x: &Context) -> Verdict {
    let pod = namespaces::pod(x, |options| options.pid = NamespaceMode::Pod.into()).await?;
    let mut ids = Vec::new();
    for (name, seconds) in ["c", "d"].into_iter().zip(SLEEPS) {
        let mut config = namespaces::container(x, &pod, name, |_| {});
        let script = format!("trap '' TERM; sleep {seconds} & (sleep {seconds} & wait) & wait");
        config.command = ["/bin/sh", "-c", &script].map(str::to_owned).into();
        let id = pod.start(config).await?;
        ids.push(id);
    }
    let [first, second] = ids.as_slice() else {
        return failed("the containers", "two", format!("{ids:?}"));
    };
    let sleeping = async || -> Verdict<[usize; 2]> {
        let text = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f 2>/dev/null; echo; done";
        let lines = x.client.sh(second, text).await?;
        let of = |seconds: &str| {
            let command = format!("sleep {seconds} ");
            lines.lines().filter(|line| **line == command).count()
        };
        Ok(SLEEPS.map(of))
    };
    let until = async |what: &str, expected: [usize; 2]| {
        x.until(what, async || match sleeping().await {
            Ok(seen) if seen == expected => Ok(()),
            Ok(seen) => Err(format!("{seen:?} processes of each container")),
            Err(why) => Err(format!("{why:?}")),
        })
        .await
    };
    until("the processes of both containers", [2, 2]).await?;
    x.client.stop(first, 0).await?;
    until("the processes of the other container alone", [0, 2]).await
}

async fn shorter_grace_period_wins(x: &Context) -> Verdict {
    let (pod, id) = start_ignoring_sigterm(x).await?;
    let long = stop_in_background(x, &id, LONG);
    x.logged(&pod, "asked").await?;
    x.client.stop(&id, 0).await?;
    let status = x.client.container(&id).await?;
    equal("the exit code", &status.exit_code, &137)?;
    Ok(joined("the first StopContainer", long.await)??)
}

async fn configured_signal_is_sent(x: &Context, pod: Pod) -> Verdict {
    let text = "trap 'exit 10' USR1; trap 'exit 11' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let mut config = x.script("c", text);
    config.stop_signal = v1::Signal::Sigusr1.into();
    let id = x.start_ready(&pod, config).await?;
    let named = x.client.container(&id).await?.stop_signal();
    equal("stop_signal in ContainerStatus", &named, &v1::Signal::Sigusr1)?;
    x.client.stop(&id, LONG).await?;
    equal("the exit code", &x.client.container(&id).await?.exit_code, &10)
}

/// Signals that a shell can trap, with their Linux numbers, which differ from those of the CRI.
const SIGNALS: [(v1::Signal, i32); 6] = [
    (v1::Signal::Sighup, 1),
    (v1::Signal::Sigint, 2),
    (v1::Signal::Sigquit, 3),
    (v1::Signal::Sigusr2, 12),
    (v1::Signal::Sigwinch, 28),
    (v1::Signal::Sigrtminplus3, 37),
];

async fn each_signal_is_sent(x: &Context) -> Verdict {
    if std::env::consts::ARCH.starts_with("mips") {
        return skipped("signals have other numbers on this machine");
    }
    let traps: String = SIGNALS
        .iter()
        .map(|(_, number)| format!("trap 'exit {}' {number}; ", 100 + number))
        .collect();
    let text =
        format!("{traps} trap 'exit 99' TERM; echo ready; while :; do sleep 1000 & wait $!; done");
    for (signal, number) in SIGNALS {
        let pod = x.pod().await?;
        let mut config = x.script("c", &text);
        config.stop_signal = signal.into();
        let id = x.start_ready(&pod, config).await?;
        let what = "stop_signal in ContainerStatus";
        equal(what, &x.client.container(&id).await?.stop_signal(), &signal)?;
        x.client.stop(&id, LONG).await?;
        let code = x.client.container(&id).await?.exit_code;
        let what = format!("the exit code of a container that {} ends", signal.as_str_name());
        equal(&what, &code, &(100 + number))?;
    }
    Ok(())
}

async fn cancelled_stop_does_not_kill(x: &Context, pod: Pod) -> Verdict {
    let id = x.start_ready(&pod, x.script("c", COUNTING)).await?;
    let stop = stop_in_background(x, &id, 1);
    x.logged(&pod, "asked").await?;
    stop.abort();
    // The container still runs well after the grace period.
    x.logged(&pod, "5").await?;
    x.container_is(&id, ContainerState::ContainerRunning).await
}

async fn exec_works_in_grace_period(x: &Context) -> Verdict {
    let (pod, id) = start_ignoring_sigterm(x).await?;
    let stop = stop_in_background(x, &id, LONG);
    x.logged(&pod, "asked").await?;
    let answer = x.client.exec(&id, ["/bin/sh", "-c", "echo still"], 10).await?;
    equal_output("the output of a command in the grace period", &answer.stdout, b"still\n")?;
    x.client.stop(&id, 0).await?;
    Ok(joined("the first StopContainer", stop.await)??)
}

async fn concurrent_stops_succeed(x: &Context) -> Verdict {
    let (_pod, id) = start_ignoring_sigterm(x).await?;
    let stops: Vec<_> = (0..10).map(|_| stop_in_background(x, &id, 1)).collect();
    for stop in stops {
        joined("StopContainer", stop.await)??;
    }
    x.container_is(&id, ContainerState::ContainerExited).await
}

async fn created_container_is_stopped(x: &Context, pod: Pod) -> Verdict {
    let id = pod.create(x.forever("c")).await?;
    x.client.stop(&id, 1).await?;
    let status = x.client.container(&id).await?;
    match status.state() {
        ContainerState::ContainerExited => Ok::<(), Outcome>(()),
        ContainerState::ContainerCreated => diverges("the container stays CONTAINER_CREATED"),
        state @ (ContainerState::ContainerRunning | ContainerState::ContainerUnknown) => {
            failed("the state", "CONTAINER_EXITED or CONTAINER_CREATED", state.as_str_name())
        }
    }
}
