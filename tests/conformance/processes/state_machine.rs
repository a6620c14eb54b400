//! Property test: calls in any order, with complete, abbreviated and wrong ids, return the codes that a model predicts.
//!
//! The model follows docs/cri.md. A failure is shrunk to a few calls and prints its seed; `CRIB_TEST_SEED` repeats it, and
//! `PROPTEST_CASES` sets the number of cases.

use std::hash::{BuildHasher as _, RandomState};

use cri::v1::{ContainerState, LinuxContainerResources};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::support::*;

/// The id in a request: of a pod or container created so far, even if removed, or an invalid one.
#[derive(Debug, Clone, Copy)]
enum Which {
    Whole(usize),
    Abbreviated(usize),
    Unknown,
    Empty,
}

/// A call. The `u8` values are names.
#[derive(Debug, Clone, Copy)]
enum Call {
    RunPod(u8),
    StopPod(Which),
    RemovePod(Which),
    PodStatus(Which),
    ListPods,
    Create(Which, u8),
    Start(Which),
    Stop(Which),
    Remove(Which),
    Exec(Which),
    Status(Which),
    Update(Which),
    Reopen(Which),
    ListContainers,
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        6 => any::<usize>().prop_map(Which::Whole),
        2 => any::<usize>().prop_map(Which::Abbreviated),
        1 => Just(Which::Unknown),
        1 => Just(Which::Empty),
    ]
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        3 => (0_u8..3).prop_map(Call::RunPod),
        1 => which().prop_map(Call::StopPod),
        1 => which().prop_map(Call::RemovePod),
        1 => which().prop_map(Call::PodStatus),
        1 => Just(Call::ListPods),
        5 => (which(), 0_u8..3).prop_map(|(pod, name)| Call::Create(pod, name)),
        4 => which().prop_map(Call::Start),
        2 => which().prop_map(Call::Stop),
        1 => which().prop_map(Call::Remove),
        2 => which().prop_map(Call::Exec),
        2 => which().prop_map(Call::Status),
        1 => which().prop_map(Call::Update),
        1 => which().prop_map(Call::Reopen),
        1 => Just(Call::ListContainers),
    ];
    prop::collection::vec(call, 10..60)
}

#[derive(Debug)]
struct ModelPod {
    pod: Pod,
    name: u8,
    ready: bool,
}

#[derive(Debug)]
struct ModelContainer {
    id: String,
    pod: String,
    name: u8,
    state: ContainerState,
    /// Whether UpdateContainerResources has changed its limits.
    changed: bool,
}

/// The expected pods and containers, and all ids used so far, including those of removed ones.
#[derive(Debug, Default)]
struct Model {
    pods: Vec<ModelPod>,
    containers: Vec<ModelContainer>,
    pod_ids: Vec<String>,
    container_ids: Vec<String>,
}

/// The id that the client sends.
fn id_for(which: Which, made: &[String]) -> String {
    let at = |number: usize| made.get(number.checked_rem(made.len())?);
    match which {
        Which::Whole(number) => at(number).cloned(),
        Which::Abbreviated(number) => at(number).map(|id| id[..13].to_owned()),
        Which::Unknown => None,
        Which::Empty => Some(String::new()),
    }
    .unwrap_or_else(|| "0".repeat(64))
}

fn matches_id(sent: &str, id: &str) -> bool {
    !sent.is_empty() && id.starts_with(sent)
}

/// The code of a response; an error must have a message.
fn code<T>(answer: &Result<T, Status>) -> Code {
    answer.as_ref().map_or_else(
        |error| {
            assert!(!error.message().is_empty(), "{error:?} says nothing");
            error.code()
        },
        |_| Code::Ok,
    )
}

impl Model {
    fn container(&mut self, sent: &str) -> Option<&mut ModelContainer> {
        self.containers.iter_mut().find(|container| matches_id(sent, &container.id))
    }

    /// OK for a container in one of these states, FAILED_PRECONDITION in other states, NOT_FOUND if it does not exist.
    fn code_in_states(&mut self, sent: &str, states: &[ContainerState]) -> Code {
        match self.container(sent) {
            None => Code::NotFound,
            Some(container) if states.contains(&container.state) => Code::Ok,
            Some(_) => Code::FailedPrecondition,
        }
    }

    /// Whether a pod has containers.
    fn has_containers(&self, pod: &str) -> bool {
        self.containers.iter().any(|container| container.pod == pod)
    }

    /// Makes a call, and returns the legal codes and the actual one.
    async fn send(&mut self, call: Call, runtime: &Runtime) -> (Vec<Code>, Code) {
        use ContainerState::{
            ContainerCreated as Created, ContainerExited as Exited, ContainerRunning as Running,
        };
        let client = &runtime.client;
        match call {
            Call::RunPod(name) => {
                let mut config = runtime.sandbox("p");
                config.metadata.as_mut().unwrap().uid = format!("uid-{name}");
                config.log_directory = format!("{}/logs/{name}", runtime.root().display());
                let first = self.pods.iter().find(|pod| pod.name == name);
                // A repeated call returns the existing pod if nothing has used it yet.
                let legal = match first {
                    Some(first) if !first.ready || self.has_containers(&first.pod.id) => {
                        Code::AlreadyExists
                    }
                    _ => Code::Ok,
                };
                let first = first.map(|first| first.pod.id.clone());
                let answer = Pod::run(client, config).await;
                let reported = code(&answer);
                if let (Some(first), Ok(pod)) = (&first, &answer) {
                    assert_eq!(pod.id, *first);
                } else if let Ok(pod) = answer {
                    self.pod_ids.push(pod.id.clone());
                    self.pods.push(ModelPod { pod, name, ready: true });
                }
                (vec![legal], reported)
            }
            Call::StopPod(which) => {
                let id = id_for(which, &self.pod_ids);
                let reported = code(&client.stop_pod(&id).await);
                for pod in self.pods.iter_mut().filter(|pod| matches_id(&id, &pod.pod.id)) {
                    pod.ready = false;
                }
                for container in self.containers.iter_mut().filter(|one| matches_id(&id, &one.pod))
                {
                    container.state = Exited;
                }
                (vec![Code::Ok], reported)
            }
            Call::RemovePod(which) => {
                let id = id_for(which, &self.pod_ids);
                let reported = code(&client.remove_pod(&id).await);
                self.pods.retain(|pod| !matches_id(&id, &pod.pod.id));
                self.containers.retain(|container| !matches_id(&id, &container.pod));
                (vec![Code::Ok], reported)
            }
            Call::PodStatus(which) => {
                let id = id_for(which, &self.pod_ids);
                let answer = client.pod_is_ready(&id).await;
                let Some(pod) = self.pods.iter().find(|pod| matches_id(&id, &pod.pod.id)) else {
                    return (vec![Code::NotFound], code(&answer));
                };
                assert_eq!(answer.as_ref().ok(), Some(&pod.ready), "{answer:?}");
                (vec![Code::Ok], code(&answer))
            }
            Call::ListPods => {
                let answer = client.pods(Default::default()).await.unwrap();
                let found = answer.into_iter().map(|pod| (pod.id, pod.state == 0));
                let expected = self.pods.iter().map(|pod| (pod.pod.id.clone(), pod.ready));
                assert_eq!(sorted(found), sorted(expected));
                (vec![Code::Ok], Code::Ok)
            }
            Call::Create(which, name) => {
                let id = id_for(which, &self.pod_ids);
                let pod = self.pods.iter().find(|pod| matches_id(&id, &pod.pod.id));
                let whole = pod.map_or(String::new(), |pod| pod.pod.id.clone());
                let first = self.containers.iter().find(|one| one.pod == whole && one.name == name);
                let unused = first.is_none_or(|first| first.state == Created && !first.changed);
                let first = first.map(|first| first.id.clone());
                let legal = match pod.map(|pod| pod.ready) {
                    None => vec![Code::NotFound],
                    Some(true) if unused => vec![Code::Ok],
                    Some(true) => vec![Code::AlreadyExists],
                    Some(false) if first.is_none() => vec![Code::FailedPrecondition],
                    // Both codes are correct.
                    Some(false) => vec![Code::FailedPrecondition, Code::AlreadyExists],
                };
                let sandbox =
                    pod.map_or_else(|| runtime.sandbox("p"), |pod| pod.pod.config.clone());
                let config = fixture::forever(&format!("c{name}"));
                let answer = client.create(&id, config, sandbox).await;
                let reported = code(&answer);
                if let (Some(first), Ok(id)) = (&first, &answer) {
                    assert_eq!(id, first);
                } else if let Ok(id) = answer {
                    self.container_ids.push(id.clone());
                    self.containers.push(ModelContainer {
                        id,
                        pod: whole,
                        name,
                        state: Created,
                        changed: false,
                    });
                }
                (legal, reported)
            }
            Call::Start(which) => {
                let id = id_for(which, &self.container_ids);
                let legal = self.code_in_states(&id, &[Created]);
                let reported = code(&client.start(&id).await);
                if let Some(container) = self.container(&id).filter(|_| reported == Code::Ok) {
                    container.state = Running;
                }
                (vec![legal], reported)
            }
            Call::Stop(which) => {
                let id = id_for(which, &self.container_ids);
                let reported = code(&client.stop(&id, 0).await);
                if let Some(container) = self.container(&id) {
                    container.state = Exited;
                }
                (vec![Code::Ok], reported)
            }
            Call::Remove(which) => {
                let id = id_for(which, &self.container_ids);
                let reported = code(&client.remove(&id).await);
                self.containers.retain(|container| !matches_id(&id, &container.id));
                (vec![Code::Ok], reported)
            }
            Call::Exec(which) => {
                let id = id_for(which, &self.container_ids);
                let reported = code(&client.exec(&id, ["true"], 30).await);
                (vec![self.code_in_states(&id, &[Running])], reported)
            }
            Call::Status(which) => {
                let id = id_for(which, &self.container_ids);
                let answer = client.container(&id).await;
                if let (Ok(status), Some(container)) = (&answer, self.container(&id)) {
                    assert_eq!((&status.id, status.state()), (&container.id, container.state));
                }
                (vec![self.code_in_states(&id, &[Created, Running, Exited])], code(&answer))
            }
            Call::Update(which) => {
                let id = id_for(which, &self.container_ids);
                let limits = LinuxContainerResources { cpu_shares: 512, ..Default::default() };
                let reported = code(&client.update(&id, limits).await);
                if let Some(container) = self.container(&id).filter(|_| reported == Code::Ok) {
                    container.changed = true;
                }
                (vec![self.code_in_states(&id, &[Created, Running])], reported)
            }
            Call::Reopen(which) => {
                let id = id_for(which, &self.container_ids);
                let reported = code(&client.reopen_log(&id).await);
                (vec![self.code_in_states(&id, &[Running])], reported)
            }
            Call::ListContainers => {
                let answer = client.containers(Default::default()).await.unwrap();
                let found = answer.into_iter().map(|one| (one.id.clone(), one.state()));
                let expected = self.containers.iter().map(|one| (one.id.clone(), one.state));
                assert_eq!(sorted(found), sorted(expected));
                (vec![Code::Ok], Code::Ok)
            }
        }
    }
}

fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort();
    all
}

#[test]
fn calls_in_any_order_match_model() {
    let mut config = Config::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 12;
    }
    // A case takes a second, so shrinking is limited. The seed is printed, not written into the tree.
    let given = std::env::var("CRIB_TEST_SEED").ok();
    let seed: u64 =
        given.map_or_else(|| RandomState::new().hash_one(0), |seed| seed.parse().unwrap());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed.to_le_bytes().repeat(4));
    config.max_shrink_iters = 100;
    config.failure_persistence = None;
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let ran = TestRunner::new_with_rng(config, rng).run(&calls(), |calls| {
        tokio.block_on(async {
            // Dropping the runtime checks for leaks.
            let runtime = Runtime::with().start().await.unwrap();
            let mut model = Model::default();
            for (number, call) in calls.into_iter().enumerate() {
                let (legal, reported) = model.send(call, &runtime).await;
                prop_assert!(
                    legal.contains(&reported),
                    "call {number}, {call:?}: {reported:?}, not {legal:?}"
                );
            }
            for call in [Call::ListPods, Call::ListContainers] {
                model.send(call, &runtime).await;
            }
            Ok(())
        })
    });
    if let Err(failure) = ran {
        panic!("CRIB_TEST_SEED={seed}: {failure}");
    }
}
