//! The context of a rule's body: a client whose calls are recorded, and configurations of the rule's own pods and containers.

use std::collections::HashMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cri::v1;
use cri::v1::{ContainerState, PodSandboxState};
use harness::client::Client;
use harness::cri_log;
use harness::eventually::within;
use harness::fixture;
use harness::pod::Pod;
use proxy::{Recording, Rules};

use crate::cgroup::RunGroup;
use crate::images::TestImages;
use crate::outcome::{Outcome, Verdict, equal, failed};
use crate::restart::Restart;

/// The label of everything that a check creates; its value is the run's name.
pub const RUN_LABEL: &str = "crib.local/check";
/// The label with the id of the rule that created the object.
pub const RULE_LABEL: &str = "crib.local/check-rule";
/// The annotation with the run's directory. The run holds a lock in it while it is alive.
pub(super) const DIRECTORY_ANNOTATION: &str = "crib.local/check-directory";
/// The namespace of a check's pods.
pub(super) const NAMESPACE: &str = "crib-check";
/// The name of the faults that a restart enables.
const RESTARTED: &str = "restarted";

/// State that all rules of a run share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The value of [`RUN_LABEL`].
    pub(super) run: String,
    /// The run's directory.
    pub(super) directory: PathBuf,
    /// A short path of the same directory, for sockets.
    pub(super) sockets: PathBuf,
    /// The cgroup of the run, if the runtime reports its cgroup driver.
    pub(super) cgroup: Option<RunGroup>,
    /// The image of the rules' containers.
    pub(super) image: String,
    /// The images that rules pull and remove.
    pub(super) images: Result<TestImages, String>,
    /// How long a rule waits for a state.
    pub(super) wait_limit: Duration,
    /// How the runtime is restarted.
    pub(super) restart: Option<Restart>,
    /// The rules whose pods are not removed yet.
    pub(super) unfinished: Mutex<HashMap<&'static str, Unfinished>>,
    /// The reason if pods have no namespaces.
    pub(super) no_namespaces: Option<String>,
    /// The reason if containers can run only as one user.
    pub(super) no_users: Option<String>,
    /// The reason if pods cannot have their own user namespaces.
    pub(super) no_user_namespaces: Option<String>,
    /// The reason if limits have no effect.
    pub(super) no_limits: Option<String>,
}

/// A rule whose pods are not removed yet.
#[derive(Debug, Clone)]
pub(super) struct Unfinished {
    /// Its calls.
    pub(super) recording: Recording,
    /// The faults of its proxy.
    pub(super) faults: Rules,
}

/// What a rule currently waits for.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting(Arc<Mutex<Option<String>>>);

impl Waiting {
    /// Sets what the rule waits for.
    fn set(&self, what: Option<&str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what.map(str::to_owned);
    }

    /// Returns what the rule waits for.
    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The context of a rule's body.
#[derive(Debug, Clone)]
pub struct Context {
    /// A client of the endpoint. Its calls are recorded.
    pub client: Client,
    pub(super) rule: &'static str,
    /// The faults of the proxies between the client and the runtime.
    pub(super) faults: Vec<Rules>,
    pub(super) waiting: Waiting,
    pub(super) shared: Arc<Shared>,
}

impl Shared {
    /// The rules whose pods are not removed yet, by their ids.
    pub(super) fn unfinished(&self) -> MutexGuard<'_, HashMap<&'static str, Unfinished>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// A unique name.
    #[must_use]
    pub fn unique(&self, word: &str) -> String {
        fixture::unique(&format!("{}-{word}", self.rule.to_lowercase()))
    }

    /// The configuration of a pod of this rule.
    #[must_use]
    pub fn sandbox(&self) -> v1::PodSandboxConfig {
        let name = self.unique("pod");
        let mut config = fixture::sandbox(&name);
        if let Some(metadata) = &mut config.metadata {
            NAMESPACE.clone_into(&mut metadata.namespace);
        }
        config.hostname = "checked".to_owned();
        let directory = self.shared.directory.join("logs").join(&name);
        config.log_directory = directory.display().to_string();
        let group = self.shared.cgroup.as_ref();
        let parent = group.map(|group| group.of_pod(&name));
        config.linux.get_or_insert_default().cgroup_parent = parent.unwrap_or_default();
        mark(&mut config, &self.shared.run, &self.shared.directory);
        config.labels.extend(self.labels());
        config
    }

    fn labels(&self) -> [(String, String); 2] {
        [
            (RUN_LABEL.to_owned(), self.shared.run.clone()),
            (RULE_LABEL.to_owned(), self.rule.to_owned()),
        ]
    }

    /// Runs a pod with the default configuration.
    pub async fn pod(&self) -> Verdict<Pod> {
        self.pod_of(self.sandbox()).await
    }

    /// Runs a pod with this configuration.
    pub async fn pod_of(&self, config: v1::PodSandboxConfig) -> Verdict<Pod> {
        std::fs::create_dir_all(&config.log_directory)
            .map_err(|error| Outcome::Skipped(format!("no log directory: {error}")))?;
        Ok(Pod::run(&self.client, config).await?)
    }

    /// The configuration of a container that runs a shell script.
    #[must_use]
    pub fn script(&self, name: &str, text: &str) -> v1::ContainerConfig {
        self.container(fixture::script(name, text))
    }

    /// The configuration of a container that runs until it is stopped and exits with 143 on SIGTERM.
    #[must_use]
    pub fn forever(&self, name: &str) -> v1::ContainerConfig {
        self.script(
            name,
            "trap 'exit 143' TERM; echo ready; while :; do sleep 1000 & wait $!; done",
        )
    }

    fn container(&self, mut config: v1::ContainerConfig) -> v1::ContainerConfig {
        config.image.get_or_insert_default().image.clone_from(&self.shared.image);
        config.labels.extend(self.labels());
        config
    }

    /// Starts a container of [`Self::forever`] and waits until it handles SIGTERM.
    pub async fn running(&self, pod: &Pod) -> Verdict<String> {
        self.start_ready(pod, self.forever("c")).await
    }

    /// Starts the container `c` and waits until it logs `ready`.
    pub async fn start_ready(&self, pod: &Pod, config: v1::ContainerConfig) -> Verdict<String> {
        let id = pod.start(config).await?;
        self.logged(pod, "ready").await?;
        Ok(id)
    }

    /// Waits until a container exits.
    pub async fn exited(&self, id: &str) -> Verdict<v1::ContainerStatus> {
        self.until(&format!("container {id} to be CONTAINER_EXITED"), async || {
            match self.client.container(id).await {
                Ok(status) if status.state() != ContainerState::ContainerExited => Err(status),
                result => Ok(result),
            }
        })
        .await?
        .map_err(Outcome::from)
    }

    /// Runs a container to its end in a new pod, and returns its standard output.
    pub async fn output(&self, config: v1::ContainerConfig) -> Verdict<String> {
        let pod = self.pod().await?;
        self.output_in(&pod, config).await
    }

    /// Runs a container to its end, and returns its standard output.
    pub async fn output_in(&self, pod: &Pod, config: v1::ContainerConfig) -> Verdict<String> {
        let id = pod.start(config).await?;
        let status = self.exited(&id).await?;
        let text = |stream| {
            let lines = self.lines(pod).into_iter().filter(|line| line.stream == stream);
            lines.map(|line| line.text + "\n").collect::<String>()
        };
        match status.exit_code {
            0 => Ok(text(cri_log::Stream::Stdout)),
            code => failed(
                "the exit of the container",
                "exit code 0",
                format!(
                    "exit code {code} ({} {}) after {:?}",
                    status.reason,
                    status.message,
                    text(cri_log::Stream::Stderr)
                ),
            ),
        }
    }

    /// Fails unless a container in a new pod writes `expected` to standard output.
    pub async fn prints(&self, config: v1::ContainerConfig, what: &str, expected: &str) -> Verdict {
        equal(what, self.output(config).await?.as_str(), expected)
    }

    /// Fails unless a container writes `expected` to standard output.
    pub async fn prints_in(
        &self,
        pod: &Pod,
        config: v1::ContainerConfig,
        what: &str,
        expected: &str,
    ) -> Verdict {
        equal(what, self.output_in(pod, config).await?.as_str(), expected)
    }

    /// The lines in the log of a pod's container `c`, read from the configured path.
    #[must_use]
    pub fn lines(&self, pod: &Pod) -> Vec<cri_log::Line> {
        cri_log::lines(&std::fs::read(self.log_path(pod)).unwrap_or_default())
    }

    /// The log file of a pod's container `c`.
    #[must_use]
    pub fn log_path(&self, pod: &Pod) -> PathBuf {
        pod.log_directory().join("c.log")
    }

    /// Waits until a pod's container `c` logs a line.
    pub async fn logged(&self, pod: &Pod, line: &str) -> Verdict {
        self.until(&format!("the line {line:?} in the log"), async || {
            let lines = self.lines(pod);
            match lines.iter().any(|have| have.text == line) {
                true => Ok(()),
                false => Err(lines),
            }
        })
        .await
    }

    /// Waits until `look` returns `Ok`.
    pub async fn until<T, S, F>(&self, what: &str, look: impl FnMut() -> F) -> Verdict<T>
    where
        S: Debug,
        F: Future<Output = Result<T, S>>,
    {
        self.waiting.set(Some(what));
        let waited = within(self.shared.wait_limit, what, look).await;
        self.waiting.set(None);
        Ok(waited?)
    }

    /// The sandbox in an unfiltered list.
    pub async fn listed_pod(&self, id: &str) -> Verdict<Option<v1::PodSandbox>> {
        let all = self.client.pods(v1::PodSandboxFilter::default()).await?;
        Ok(all.into_iter().find(|pod| pod.id == id))
    }

    /// The container in an unfiltered list.
    pub async fn listed_container(&self, id: &str) -> Verdict<Option<v1::Container>> {
        let all = self.client.containers(v1::ContainerFilter::default()).await?;
        Ok(all.into_iter().find(|container| container.id == id))
    }

    /// The status of a pod.
    pub async fn pod_status(&self, id: &str) -> Verdict<v1::PodSandboxStatus> {
        match self.client.pod(id).await?.status {
            Some(status) => Ok(status),
            None => failed("PodSandboxStatus", "a status", "an answer without one"),
        }
    }

    /// Fails unless ListPodSandbox and PodSandboxStatus report this state.
    pub async fn pod_is(&self, id: &str, state: PodSandboxState) -> Verdict {
        let (expected, absent) = (state.as_str_name(), "no sandbox of this id");
        let seen = self.pod_status(id).await?.state().as_str_name();
        same_state("the state in PodSandboxStatus", seen, expected)?;
        let listed = self.listed_pod(id).await?;
        let seen = listed.map_or(absent, |pod| pod.state().as_str_name());
        same_state("the state in ListPodSandbox", seen, expected)
    }

    /// Fails unless ListContainers and ContainerStatus report this state.
    pub async fn container_is(&self, id: &str, state: ContainerState) -> Verdict {
        let (expected, absent) = (state.as_str_name(), "no container of this id");
        let seen = self.client.container(id).await?.state().as_str_name();
        same_state("the state in ContainerStatus", seen, expected)?;
        let listed = self.listed_container(id).await?;
        let seen = listed.map_or(absent, |one| one.state().as_str_name());
        same_state("the state in ListContainers", seen, expected)
    }

    /// The images that a rule may pull and remove.
    pub(super) fn images(&self) -> Verdict<&TestImages> {
        let why = |why: &String| Outcome::Skipped(why.clone());
        self.shared.images.as_ref().map_err(why)
    }

    /// Skips the rule if the check cannot restart the runtime.
    pub(super) fn needs_restart(&self) -> Verdict<&Restart> {
        let unknown = || {
            Outcome::Skipped("--restart-command does not say how to restart the runtime".to_owned())
        };
        self.shared.restart.as_ref().ok_or_else(unknown)
    }

    /// Restarts the runtime, and waits until it responds.
    pub(super) async fn restart(&self) -> Verdict {
        if let Err(why) = self.needs_restart()?.run().await {
            return failed("the restart of the runtime", "success", why);
        }
        for rules in &self.faults {
            // An error means that the check has no such fault, as usual.
            let _ = rules.switch(RESTARTED, true);
        }
        let answers = async || self.client.version().await.map(drop);
        self.until("Version to be answered after the restart", answers).await
    }

    /// Skips the rule if pods have no namespaces.
    pub(super) fn needs_namespaces(&self) -> Verdict {
        skip_for(self.shared.no_namespaces.as_ref())
    }

    /// Skips the rule if containers can run only as one user.
    pub(super) fn needs_users(&self) -> Verdict {
        skip_for(self.shared.no_users.as_ref())
    }

    /// Skips the rule if pods cannot have their own user namespaces.
    pub(super) fn needs_user_namespaces(&self) -> Verdict {
        skip_for(self.shared.no_user_namespaces.as_ref())
    }

    /// Skips the rule if limits have no effect.
    pub(super) fn needs_limits(&self) -> Verdict {
        skip_for(self.shared.no_limits.as_ref())
    }
}

/// Marks a pod as part of a run, so that this run or a later one finds and removes it.
pub fn mark(config: &mut v1::PodSandboxConfig, run: &str, directory: &Path) {
    config.labels.insert(RUN_LABEL.to_owned(), run.to_owned());
    let directory = directory.display().to_string();
    config.annotations.insert(DIRECTORY_ANNOTATION.to_owned(), directory);
}

/// Compares states by their names in the protocol.
fn same_state(what: &str, seen: &str, expected: &str) -> Verdict {
    match seen == expected {
        true => Ok(()),
        false => failed(what, expected, seen),
    }
}

fn skip_for(reason: Option<&String>) -> Verdict {
    reason.map_or(Ok(()), |why| Err(Outcome::Skipped(why.clone())))
}
