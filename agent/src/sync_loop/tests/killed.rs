//! The agent is killed at each of its calls, and the next one takes over the runtime's pods.
//!
//! Each scenario is played once without a kill, and then with a kill before, during and after each call that changes state, and
//! before each other call. At the end the state is the same as without a kill.

mod scenarios;

use super::*;
use crate::cri::fake::killed::{KillPoint, KilledAt, KilledCri, Moment};

/// The time between a kill and the next agent, in seconds.
const DOWN: u64 = 3;
/// The time before the comparison in which calls are not counted, so that running actions complete.
const SETTLING: u64 = 25;
/// The time after the comparison in which the agent may be killed while it removes the pod.
const REMOVING: u64 = 15;
/// The time after that in which everything is removed: the agent collects garbage once a minute.
const COLLECTING: u64 = 75;

/// The changes of the source and the runtime.
struct Scenario {
    images: fn(&FakeCri),
    /// The pod of the source from each second on.
    steps: Vec<(u64, Pod)>,
    /// The second at which all changes are done. Later the pods are removed from the source.
    done: u64,
    /// An ephemeral container: like a kubelet, the next agent never starts one that was created and not started.
    ephemeral: Option<&'static str>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self { images: |_| {}, steps: Vec::new(), done: 0, ephemeral: None }
    }
}

/// The state that a kill must not change.
#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    /// The pod's phase and its containers: state, reason, readiness, exit code.
    reports: Vec<String>,
    /// The containers of the runtime with their states, and how many sandboxes are ready and not ready.
    contents: (Vec<(String, String)>, (usize, usize)),
    /// The number of starts of each container.
    starts: Map<String, usize>,
    /// The number of created sandboxes.
    sandboxes: usize,
}

impl Outcome {
    /// The same outcome without a container.
    fn without(&self, name: Option<&str>) -> Self {
        let mut rest = self.clone();
        if let Some(name) = name {
            let of_container = format!("{name}: ");
            rest.reports.retain(|text| !text.starts_with(&of_container));
            rest.contents.0.retain(|(other, _)| other != name);
            rest.starts.remove(name);
        }
        rest
    }
}

/// A scenario being played.
struct Play {
    scene: Scene,
    /// The first agent's client; `None` once it is killed.
    first: Option<KilledCri>,
    killed: Option<KilledAt>,
    /// When the next agent starts.
    restart_at: Option<u64>,
    desired: Vec<Pod>,
    /// The restarts that the first agent last reported.
    restarts: Map<String, u32>,
}

impl Play {
    fn new(scenario: &Scenario, point: KillPoint) -> Self {
        let mut scene = Scene::without_agent(seconds(10));
        scene.fake.write_logs();
        (scenario.images)(&scene.fake);
        let first = KilledCri::new(scene.fake.clone(), point);
        scene.start_agent_on(Arc::new(first.clone()));
        Self {
            scene,
            first: Some(first),
            killed: None,
            restart_at: None,
            desired: Vec::new(),
            restarts: Map::new(),
        }
    }

    fn want(&mut self, pods: &[Pod]) {
        self.desired = pods.to_vec();
        if self.restart_at.is_none() {
            self.scene.want(pods);
        }
    }

    /// Lets time pass up to a second. If the agent is killed meanwhile, the next one starts.
    async fn until(&mut self, second: u64) {
        loop {
            let wake = self.restart_at.map_or(second, |at| at.min(second));
            let left = wake - self.scene.second(self.scene.clock.now());
            let first = self.first.clone();
            let killed = async {
                match &first {
                    Some(first) => first.killed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                at = killed => self.end_killed_agent(at).await,
                () = tokio::time::sleep(seconds(left)) => {
                    if self.restart_at == Some(wake) {
                        self.restart_at = None;
                        self.scene.start_agent();
                        self.scene.want(&self.desired);
                    }
                    if wake == second {
                        return;
                    }
                }
            }
        }
    }

    /// Ends every task of the killed agent.
    async fn end_killed_agent(&mut self, at: KilledAt) {
        self.first = None;
        self.killed = Some(at);
        self.restarts = self.reported_restarts();
        self.restart_at = Some(self.scene.second(self.scene.clock.now()) + DOWN);
        self.scene.stop_agent().await;
    }

    /// Pauses or resumes the counting of the first agent's calls.
    fn pause(&self, paused: bool) {
        if let Some(first) = &self.first {
            first.pause(paused);
        }
    }

    fn containers(&self) -> Vec<crate::ContainerReport> {
        let reports = self.scene.agent().reports();
        let reports = reports.borrow();
        let desired = self.desired.iter().filter_map(|pod| reports.get(pod.uid()));
        desired.flat_map(|report| report.containers.clone()).collect()
    }

    fn reported_restarts(&self) -> Map<String, u32> {
        let containers = self.containers().into_iter();
        containers.map(|seen| (seen.name, seen.restarts)).collect()
    }

    fn outcome(&self) -> Outcome {
        let reports = self.scene.agent().reports();
        let reports = reports.borrow();
        let of_pod = |pod: &Pod| match reports.get(pod.uid()) {
            Some(report) => format!("{} finished={}", phase(report), report.finished),
            None => "no report".to_owned(),
        };
        let of_container = |seen: crate::ContainerReport| {
            let (name, state, reason) = (seen.name, seen.state, seen.reason);
            // Exits of removed containers are known only to the agent that observed them, and to an API server.
            let ended = state == ContainerPhase::Terminated;
            let (ready, code) = (seen.ready, seen.exit_code.filter(|_| ended));
            format!("{name}: {state:?} {reason} ready={ready} exit={code:?}")
        };
        let pods = self.desired.iter().map(of_pod);
        Outcome {
            reports: pods.chain(self.containers().into_iter().map(of_container)).collect(),
            contents: self.scene.fake.contents(),
            starts: self.made("StartContainer "),
            sandboxes: self.made("RunPodSandbox ").into_values().sum(),
        }
    }

    /// The number of calls with this name, by the name of their object.
    fn made(&self, call: &str) -> Map<String, usize> {
        let mut made = Map::new();
        for text in self.scene.calls() {
            if let Some(about) = text.strip_prefix(call) {
                let name = about.split_once('/').map_or(about, |(name, _)| name);
                *made.entry(name.to_owned()).or_default() += 1;
            }
        }
        made
    }

    /// Asserts that the runtime and the disk have nothing of the pod.
    fn assert_removed(&self) {
        let fake = &self.scene.fake;
        assert_eq!(fake.object_counts(), (0, 0), "sandboxes and containers");
        assert!(!self.scene.pod_dir("u1").exists());
    }

    /// Asserts that a container's restart count continues after a kill: one for each earlier attempt, started or not, as in a
    /// kubelet.
    fn check_restarts(&self) {
        let created = self.made("CreateContainer ");
        for (name, restarts) in self.reported_restarts() {
            let attempts = created.get(&name).copied().unwrap_or_default();
            assert_eq!(restarts as usize + 1, attempts.max(1), "restarts of {name}");
            let before = self.restarts.get(&name).copied().unwrap_or_default();
            assert!(restarts >= before, "{name}: {before} restarts, then {restarts}");
        }
    }
}

/// Plays a scenario to its end. Returns the call at which the agent was killed.
async fn play(scenario: &Scenario, point: KillPoint) -> (Play, Outcome) {
    let mut play = Play::new(scenario, point);
    for (second, pod) in &scenario.steps {
        play.until(*second).await;
        play.want(std::slice::from_ref(pod));
    }
    play.until(scenario.done).await;
    play.pause(true);
    play.until(scenario.done + SETTLING).await;
    let outcome = play.outcome();
    play.check_restarts();
    play.pause(false);
    play.want(&[]);
    play.until(scenario.done + SETTLING + REMOVING).await;
    play.pause(true);
    play.until(scenario.done + SETTLING + REMOVING + COLLECTING).await;
    play.assert_removed();
    assert_eq!(play.scene.fake.duplicate_attempts(), Vec::<String>::new());
    (play, outcome)
}

impl Scenario {
    /// Asserts that a kill at any call changes nothing in the end. `check` gets the calls of each play.
    async fn assert_survived(&self, check: impl Fn(&[String])) {
        let never = KillPoint { call: u64::MAX, moment: Moment::Before };
        let (undisturbed, expected) = play(self, never).await;
        check(&undisturbed.scene.calls());
        let mut kills = 0;
        for call in 1.. {
            for moment in [Moment::Before, Moment::During, Moment::After] {
                let point = KillPoint { call, moment };
                let _shown = Shown(format!("{point:?}"));
                let (play, outcome) = play(self, point).await;
                let Some(killed) = play.killed else {
                    assert!(kills > 20, "killed {kills} times only");
                    return;
                };
                kills += 1;
                let calls = play.scene.calls();
                let lost = self.ephemeral.filter(|name| !outcome.starts.contains_key(*name));
                assert_eq!(
                    outcome.without(lost),
                    expected.without(lost),
                    "killed at {killed:?}, {point:?}; calls: {calls:#?}"
                );
                check(&calls);
                if !killed.changes {
                    break;
                }
            }
        }
    }
}

/// Prints the position of a play that panics.
struct Shown(String);

impl Drop for Shown {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed at {}", self.0);
        }
    }
}
