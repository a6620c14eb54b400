//! Fuzz targets of this package: rules and recordings, which users may get from others.

use fuzz_target::{Target, bytes, text};

use crate::fault::RuleSet;
use crate::lint::{CallFacts, lint};
use crate::recorded::{RecordedCall, finished_lines};

/// All targets of this package.
#[must_use]
pub fn targets() -> Vec<Target> {
    vec![
        Target::new("proxy_rules", rules, rule_files),
        Target::new("proxy_recording", recording, recordings).slow(1000),
    ]
}

/// Parsing a rule's text again yields the same rule.
fn rules(data: &[u8]) {
    let Ok(set) = text(data).parse::<RuleSet>() else {
        return;
    };
    let texts: Vec<&str> = set.faults.iter().map(crate::Fault::text).collect();
    let again: RuleSet = texts.join("\n").parse().expect("the text of a rule is one");
    assert_eq!(again.faults, set.faults);
}

fn rule_files() -> Vec<Vec<u8>> {
    bytes(&[
        "# slow\nseed 7\nlate: StopContainer after 2 every 3 times 4 probability 0.5 delay 100ms\n",
        "off CreateContainer request drop config.mounts\nExecSync set stdout \"eHg=\"\n",
        "RunPodSandbox if request.runtime_handler == \"x\" answer INVALID_ARGUMENT \"bad \\\"x\\\"\"\n",
        "ContainerStatus,PodSandboxStatus recode NOT_FOUND NOT_FOUND \"\"\nStreamContainers lose\n* hang\n",
    ])
}

/// Calls are sorted and have valid times, and the linter accepts them.
fn recording(data: &[u8]) {
    let Ok(calls) = RecordedCall::parse_all(finished_lines(text(data))) else {
        return;
    };
    assert!(calls.is_sorted_by(|a, b| a.t_start.total_cmp(&b.t_start).is_le()));
    assert!(calls.iter().all(|call| call.t_end.is_none_or(|end| end >= call.t_start)));
    let seen: Vec<CallFacts> = calls.iter().map(CallFacts::from).collect();
    for finding in lint(&seen) {
        assert!(crate::LINT_RULES.contains(&finding.rule), "{finding:?}");
    }
}

fn recordings() -> Vec<Vec<u8>> {
    bytes(&[
        "{\"t_start\":0.1,\"t_end\":0.2,\"method\":\"Version\",\"deadline_s\":2,\"request\":{\"version\":\"v1\"},\"response\":{\"version\":\"0.1.0\"},\"code\":\"OK\"}\n{\"t_start\":0.0,\"method\":\"GetContainerEvents\",\"request\":{},\"responses\":[{\"t\":1,\"message\":{}}]}\n",
        "{\"t_start\":1,\"t_end\":2,\"method\":\"StopContainer\",\"connection\":3,\"request\":{\"container_id\":\"c\",\"timeout\":\"10\"},\"code\":\"NotFound\",\"message\":\"gone\"}\n{\"t_start\":",
    ])
}

#[test]
fn fuzz_targets_pass_on_corpus_and_mutations() {
    fuzz_target::check(&targets());
}
