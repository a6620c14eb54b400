//! The rules of `crib check`: crib's runtime satisfies them all, and each rule fails for the faults that it names.

use std::fmt::Write as _;
use std::sync::Arc;

use check::{CutShort, Options, Outcome, RUN_LABEL, Restart, Rule, RuleResult};
use cri::v1::PodSandboxFilter;
use proxy::Fault;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::*;

/// Whether a rule was skipped because the machine cannot run it.
fn skipped(result: &RuleResult) -> bool {
    matches!(result.outcome, Err(Outcome::Skipped(_)))
}

async fn results(options: Options) -> Vec<RuleResult> {
    let report = check::check(options, CancellationToken::new(), |_| {}).await.unwrap();
    assert_eq!(report.left, Vec::<String>::new());
    report.results
}

/// A runtime handler in addition to the default one, for the rules about handlers.
const HANDLERS: &str = "handlers:
  confined: {}
";

/// crib's stream server listens on 127.0.0.1, so its URLs work only on this machine, which the rule reports.
const OF_THIS_MACHINE: &str = "CRI-STR-027";

#[tokio::test(flavor = "multi_thread")]
async fn runtime_keeps_every_rule() {
    let runtime = Runtime::with().config(HANDLERS).start().await.unwrap();
    let isolation = runtime.isolation().await.unwrap();
    let results = results(Options::new(&runtime.socket())).await;
    assert_eq!(results.len(), check::all().len());
    let mut broken = String::new();
    for result in &results {
        if result.rule.id == OF_THIS_MACHINE {
            assert_eq!(check::report::word(result), "diverges", "{result:?}");
        } else if result.outcome.is_err() && !skipped(result) {
            broken += &check::report::failure("crib check", result);
            // Writing to a string does not fail.
            let _ = writeln!(broken, "{:?}", result.outcome);
        }
        if result.outcome.is_ok() {
            let made = |call: &&&str| result.calls.iter().any(|one| one.method == **call);
            let unused: Vec<_> = result.rule.calls.iter().filter(|call| !made(call)).collect();
            assert!(unused.is_empty(), "{} does not call {unused:?}", result.rule.id);
        }
    }
    assert!(broken.is_empty(), "{broken}");
    if isolation == "root" {
        // Limits need cgroups, checkpoints need criu. Another test covers restarts.
        let of_box = |tag: &&str| ["resources", "checkpoint", "runtime-restart"].contains(tag);
        let skipped: Vec<_> = results
            .iter()
            .filter(|one| !one.rule.tags.iter().any(of_box))
            .filter(|one| skipped(one))
            .collect();
        assert!(skipped.is_empty(), "{skipped:?}");
    }
}

/// The result of the only rule of a check.
async fn ended(options: Options) -> RuleResult {
    let report = check::check(options, CancellationToken::new(), |_| {}).await;
    report.unwrap().results.pop().unwrap()
}

/// A fault that a rule must detect but did not, with the rule's result.
async fn uncaught(mut options: Options, rule: &'static Rule, text: &'static str) -> Option<String> {
    options.rules = vec![rule];
    options.faults = vec![text.parse::<Fault>().unwrap()];
    // Detect hanging calls and states that are never reached soon.
    options.wait_limit = Duration::from_secs(5);
    options.deadline = Duration::from_secs(20);
    let mut faultless = options.clone();
    faultless.faults.clear();
    let result = ended(options).await;
    let caught = match &result.outcome {
        Err(Outcome::Fail { .. }) => true,
        // If the machine cannot run the rule, nothing can be proved. Otherwise the fault must not make the rule skipped.
        Err(Outcome::Skipped(_)) => skipped(&ended(faultless).await),
        Ok(()) | Err(_) => false,
    };
    (!caught).then(|| format!("{} ends with {:?} despite: {text}", rule.id, result.outcome))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_fails_on_each_of_its_faults() {
    let runtime = Runtime::with().config(HANDLERS).start().await.unwrap();
    let slots = Arc::new(Semaphore::new(12));
    let mut faulty = JoinSet::new();
    // The author of a rule sets this variable: the faults of all rules take minutes.
    let chosen = std::env::var("CRIB_CHECK_RULES").unwrap_or_default();
    let chosen: Vec<String> = chosen.split_terminator(',').map(str::to_owned).collect();
    let rules = check::choose(&check::all(), &chosen, &[]).unwrap();
    for rule in rules.into_iter().filter(|rule| !rule.restarts()) {
        for text in rule.faults {
            let (slots, options) = (Arc::clone(&slots), Options::new(&runtime.socket()));
            faulty.spawn(async move {
                let _slot = slots.acquire().await.unwrap();
                uncaught(options, rule, text).await
            });
        }
    }
    let mut uncaught: Vec<String> = faulty.join_all().await.into_iter().flatten().collect();
    uncaught.sort();
    assert!(uncaught.is_empty(), "{uncaught:#?}");
}

/// The results of image rules if each pull through a proxy gets this response.
async fn results_of_pulls_answered_with(answer: &str) -> Vec<RuleResult> {
    let runtime = Runtime::with().start().await.unwrap();
    let fault = format!("PullImage answer UNKNOWN {answer:?}");
    let socket = runtime.root().join("p");
    let faults = vec![fault.parse::<Fault>().unwrap()];
    let _proxy = proxy::Proxy::with_faults(&socket, &runtime.socket(), faults).unwrap();
    let mut options = Options::new(&socket);
    let chosen = ["CRI-IMG-001".to_owned(), "CRI-PUL-001".to_owned()];
    options.rules = check::choose(&check::all(), &chosen, &[]).unwrap();
    results(options).await
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_registry_skips_rules_of_images() {
    let message = "failed to do request: dial tcp 127.0.0.1:1: connect: connection refused";
    for result in results_of_pulls_answered_with(message).await {
        let Err(Outcome::Skipped(why)) = &result.outcome else {
            panic!("{result:?}");
        };
        assert!(
            why.starts_with(
                "the runtime does not reach the registry of the check at http://127.0.0.1:"
            ) && why.ends_with(message),
            "{why}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_pulls_fail_rules_of_images() {
    for result in results_of_pulls_answered_with("no space left on device").await {
        assert!(matches!(result.outcome, Err(Outcome::Fail { .. })), "{result:?}");
    }
}

/// A runtime whose pods outlive it, and the options of a check that restarts it and runs only the rules about restarts.
async fn restartable() -> (Arc<Mutex<Runtime>>, Options) {
    let runtime = Runtime::with().durable().config(HANDLERS).start().await.unwrap();
    let mut options = Options::new(&runtime.socket());
    options.rules.retain(|rule| rule.restarts());
    let runtime = Arc::new(Mutex::new(runtime));
    let restarted = Arc::clone(&runtime);
    options.restart = Some(Restart::new(move || {
        let restarted = Arc::clone(&restarted);
        async move {
            let restarting = async { restarted.lock().await.restart().await };
            restarting.await.map_err(|error| error.to_string())
        }
    }));
    (runtime, options)
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_runtime_keeps_every_rule_of_restarts() {
    let (_runtime, options) = restartable().await;
    let results = results(options).await;
    assert!(results.len() > 10, "{results:?}");
    for result in &results {
        let passed = result.outcome.is_ok() || skipped(result);
        assert!(passed, "{}", check::report::failure("crib check", result));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_of_restarts_are_skipped_without_command() {
    let runtime = Runtime::with().start().await.unwrap();
    let mut options = Options::new(&runtime.socket());
    options.rules.retain(|rule| rule.restarts());
    for result in results(options).await {
        let why = "--restart-command does not say how to restart the runtime".to_owned();
        assert_eq!(result.outcome, Err(Outcome::Skipped(why)), "{}", result.rule.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_of_restarts_fails_on_each_of_its_faults() {
    let mut missed = Vec::new();
    let (_runtime, options) = restartable().await;
    for rule in options.rules.clone() {
        for text in rule.faults {
            missed.extend(uncaught(options.clone(), rule, text).await);
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_call_affects_only_its_rule() {
    let runtime = Runtime::with().start().await.unwrap();
    let mut options = Options::new(&runtime.socket());
    let chosen = ["CRI-STA-004".to_owned(), "CRI-SBX-007".to_owned()];
    options.rules = check::choose(&check::all(), &chosen, &[]).unwrap();
    options.faults = vec!["ContainerStats hang".parse().unwrap()];
    // The other rule must end by then.
    options.deadline = Duration::from_secs(8);
    let results = results(options).await;
    let failed: Vec<_> = results.iter().map(|one| (one.rule.id, one.outcome.is_err())).collect();
    assert_eq!(failed, [("CRI-SBX-007", false), ("CRI-STA-004", true)]);
    let text = check::report::failure("crib check", &results[1]);
    assert!(text.contains("to end within 8 s") && text.contains("no end"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_check_removes_what_it_made() {
    let runtime = Runtime::with().start().await.unwrap();
    let other = runtime.pod("other").await.unwrap();
    let mut options = Options::new(&runtime.socket());
    // The rule waits for a line that is never printed.
    let chosen = ["CRI-STP-001".to_owned()];
    options.rules = check::choose(&check::all(), &chosen, &[]).unwrap();
    options.faults = vec!["StopContainer hang".parse().unwrap()];
    let interrupt = CancellationToken::new();
    let checking = tokio::spawn(check::check(options, interrupt.clone(), |_| {}));
    eventually(WAIT_LIMIT, "a container of the check", async || {
        let all = runtime.client.containers(Default::default()).await.unwrap();
        if all.iter().any(|one| one.labels.contains_key(RUN_LABEL)) { Ok(()) } else { Err(all) }
    })
    .await;
    interrupt.cancel();
    let report = checking.await.unwrap().unwrap();
    assert!(
        report.cut_short == Some(CutShort::Interrupted) && report.left.is_empty(),
        "{report:?}"
    );
    let left = runtime.client.pods(PodSandboxFilter::default()).await.unwrap();
    let left: Vec<_> = left.into_iter().map(|pod| pod.id).collect();
    assert_eq!(left, [other.id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_removes_what_killed_check_left_and_nothing_else() {
    let runtime = Runtime::with().start().await.unwrap();
    let (dead, live) = (runtime.root().join("dead"), runtime.root().join("live"));
    std::fs::create_dir(&live).unwrap();
    let lock = std::fs::File::create(live.join("lock")).unwrap();
    lock.lock().unwrap();
    let mut pods = Vec::new();
    for directory in [&dead, &live] {
        let mut config = runtime.sandbox("p");
        let run = directory.file_name().unwrap().to_str().unwrap();
        config.labels.insert(RUN_LABEL.to_owned(), run.to_owned());
        let directory = directory.display().to_string();
        config.annotations.insert("crib.local/check-directory".to_owned(), directory);
        pods.push(Pod::run(&runtime.client, config).await.unwrap().id);
    }
    let mut options = Options::new(&runtime.socket());
    options.rules = check::choose(&check::all(), &["CRI-RTM-001".to_owned()], &[]).unwrap();
    results(options).await;
    let left = runtime.client.pods(PodSandboxFilter::default()).await.unwrap();
    let left: Vec<_> = left.into_iter().map(|pod| pod.id).collect();
    assert_eq!(left, pods[1..]);
    drop(lock);
}

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_call_exceeds_deadline_of_one_rule() {
    let runtime = Runtime::with().start().await.unwrap();
    let mut options = Options::new(&runtime.socket());
    let chosen = ["CRI-STA-004".to_owned(), "CRI-OPT-005".to_owned()];
    options.rules = check::choose(&check::all(), &chosen, &[]).unwrap();
    options.faults = vec!["ContainerStats hang".parse().unwrap()];
    options.deadline = Duration::from_secs(8);
    options.parallel = 1;
    let results = results(options).await;
    let seen = results.iter().map(|result| match &result.outcome {
        Err(Outcome::Fail { expected, seen, .. }) => format!("{expected}: {seen}"),
        other => panic!("{} ends with {other:?}", result.rule.id),
    });
    let seen: Vec<String> = seen.collect();
    assert!(
        seen.iter().any(|seen| seen.starts_with("to end within 8 s: no answer to")),
        "{seen:?}"
    );
    let known = "an answer: no answer to ContainerStats, which was never answered in this check";
    assert!(seen.iter().any(|seen| seen == known), "{seen:?}");
}
