//! ◆ Applies a behaviour script to a container: decides whether a process simulates its behaviour instead of running the command,
//! and what the runtime does. Pure.
//!
//! The script comes from an annotation of the container, an annotation of its pod, or its image; the first one found is used.

use std::{collections::HashMap, time::Duration};

use cri::v1::{ContainerConfig, PodSandboxConfig};
use image::{Script, Step};
use keeper::contract::plan::{Act, ActPlan, ChildrenPlan, ExitPlan, LinesPlan, MemoryPlan, OnTerm};

use super::ImageDefaults;
use super::{Invalid, invalid};

/// The annotation with a script: of a container, or of a pod for all of its containers. A pod's annotation with `.NAME` appended
/// is for its container of that name, because a kubelet passes annotations to pods only.
const ANNOTATION: &str = "crib.local/behave";

/// The script of a container.
#[derive(Debug)]
pub(crate) struct Behaviour(Script);

/// Why a container cannot run out of memory.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoOom {
    /// The client set no limit.
    #[error(
        "allocate-until-oom needs a limit, or the whole machine runs out of memory: set memory_limit_in_bytes (resources.limits.memory)"
    )]
    Unlimited,
    /// The limit has no effect here.
    #[error(
        "allocate-until-oom needs a limit of memory, which has no effect here ({0}): use allocate-SIZE"
    )]
    NotApplied(String),
}

/// The script of a container in `sandbox` from an image, if there is one.
pub(crate) fn behaviour(
    config: &ContainerConfig,
    sandbox: &PodSandboxConfig,
    image: &ImageDefaults,
) -> Result<Option<Behaviour>, Invalid> {
    let name = config.metadata.as_ref().map_or("", |m| &m.name);
    let own = format!("{ANNOTATION}.{name}");
    let places = [
        (&config.annotations, ANNOTATION),
        (&sandbox.annotations, &own),
        (&sandbox.annotations, ANNOTATION),
    ];
    for (annotations, key) in places {
        if let Some(script) = annotated(annotations, key)? {
            return Ok(Some(Behaviour(script)));
        }
    }
    let Some(script) = &image.script else {
        return Ok(None);
    };
    let has_command = !config.command.is_empty() || !config.args.is_empty();
    if has_command && let Some(step) = script.steps().find(|step| step.is_of_process()) {
        return invalid(format!(
            "command and args would not run, because the image acts out {step}: leave them out, or name the image of the \
             command and put the script into the annotation {ANNOTATION}"
        ));
    }
    Ok(Some(Behaviour(script.clone())))
}

fn annotated(annotations: &HashMap<String, String>, key: &str) -> Result<Option<Script>, Invalid> {
    let Some(text) = annotations.get(key) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(script) => Ok(Some(script)),
        Err(error) => invalid(format!("annotation {key}: {error}")),
    }
}

impl Behaviour {
    /// The simulated behaviour of the container's first process; `None` if it runs its command. Without a command, the behaviour
    /// is always simulated.
    pub(super) fn act(&self, no_command: bool) -> Option<Act> {
        if self.0.has(Step::StartFails) {
            return Some(Act::Fail("the container's behaviour script says start-fails".to_owned()));
        }
        if !no_command && !self.0.steps().any(Step::is_of_process) {
            return None;
        }
        let mut plan = ActPlan::default();
        for step in self.0.steps() {
            match step {
                Step::Exit { code, after } => plan.exit = Some(ExitPlan { code, after }),
                Step::ExitOnTerm { code, after } => {
                    plan.term = OnTerm::Exit(ExitPlan { code, after });
                }
                Step::IgnoreTerm => plan.term = OnTerm::Ignore,
                Step::Log { per_second, stderr } => {
                    plan.log = Some(LinesPlan { per_second, stderr });
                }
                Step::Allocate { bytes, after } => plan.memory = Some(MemoryPlan { bytes, after }),
                Step::Fork { count, after } => plan.children = Some(ChildrenPlan { count, after }),
                Step::Run
                | Step::CreateTakes(_)
                | Step::CreateFails
                | Step::StartTakes(_)
                | Step::StartFails
                | Step::ExecHangs => {}
            }
        }
        Some(Act::Play(Box::new(plan)))
    }

    /// The simulated behaviour of an exec's process; `None` if it runs its command.
    pub(crate) fn act_of_exec(&self) -> Option<Act> {
        self.0
            .has(Step::ExecHangs)
            .then(|| Act::Play(Box::new(ActPlan { term: OnTerm::Ignore, ..ActPlan::default() })))
    }

    /// The additional duration of CreateContainer.
    pub(crate) fn create_takes(&self) -> Duration {
        let mut steps = self.0.steps();
        let time = steps
            .find_map(|step| if let Step::CreateTakes(time) = step { Some(time) } else { None });
        time.unwrap_or_default()
    }

    /// Whether CreateContainer fails.
    pub(crate) fn create_fails(&self) -> bool {
        self.0.has(Step::CreateFails)
    }

    /// The additional duration of StartContainer.
    pub(crate) fn start_takes(&self) -> Duration {
        let mut steps = self.0.steps();
        let time = steps
            .find_map(|step| if let Step::StartTakes(time) = step { Some(time) } else { None });
        time.unwrap_or_default()
    }

    /// Checks that a container whose script allocates until it is OOM-killed has a memory limit that takes effect. `not_applied`
    /// are the limits without effect here.
    pub(crate) fn check_memory(&self, limit: i64, not_applied: &[String]) -> Result<(), NoOom> {
        let until_oom = |step| matches!(step, Step::Allocate { bytes: None, .. });
        if !self.0.steps().any(until_oom) {
            return Ok(());
        }
        if limit <= 0 {
            return Err(NoOom::Unlimited);
        }
        let missing = |reason: &&String| reason.starts_with("memory_limit_in_bytes");
        match not_applied.iter().find(missing) {
            Some(reason) => Err(NoOom::NotApplied(reason.clone())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cri::v1::{ContainerMetadata, PodSandboxMetadata};
    use rstest::rstest;

    use super::*;

    /// The script of the container `a` with these annotations of its own and of its pod, and this script of its image.
    fn found(
        own: &[(&str, &str)],
        pod: &[(&str, &str)],
        image: Option<&str>,
        command: &[&str],
    ) -> Result<Option<Behaviour>, Invalid> {
        let map = |pairs: &[(&str, &str)]| {
            let owned = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            owned.collect::<HashMap<_, _>>()
        };
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: "a".into(), attempt: 0 }),
            annotations: map(own),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            ..Default::default()
        };
        let sandbox = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata::default()),
            annotations: map(pod),
            ..Default::default()
        };
        let image = ImageDefaults {
            script: image.map(|script| script.parse().unwrap()),
            ..ImageDefaults::default()
        };
        behaviour(&config, &sandbox, &image)
    }

    const ALL: &str = "crib.local/behave";
    const OF_A: &str = "crib.local/behave.a";
    const OF_B: &str = "crib.local/behave.b";

    #[rstest]
    #[case::none(&[], &[], None, "")]
    #[case::image(&[], &[], Some("exit-1"), "exit-1")]
    #[case::pod(&[], &[(ALL, "exit-2")], Some("exit-1"), "exit-2")]
    #[case::container_of_pod(&[], &[(ALL, "exit-2"), (OF_A, "exit-3")], Some("exit-1"), "exit-3")]
    #[case::other_container(&[], &[(OF_B, "exit-3")], Some("exit-1"), "exit-1")]
    #[case::container(&[(ALL, "exit-4")], &[(ALL, "exit-2"), (OF_A, "exit-3")], None, "exit-4")]
    #[case::wrong(
        &[],
        &[(OF_A, "exit-999")],
        None,
        "annotation crib.local/behave.a: step \"exit-999\": \"999\" is not an exit code: 0 to 255"
    )]
    fn most_specific_script_applies(
        #[case] own: &[(&str, &str)],
        #[case] pod: &[(&str, &str)],
        #[case] image: Option<&str>,
        #[case] want: &str,
    ) {
        let said = match found(own, pod, image, &[]) {
            Ok(found) => found.map_or_else(String::new, |b| b.0.to_string()),
            Err(Invalid(error)) => error,
        };
        assert_eq!(said, want);
    }

    #[rstest]
    #[case::image_that_acts(None, Some("exec-hangs/exit-1"), false)]
    #[case::image_of_the_runtime(None, Some("exec-hangs"), true)]
    #[case::annotation(Some("exit-1"), None, true)]
    fn image_that_acts_refuses_a_command(
        #[case] annotation: Option<&str>,
        #[case] image: Option<&str>,
        #[case] fits: bool,
    ) {
        let pod: Vec<(&str, &str)> = annotation.iter().map(|script| (ALL, *script)).collect();
        assert_eq!(found(&[], &pod, image, &["sleep"]).is_ok(), fits);
    }

    fn of(script: &str) -> Behaviour {
        Behaviour(script.parse().unwrap())
    }

    fn exit(code: u8, seconds: u64) -> ExitPlan {
        ExitPlan { code, after: Duration::from_secs(seconds) }
    }

    #[rstest]
    #[case("run", ActPlan::default())]
    #[case("exec-hangs", ActPlan::default())]
    #[case("exit-3-after-1s", ActPlan { exit: Some(exit(3, 1)), ..ActPlan::default() })]
    #[case("ignore-term", ActPlan { term: OnTerm::Ignore, ..ActPlan::default() })]
    #[case("exit-3-on-term-after-1s", ActPlan { term: OnTerm::Exit(exit(3, 1)), ..ActPlan::default() })]
    #[case(
        "log-7-a-second-to-stderr",
        ActPlan { log: Some(LinesPlan { per_second: 7, stderr: true }), ..ActPlan::default() }
    )]
    #[case(
        "allocate-1ki",
        ActPlan { memory: Some(MemoryPlan { bytes: Some(1024), after: Duration::ZERO }), ..ActPlan::default() }
    )]
    #[case(
        "fork-2-after-1s",
        ActPlan { children: Some(ChildrenPlan { count: 2, after: Duration::from_secs(1) }), ..ActPlan::default() }
    )]
    fn process_without_command_acts(#[case] script: &str, #[case] want: ActPlan) {
        assert_eq!(of(script).act(true), Some(Act::Play(Box::new(want))));
    }

    #[rstest]
    #[case("exec-hangs", false)]
    #[case("create-takes-1s/start-takes-1s", false)]
    #[case("run", true)]
    #[case("exec-hangs/log-1-a-second", true)]
    #[case("start-fails", true)]
    fn command_runs_unless_the_script_has_steps_of_the_process(
        #[case] script: &str,
        #[case] acts: bool,
    ) {
        assert_eq!(of(script).act(false).is_some(), acts);
    }

    #[rstest]
    #[case("run/start-takes-2s", 0, 2, false, false)]
    #[case("create-takes-1s", 1, 0, false, false)]
    #[case("create-fails/exec-hangs", 0, 0, true, true)]
    fn steps_of_the_runtime_are_found(
        #[case] script: &str,
        #[case] create: u64,
        #[case] start: u64,
        #[case] fails: bool,
        #[case] hangs: bool,
    ) {
        let behaviour = of(script);
        assert_eq!(behaviour.create_takes(), Duration::from_secs(create));
        assert_eq!(behaviour.start_takes(), Duration::from_secs(start));
        assert_eq!(behaviour.create_fails(), fails);
        assert_eq!(behaviour.act_of_exec().is_some(), hangs);
    }

    #[rstest]
    #[case::limited("allocate-until-oom", 64, &[], Ok(()))]
    #[case::other_limit("allocate-until-oom", 64, &["cpu_quota: none"], Ok(()))]
    #[case::unlimited("allocate-until-oom", 0, &[], Err(NoOom::Unlimited))]
    #[case::without_limit("allocate-until-oom", -1, &[], Err(NoOom::Unlimited))]
    #[case::without_cgroup(
        "allocate-until-oom",
        64,
        &["memory_limit_in_bytes: no cgroup can be made"],
        Err(NoOom::NotApplied("memory_limit_in_bytes: no cgroup can be made".into()))
    )]
    #[case::so_much("allocate-1gi", 0, &["memory_limit_in_bytes: no cgroup can be made"], Ok(()))]
    fn container_runs_out_of_memory_only_with_a_limit(
        #[case] script: &str,
        #[case] limit: i64,
        #[case] not_applied: &[&str],
        #[case] want: Result<(), NoOom>,
    ) {
        let not_applied: Vec<String> = not_applied.iter().map(|n| (*n).to_owned()).collect();
        assert_eq!(of(script).check_memory(limit, &not_applied), want);
    }
}
