//! The daemon or a keeper is killed during a call: after a restart the same call succeeds, and nothing leaks.

use std::time::Instant;

use cri::v1::{ContainerState, PodSandboxConfig};

use crate::restarts::recovery::{keepers, nothing_runs, pod_on};
use crate::support::*;

/// The number of instants tried per call, and the time limit of a call.
const INSTANTS: u32 = 6;
const LIMIT: Duration = Duration::from_secs(30);

/// The interrupted call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    RunPod,
    Create,
    Start,
    StopPod,
    RemovePod,
}

/// The process that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    Daemon,
    Keeper,
}

/// The arguments of a call.
#[derive(Debug, Clone)]
struct Arguments {
    sandbox: PodSandboxConfig,
    pod: Option<Pod>,
    container: String,
}

impl Call {
    /// Creates everything that the call needs.
    async fn prepare(self, runtime: &Runtime) -> Arguments {
        let sandbox = runtime.sandbox(&fixture::unique("p"));
        let (mut pod, mut container) = (None, String::new());
        if self != Self::RunPod {
            let made = Pod::run(&runtime.client, sandbox.clone()).await.unwrap();
            if self != Self::Create {
                container = made.create(fixture::forever("c")).await.unwrap();
            }
            if matches!(self, Self::StopPod | Self::RemovePod) {
                runtime.client.start(&container).await.unwrap();
            }
            pod = Some(made);
        }
        Arguments { sandbox, pod, container }
    }

    async fn send(self, runtime: &Runtime, arguments: &Arguments) -> Result<(), Status> {
        let client = runtime.client.clone();
        let pod = arguments.pod.as_ref().map(|pod| pod_on(pod, runtime));
        let call = async {
            match (self, pod) {
                (Self::RunPod, _) | (_, None) => {
                    client.run_pod(arguments.sandbox.clone()).await.map(drop)
                }
                (Self::Create, Some(pod)) => pod.create(fixture::forever("c")).await.map(drop),
                (Self::Start, _) => client.start(&arguments.container).await,
                (Self::StopPod, Some(pod)) => client.stop_pod(&pod.id).await,
                (Self::RemovePod, Some(pod)) => client.remove_pod(&pod.id).await,
            }
        };
        let answer = tokio::time::timeout(LIMIT, call).await;
        answer.unwrap_or_else(|_| panic!("{self:?} was not answered"))
    }

    /// Whether the answer to the repeated call is correct, if the pod has survived.
    async fn is_correct(
        self,
        again: Result<(), Status>,
        runtime: &Runtime,
        arguments: &Arguments,
    ) -> bool {
        let done_before = match (self, again) {
            (_, Ok(())) => return true,
            (Self::Start, Err(error)) => error.code() == Code::FailedPrecondition,
            (Self::RunPod | Self::Create | Self::StopPod | Self::RemovePod, Err(_)) => false,
        };
        let status = runtime.client.container(&arguments.container).await;
        done_before && status.unwrap().state() == ContainerState::ContainerRunning
    }
}

async fn remove_all(runtime: &Runtime) {
    for pod in runtime.client.pods(Default::default()).await.unwrap() {
        runtime.client.remove_pod(&pod.id).await.unwrap();
    }
    nothing_runs(runtime).await;
}

#[rstest]
#[tokio::test]
async fn repeated_call_succeeds_after_kill_at_any_instant(
    #[values(Call::RunPod, Call::Create, Call::Start, Call::StopPod, Call::RemovePod)] call: Call,
    #[values(Killed::Daemon, Killed::Keeper)] killed: Killed,
) {
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let arguments = call.prepare(&runtime).await;
    let began = Instant::now();
    call.send(&runtime, &arguments).await.unwrap();
    let whole = began.elapsed();
    remove_all(&runtime).await;
    for instant in 0..INSTANTS {
        let arguments = call.prepare(&runtime).await;
        let daemon = runtime.pid().unwrap();
        // The progress of the call at this instant is unknown: the result must be correct at every instant.
        let killing = async {
            tokio::time::sleep(whole * instant / INSTANTS).await;
            match killed {
                Killed::Daemon => kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap(),
                Killed::Keeper => {
                    for (_, keeper) in keepers(&runtime) {
                        // The keeper may have exited already.
                        let _ = kill(Pid::from_raw(keeper.pid), Signal::SIGKILL);
                    }
                }
            }
        };
        let (first, ()) = tokio::join!(call.send(&runtime, &arguments), killing);
        let what = format!("{call:?} at {instant}/{INSTANTS} of {whole:?}, first {first:?}");
        match killed {
            Killed::Daemon => {
                runtime.kill_and_restart().await.unwrap();
                let second = call.send(&runtime, &arguments).await;
                let message = format!("{second:?}");
                assert!(
                    call.is_correct(second, &runtime, &arguments).await,
                    "{what}, then {message}"
                );
            }
            Killed::Keeper => {
                // The pod is either gone or NOTREADY, and can be removed as usual.
                wait_for_no_ready_pod(&runtime, &what).await;
                let again = match call {
                    Call::StopPod | Call::RemovePod => true,
                    Call::RunPod => first.is_err(),
                    Call::Create | Call::Start => false,
                };
                if again {
                    call.send(&runtime, &arguments).await.unwrap();
                }
            }
        }
        remove_all(&runtime).await;
    }
}

/// Pods without a keeper are not ready.
async fn wait_for_no_ready_pod(runtime: &Runtime, what: &str) {
    eventually(WAIT_LIMIT, what, || async {
        let pods = runtime.client.pods(Default::default()).await.unwrap();
        let keepers = keepers(runtime).len();
        let ready = pods.iter().filter(|pod| pod.state == 0).count();
        if ready <= keepers { Ok(()) } else { Err((ready, keepers)) }
    })
    .await;
}
