//! A scripted runtime for tests: containers do what the name of their image says, on tokio's clock.

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

/// What containers of an image do.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// How long a container runs and with what code it ends; `None` runs until it is stopped.
    pub ends: Option<(Duration, i32)>,
    /// How long it takes to end when asked to; `None` never listens.
    pub yields_after: Option<Duration>,
    /// What CreateContainer answers instead.
    pub create_fails: Option<String>,
    /// What StartContainer answers instead.
    pub start_fails: Option<String>,
    /// Is the image there before it is pulled?
    pub present: bool,
    /// How long a pull takes, and what it answers instead of success.
    pub pull: (Duration, Option<String>),
}

impl Behaviour {
    /// Runs until it is stopped, and ends at once then. The image is there.
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

    /// Ends by itself.
    #[must_use]
    pub fn ends(after: Duration, code: i32) -> Self {
        Self {
            ends: Some((after, code)),
            ..Self::forever()
        }
    }
}

/// One call the fake has had: when, and what, as `CreateContainer app/2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// When it came.
    pub at: Timestamp,
    /// The call and what it was about.
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

    /// Every call so far that changes something.
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

    /// Number of sandboxes and containers there are.
    #[must_use]
    pub fn population(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.sandboxes.len(), inner.containers.len())
    }

    /// Names of the containers that run, sorted.
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

    /// Lets the next `times` calls of one kind fail.
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

    /// Lets nobody answer, or somebody again.
    pub fn set_down(&self, down: bool) {
        self.lock().down = down;
        self.break_events();
    }

    /// Answers GetContainerEvents with Unimplemented from now on, and ends the streams there are.
    pub fn without_events(&self) {
        self.lock().no_events = true;
        self.break_events();
    }

    /// Keeps streams open and loses every event.
    pub fn lose_events(&self) {
        self.lock().mute = true;
    }

    /// Ends the event streams there are; new ones can be had.
    pub fn break_events(&self) {
        *self.events.lock().unwrap_or_else(PoisonError::into_inner) = broadcast::channel(4096).0;
    }

    /// Ends a running container from outside.
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

    /// Notes a call and says whether it fails.
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
            // Without a subscriber there is nobody to tell.
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

    /// What is said about a container in the list of calls.
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
