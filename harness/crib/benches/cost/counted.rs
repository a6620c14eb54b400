//! A runtime client that counts calls, and times them while a single pod is measured.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agent::cri::{
    Cri, CriError, EventStream, ExecOutput, FsUsage, Image, LastLists, ListedContainer,
    ListedSandbox, Lists, RegistryAuth, RuntimeStatus, StreamOptions, Version,
};
use agent::observed::{ContainerId, MemoryUsage, ObservedContainer, ObservedSandbox, SandboxId};
use agent::pod_spec::spec::{ContainerSpec, ImageSpec, Resources, SandboxSpec};
use api::pod::PodUid;
use async_trait::async_trait;
use compact::Set;

/// See the module.
pub(crate) struct Counted {
    inner: Arc<dyn Cri>,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    count: u64,
    /// The start of the timing, and the timed calls that have ended.
    timed: Option<(Instant, Vec<Timed>)>,
}

/// The start and end of a call, and its name.
type Timed = (Instant, Instant, &'static str);

/// A call, and the preceding time without any call.
pub(crate) struct Step {
    pub(crate) own: Duration,
    pub(crate) call: &'static str,
}

/// A call in progress.
struct Begun<'a> {
    of: &'a Counted,
    name: &'static str,
    /// Its start; `None` if the call does not concern a pod.
    at: Option<Instant>,
}

impl Counted {
    pub(crate) fn new(inner: Arc<dyn Cri>) -> Self {
        Self { inner, calls: Mutex::default() }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of calls.
    pub(crate) fn count(&self) -> u64 {
        self.calls().count
    }

    /// Starts timing calls.
    pub(crate) fn time(&self) {
        self.calls().timed = Some((Instant::now(), Vec::new()));
    }

    /// The calls for pods since [`Self::time`], each with the preceding time without any call; the last step is not a call.
    pub(crate) fn timed(&self) -> Vec<Step> {
        let Some((mut until, mut timed)) = self.calls().timed.take() else {
            return Vec::new();
        };
        timed.sort_unstable();
        let now = Instant::now();
        let mut steps = Vec::new();
        for (begin, end, call) in timed.into_iter().chain([(now, now, "")]) {
            let own = begin.saturating_duration_since(until);
            steps.push(Step { own, call });
            until = until.max(end);
        }
        steps
    }

    fn begin(&self, name: &'static str, is_of_pod: bool) -> Begun<'_> {
        self.calls().count += 1;
        let at = is_of_pod.then(Instant::now);
        Begun { of: self, name, at }
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut calls = self.of.calls();
        if let (Some(at), Some((_, timed))) = (self.at, &mut calls.timed) {
            timed.push((at, Instant::now(), self.name));
        }
    }
}

/// Forwards each call; the condition is whether the call concerns a pod.
macro_rules! forward {
    ($($method:ident($($argument:ident: $type:ty),*) -> $output:ty, if $of_pod:expr;)*) => {
        #[async_trait]
        impl Cri for Counted {
            $(async fn $method(&self, $($argument: $type),*) -> Result<$output, CriError> {
                let _begun = self.begin(stringify!($method), $of_pod);
                self.inner.$method($($argument),*).await
            })*
        }
    };
}

forward! {
    version() -> Version, if false;
    status() -> RuntimeStatus, if false;
    run_sandbox(spec: &SandboxSpec) -> SandboxId, if true;
    stop_sandbox(id: &SandboxId) -> (), if true;
    remove_sandbox(id: &SandboxId) -> (), if true;
    sandbox_status(id: &SandboxId) -> ObservedSandbox, if true;
    list_sandboxes(of: Option<&PodUid>) -> Vec<ListedSandbox>, if of.is_some();
    create_container(sandbox: &SandboxId, spec: &ContainerSpec, of: &SandboxSpec) -> ContainerId, if true;
    start_container(id: &ContainerId) -> (), if true;
    stop_container(id: &ContainerId, grace: Duration) -> (), if true;
    remove_container(id: &ContainerId) -> (), if true;
    container_status(listed: &ListedContainer) -> ObservedContainer, if true;
    list_all(last: &mut LastLists) -> Option<Lists>, if false;
    list_containers(of: Option<&PodUid>) -> Vec<ListedContainer>, if of.is_some();
    update_container(id: &ContainerId, limits: &Resources) -> (), if true;
    update_sandbox(id: &SandboxId, limits: &Resources, overhead: &Resources) -> (), if true;
    memory_usage(id: &SandboxId) -> MemoryUsage, if true;
    image_status(image: &ImageSpec) -> Option<Image>, if true;
    pull_image(image: &ImageSpec, sandbox: &SandboxSpec, auth: Option<&RegistryAuth>) -> String, if true;
    list_images() -> Vec<Image>, if false;
    images_in_use() -> Set<String>, if false;
    remove_image(image: &ImageSpec) -> (), if false;
    image_fs_info() -> Vec<FsUsage>, if false;
    exec_sync(id: &ContainerId, command: &[String], timeout: Option<Duration>) -> ExecOutput, if true;
    exec(id: &ContainerId, command: &[String], streams: StreamOptions) -> String, if true;
    attach(id: &ContainerId, streams: StreamOptions) -> String, if true;
    port_forward(id: &SandboxId, ports: &[u16]) -> String, if true;
    writable_layer(id: &ContainerId) -> u64, if false;
    reopen_log(id: &ContainerId) -> (), if false;
    events() -> EventStream, if false;
}
