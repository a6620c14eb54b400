//! A scripted runtime for tests: the image name selects the behaviour of a container. It uses tokio's clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{broadcast, watch};

use super::{
    Code, CriError, EventKind, ListedContainer, ListedSandbox, ListedState, PodRef, RuntimeEvent,
};
use crate::clock::Clock;
use crate::labels;
use crate::observed::{ContainerId, Exit, SandboxId};
use crate::pod::PodUid;
use crate::spec::{ContainerSpec, SandboxSpec};

mod service;

/// The behaviour of an image's containers.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Run time and exit code; `None`: runs until it is stopped.
    pub ends: Option<(Duration, i32)>,
    /// How long it takes to exit after the stop signal; `None`: ignores the signal.
    pub yields_after: Option<Duration>,
    /// The error of CreateContainer.
    pub create_fails: Option<String>,
    /// The error of StartContainer.
    pub start_fails: Option<String>,
    /// Whether the image is present before a pull.
    pub present: bool,
    /// The duration of a pull, and its error.
    pub pull: (Duration, Option<String>),
}

impl Behaviour {
    /// Runs until it is stopped, and exits immediately then. The image is present.
    #[must_use]
    pub fn forever() -> Self {
        Self {
            ends: None,
            yields_after: Some(Duration::ZERO),
            create_fails: None,
            start_fails: None,
            present: true,
            pull: (Duration::ZERO, None),
        }
    }

    /// Exits by itself.
    #[must_use]
    pub fn ends(after: Duration, code: i32) -> Self {
        Self {
            ends: Some((after, code)),
            ..Self::forever()
        }
    }
}

/// A recorded call, such as `CreateContainer app/2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The time of the call.
    pub at: Timestamp,
    /// The call and its object.
    pub text: String,
}

struct Container {
    listed: ListedContainer,
    spec: ContainerSpec,
    started_at: Option<Timestamp>,
    exit: Option<Exit>,
    ended: watch::Sender<bool>,
}

struct Sandbox {
    listed: ListedSandbox,
    spec: SandboxSpec,
}

#[derive(Default)]
struct Inner {
    images: BTreeMap<String, Behaviour>,
    pulled: BTreeSet<String>,
    sandboxes: BTreeMap<SandboxId, Sandbox>,
    containers: BTreeMap<ContainerId, Container>,
    calls: Vec<Call>,
    failing: BTreeMap<&'static str, (u32, CriError)>,
    serial: u64,
    down: bool,
    no_events: bool,
    mute: bool,
}

/// The scripted runtime. Clones share it.
#[derive(Clone)]
pub struct FakeCri {
    inner: Arc<Mutex<Inner>>,
    clock: Arc<dyn Clock>,
    events: Arc<Mutex<broadcast::Sender<RuntimeEvent>>>,
}

impl FakeCri {
    /// A runtime with no images.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            inner: Arc::default(),
            clock,
            events: Arc::new(Mutex::new(broadcast::channel(4096).0)),
        }
    }

    /// Defines an image; its name needs no `:latest`.
    pub fn image(&self, name: &str, behaviour: Behaviour) {
        self.lock()
            .images
            .insert(name.trim_end_matches(":latest").to_owned(), behaviour);
    }

    /// All calls so far that change something.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// The times of the calls with that text.
    #[must_use]
    pub fn times(&self, text: &str) -> Vec<Timestamp> {
        self.lock()
            .calls
            .iter()
            .filter(|call| call.text == text)
            .map(|call| call.at)
            .collect()
    }

    /// The numbers of existing sandboxes and containers.
    #[must_use]
    pub fn population(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.sandboxes.len(), inner.containers.len())
    }

    /// The names of running containers, sorted.
    #[must_use]
    pub fn running(&self) -> Vec<String> {
        let inner = self.lock();
        let running = inner
            .containers
            .values()
            .filter(|container| container.listed.state == ListedState::Running);
        let mut names: Vec<String> = running
            .map(|container| container.listed.name.clone())
            .collect();
        names.sort();
        names
    }

    /// Makes the next `times` calls of one kind fail.
    pub fn fail(&self, call: &'static str, times: u32, code: Code, message: &str) {
        self.lock().failing.insert(
            call,
            (
                times,
                CriError {
                    call,
                    code,
                    message: message.to_owned(),
                },
            ),
        );
    }

    /// Makes the runtime unreachable, or reachable again.
    pub fn set_down(&self, down: bool) {
        self.lock().down = down;
        self.break_events();
    }

    /// Answers GetContainerEvents with Unimplemented from now on, and closes existing streams.
    pub fn without_events(&self) {
        self.lock().no_events = true;
        self.break_events();
    }

    /// Keeps streams open but drops all events.
    pub fn lose_events(&self) {
        self.lock().mute = true;
    }

    /// Closes existing event streams; clients can subscribe again.
    pub fn break_events(&self) {
        *self.events.lock().unwrap_or_else(PoisonError::into_inner) = broadcast::channel(4096).0;
    }

    /// Kills a running container.
    pub fn kill(&self, name: &str, code: i32) {
        let running =
            |container: &&Container| container.listed.name == name && container.exit.is_none();
        let id = self
            .lock()
            .containers
            .values()
            .find(running)
            .map(|container| container.listed.id.clone());
        if let Some(id) = id {
            self.end(&id, code);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a call, and fails it if requested.
    fn called(&self, call: &'static str, about: &str) -> Result<(), CriError> {
        let at = self.clock.now();
        let mut inner = self.lock();
        if inner.down {
            return Err(CriError {
                call,
                code: Code::Unavailable,
                message: "connection refused".to_owned(),
            });
        }
        if !about.is_empty() {
            inner.calls.push(Call {
                at,
                text: format!("{call} {about}"),
            });
        }
        match inner.failing.get_mut(call) {
            Some((times, error)) if *times > 0 => {
                *times -= 1;
                Err(error.clone())
            }
            Some(_) | None => Ok(()),
        }
    }

    fn emit(&self, id: &str, kind: EventKind, pod: Option<PodUid>) {
        if !self.lock().mute {
            let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            // Sending fails if there is no subscriber.
            let _ = events.send(RuntimeEvent {
                id: id.to_owned(),
                kind,
                pod,
                name: None,
            });
        }
    }

    fn end(&self, id: &ContainerId, code: i32) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Some(container) = inner.containers.get_mut(id) else {
            return;
        };
        if container.listed.state != ListedState::Running {
            return;
        }
        container.listed.state = ListedState::Exited;
        container.exit = Some(Exit {
            code,
            reason: if code == 0 { "Completed" } else { "Error" }.to_owned(),
            message: String::new(),
            started_at: container.started_at,
            finished_at: now,
        });
        container.ended.send_replace(true);
        let pod = container.listed.pod.uid.clone();
        drop(inner);
        self.emit(id.as_str(), EventKind::Stopped, Some(pod));
    }

    /// The name of a container in the list of calls.
    fn about(&self, id: &ContainerId) -> String {
        match self.lock().containers.get(id) {
            Some(container) => format!("{}/{}", container.spec.name, container.spec.attempt),
            None => format!("unknown {id}"),
        }
    }

    fn behaviour(&self, image: &str) -> Option<Behaviour> {
        self.lock()
            .images
            .get(image.trim_end_matches(":latest"))
            .cloned()
    }
}

fn not_found(call: &'static str, what: &str) -> CriError {
    CriError {
        call,
        code: Code::NotFound,
        message: format!("{what} is not there"),
    }
}

fn failed(call: &'static str, message: String) -> CriError {
    CriError {
        call,
        code: Code::Unknown,
        message,
    }
}

fn pod_of(labels: &BTreeMap<String, String>) -> PodRef {
    let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
    PodRef {
        uid: PodUid::new(label(labels::POD_UID)),
        namespace: label(labels::POD_NAMESPACE),
        name: label(labels::POD_NAME),
    }
}
