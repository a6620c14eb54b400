//! The messages for a manifest's author.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use rstest::rstest;

use super::{Parsed, Problem, Strictness, parse};

fn strict(text: &str) -> Parsed {
    parse("pod.yaml", text, Strictness::Strict)
}

/// Problems in order, without the quoted line.
fn problems(parsed: &Parsed) -> Vec<String> {
    heads(&parsed.problems)
}

fn heads(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(|problem| problem.to_string().lines().next().unwrap().to_owned()).collect()
}

const GOOD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: app
    image: crib.local/host
";

#[test]
fn valid_pod_is_defaulted() {
    let parsed = strict(GOOD);
    assert_eq!(problems(&parsed), [""; 0]);
    let pod = &parsed.pods[0];
    assert_eq!(
        (pod.full_name().as_str(), pod.grace_seconds(), pod.uid().as_str().len()),
        ("default/web", 30, 32)
    );
    assert_eq!(pod.spec().dns_policy.as_deref(), Some("ClusterFirst"));
    assert_eq!(pod.containers()[0].image_pull_policy.as_deref(), Some("Always"));
}

#[rstest]
#[case::bell("\u{7}", false)]
#[case::delete("\u{7f}", false)]
#[case::next_line("\u{85}", true)]
#[case::escape("\\x07", true)]
fn control_characters_are_refused(#[case] text: &str, #[case] is_allowed: bool) {
    let with_argument = format!("{GOOD}    args: [\"{text}\"]\n");
    let found = problems(&strict(&with_argument));
    let expected = "pod.yaml:8:13: control characters are not allowed";
    assert_eq!(found.iter().any(|problem| problem.starts_with(expected)), !is_allowed, "{found:?}");
    assert_eq!(found.is_empty(), is_allowed);
}

/// Files that were concatenated may each begin with a byte order mark.
#[rstest]
#[case::after_separator("---\n\u{feff}", true)]
#[case::after_commented_separator("--- # b\r\n\u{feff}", true)]
#[case::within_document("\u{feff}", false)]
fn byte_order_mark_may_begin_each_document(#[case] between: &str, #[case] is_allowed: bool) {
    let second = GOOD.replace("name: web", "name: other");
    let parsed = strict(&format!("\u{feff}{GOOD}{between}{second}"));
    assert_eq!(parsed.problems.is_empty(), is_allowed, "{:?}", parsed.problems);
    assert_eq!(parsed.pods.len() == 2, is_allowed);
}

/// YAML that kubectl's parser accepts and YAML 1.2 does not allow: the value of a label, an annotation and an argument.
#[rstest]
#[case::bracket_below_its_key("    args: [\n      \"a\",\n    ]\n", "", "a")]
#[case::brackets_without_indentation("    args: [\n\"a\",\n b\n]\n", "", "a b")]
#[case::braces("    args: [a]\n    resources: {\n    limits: {\n  cpu: 1\n}\n}\n", "", "a")]
#[case::quotes("    args: ['a\nb\n\n  c'' d']\n", "", "a b\nc' d")]
#[case::double_quotes("    args:\n    - \"a \\\n b\\\"\n\nc\"\n", "", "a b\"\nc")]
#[case::document_in_quotes("    args: [a]\n", "metadata.annotations: x", "a")]
#[case::tab_after_key("    args:\t[a]\n    imagePullPolicy:\tNever\n", "", "a")]
fn yaml_that_kubectl_reads_is_read(
    #[case] fields: &str,
    #[case] annotated: &str,
    #[case] expected: &str,
) {
    let annotations = "metadata: {name: web, annotations: {x: '[\n{\"a\": 1}\n]'}}";
    let mut text = GOOD.to_owned();
    if !annotated.is_empty() {
        text = text.replace("metadata: {name: web}", annotations);
    }
    let parsed = strict(&(text + fields));
    assert_eq!(problems(&parsed), [""; 0]);
    assert_eq!(parsed.pods[0].containers()[0].args.as_ref().unwrap().join(" "), expected);
    if !annotated.is_empty() {
        let annotations = parsed.pods[0].api().metadata.annotations.as_ref().unwrap();
        assert_eq!(annotations["x"], "[ {\"a\": 1} ]");
    }
}

#[test]
fn repaired_yaml_keeps_its_positions_and_other_errors() {
    let places = |text: &str| problems(&strict(&format!("{GOOD}{text}")));
    let found = places("    args: [\n  1,\n    ]\n    imge: x\n    ports: [\n  {prt: 1}]\n");
    assert_eq!(
        found,
        [
            "pod.yaml:9:3: spec.containers[0].args[0]: expected text, found the number 1; put it in quotes",
            "pod.yaml:11:5: spec.containers[0].imge: unknown field \"imge\", did you mean \"image\"?",
            "pod.yaml:13:3: spec.containers[0].ports[0].containerPort: a value is required",
            "pod.yaml:13:4: spec.containers[0].ports[0].prt: unknown field \"prt\", expected one of containerPort, hostIP, hostPort, name, protocol",
        ]
    );
    let never = places("    args: [\n  a\n");
    assert_eq!(never.len(), 1, "{never:?}");
    assert!(never[0].contains("not valid YAML: "), "{never:?}");
    // Repairs are limited, because each one requires rereading the whole text.
    let many = "[\n0".repeat(60) + &"\n]".repeat(60);
    assert!(places(&format!("    x: {many}\n")).len() < 3);
}

#[test]
fn pod_has_no_status_whatever_is_written() {
    let parsed = strict(&format!("{GOOD}status: {{phase: Succeeded, reason: Evicted}}\n"));
    assert_eq!(parsed.problems, []);
    assert_eq!(parsed.pods[0].api().status, None);
    assert_eq!(parsed.no_effect[0].path, "status");
}

#[test]
fn uid_depends_on_content_file_and_index() {
    let uid = |file: &str, text: &str, index: usize| {
        parse(file, text, Strictness::Strict).pods[index].uid().clone()
    };
    assert_eq!(uid("a", GOOD, 0), uid("a", GOOD, 0));
    assert_ne!(uid("a", GOOD, 0), uid("b", GOOD, 0));
    assert_ne!(uid("a", GOOD, 0), uid("a", &GOOD.replace("app", "apq"), 0));
    let twice = format!("{GOOD}---\n{GOOD}");
    assert_ne!(uid("a", &twice, 0), uid("a", &twice, 1));
}

#[test]
fn every_problem_is_reported_with_position() {
    let parsed = strict(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: Web\nspec:\n  containers:\n  - name: app\n    imge: x\n    \
         ports:\n    - containerPort: \"80\"\n    - containerPort: 70000\n    env:\n    - {name: A, value: 1}\n",
    );
    assert_eq!(
        problems(&parsed),
        [
            "pod.yaml:4:9: metadata.name: invalid value \"Web\": must consist of lower-case letters, digits, '-' and '.', \
             and begin and end with a letter or digit",
            "pod.yaml:7:5: spec.containers[0].image: a value is required",
            "pod.yaml:8:5: spec.containers[0].imge: unknown field \"imge\", did you mean \"image\"?",
            "pod.yaml:10:22: spec.containers[0].ports[0].containerPort: expected a whole number, found the text \"80\"",
            "pod.yaml:11:22: spec.containers[0].ports[1].containerPort: invalid value \"70000\": must be between 1 and \
             65535, inclusive",
            "pod.yaml:13:24: spec.containers[0].env[0].value: expected text, found the number 1; put it in quotes",
        ]
    );
}

#[test]
fn problem_shows_line_with_caret() {
    let parsed = strict(&GOOD.replace("image:", "imagine:"));
    let shown = parsed.problems[1].to_string();
    let lines: Vec<&str> = shown.lines().skip(1).collect();
    assert_eq!(lines, ["  7 |     imagine: crib.local/host", "    |     ^"]);
}

#[test]
fn unknown_field_is_warning_when_lenient() {
    let parsed = parse("pod.yaml", &format!("{GOOD}    flavour: mint\n"), Strictness::Lenient);
    assert_eq!(problems(&parsed), [""; 0]);
    assert_eq!(parsed.warnings[0].path, "spec.containers[0].flavour");
    assert_eq!(parsed.pods.len(), 1);
}

#[rstest]
#[case(
    "apiVersion: v1\nkind: Pot\n",
    "pod.yaml:2:7: kind: kind \"Pot\" is not known, did you mean \"Pod\"?"
)]
#[case(
    "apiVersion: v2\nkind: Pod\n",
    "pod.yaml:1:13: apiVersion: expected v1 for kind Pod, found \"v2\""
)]
#[case("kind: Pod\n", "pod.yaml:1:1: apiVersion: missing: expected v1")]
#[case("- a\n", "pod.yaml:1:1: expected an object with apiVersion and kind, such as a Pod")]
#[case("", "pod.yaml:1:1: no pod found: expected apiVersion: v1, kind: Pod")]
#[case("a: b: c\n", "pod.yaml:1:5: not valid YAML: ")]
fn documents_that_are_no_pod_are_reported(#[case] text: &str, #[case] expected: &str) {
    let reported = problems(&strict(text));
    assert!(reported[0].starts_with(expected), "{reported:?}");
}

#[test]
fn values_of_one_list_in_brackets_have_a_limit() {
    let zeros = "0,".repeat(1_000_001);
    let found = problems(&strict(&format!("{{\"a\": [{zeros}0]}}")));
    let expected = "pod.yaml:1:400009: more than 200000 values in one file, with aliases expanded: split the file";
    assert_eq!(found, [expected]);
    let found = problems(&strict(&format!("a: [{zeros}0]\n")));
    let expected = "pod.yaml:1:2000006: more than 1000000 commas in one file: split the file";
    assert_eq!(found, [expected]);
}

/// Each problem would store a copy of the line.
#[test]
fn very_long_line_is_not_shown() {
    let text = format!("{{\"u\": 1, \"long\": \"{}\"}}", "y".repeat(10_000));
    let parsed = strict(&text);
    assert!(!parsed.problems.is_empty());
    assert!(parsed.problems.iter().all(|problem| problem.text.is_empty()), "{text}");
}

#[test]
fn many_duplicate_keys_are_counted() {
    let text = format!("{GOOD}    tty: true\n{}", "    tty: false\n".repeat(1000));
    let found = problems(&strict(&text));
    assert_eq!(found.len(), 101);
    assert_eq!(found[100], "pod.yaml:109:5: 900 more duplicate keys from here on");
}

/// kubectl uses the last one.
#[test]
fn duplicate_keys_are_reported() {
    let twice = format!("{GOOD}    image: other\n");
    let reported = "pod.yaml:8:5: duplicate key \"image\", first given on line 7";
    assert_eq!(problems(&strict(&twice)), [reported]);
    let lenient = parse("pod.yaml", &twice, Strictness::Lenient);
    assert_eq!(problems(&lenient), [""; 0]);
    assert_eq!(heads(&lenient.warnings), [format!("{reported}: the last value is used")]);
    assert_eq!(lenient.pods[0].containers()[0].image.as_deref(), Some("other"));
}

/// In skipped documents they are no error, even if nested deeply, repeated, or in an item of a list.
#[rstest]
#[case::document("{skipped}\n---\n{pod}")]
#[case::last("{pod}\n---\n{skipped}")]
#[case::item("{apiVersion: v1, kind: List, items: [{skipped}, {pod}]}")]
#[case::hook(
    "{apiVersion: v1, kind: Pod, metadata: {name: h, name: i, annotations: {helm.sh/hook: test}}}\n---\n{pod}"
)]
fn duplicate_keys_of_what_is_skipped_are_warned_of(#[case] text: &str) {
    let skipped = "{apiVersion: e.com/v1, kind: Thing, spec: {a: {b: 1, b: 2}, a: [{c: 1, c: 2}]}}";
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}";
    let text = text.replace("{skipped}", skipped).replace("{pod}", pod);
    let parsed = strict(&text);
    assert_eq!(problems(&parsed), [""; 0]);
    let expected = if text.contains("Thing") { 3 } else { 1 };
    assert_eq!(parsed.warnings.len(), expected, "{:?}", parsed.warnings);
    let twice = pod.replace("name: c", "name: c, name: d");
    let reported = problems(&strict(&text.replace(pod, &twice)));
    assert_eq!(reported.len(), 1, "{reported:?}");
}

#[test]
fn lists_and_documents_may_have_several_pods() {
    let item = "{metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}";
    let list = format!("apiVersion: v1\nkind: PodList\nitems: [{item}, {item}]\n---\n---\n{GOOD}");
    assert_eq!(strict(&list).pods.len(), 3);
    let list = format!("apiVersion: v1\nkind: List\nitems: [{item}]\n");
    assert_eq!(
        problems(&strict(&list)),
        [
            "pod.yaml:3:9: items[0].apiVersion: missing: expected v1",
            "pod.yaml:3:9: items[0].kind: missing: expected Pod, ConfigMap, Secret, Service, Endpoints, EndpointSlice, \
             Namespace, ServiceAccount, PersistentVolumeClaim, PersistentVolume, Job, CronJob, Deployment, ReplicaSet, \
             ReplicationController, DaemonSet, StatefulSet, RuntimeClass, PriorityClass, ClusterTrustBundle, List"
        ]
    );
}

#[test]
fn json_and_yaml_1_1_are_parsed_like_kubectl() {
    let json = "{\n\t\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"a\"},\n\t\"spec\": \
                {\"hostNetwork\": true, \"containers\": [{\"name\": \"c\", \"image\": \"i\"}]}}";
    assert_eq!(problems(&strict(json)), [""; 0]);
    let yaml = format!("{GOOD}    stdin: yes\n  terminationGracePeriodSeconds: 010\n");
    let parsed = strict(&yaml);
    assert_eq!(problems(&parsed), [""; 0]);
    assert_eq!(parsed.pods[0].containers()[0].stdin, Some(true));
    assert_eq!(parsed.pods[0].grace_seconds(), 8);
}

/// The value of an annotation, as kubectl reads it: `Err` for the problem.
#[rstest]
#[case::binary("!!binary aGVsbG8=", Ok("hello"))]
#[case::malformed_binary("!!binary '#'", Err("expected base64 after the tag !!binary"))]
#[case::text("!!str 5", Ok("5"))]
#[case::other_tag("!Ref 5", Ok("5"))]
#[case::number(
    "!!int '5'",
    Err("metadata.annotations.a: expected text, found the number 5; put it in quotes")
)]
#[case::boolean(
    "!!bool 'true'",
    Err("metadata.annotations.a: expected text, found the boolean true; put it in quotes")
)]
fn tags_decide_the_type_of_a_scalar(#[case] value: &str, #[case] expected: Result<&str, &str>) {
    let text = GOOD.replace("{name: web}", &format!("{{name: web, annotations: {{a: {value}}}}}"));
    let parsed = strict(&text);
    match expected {
        Ok(expected) => {
            assert_eq!(problems(&parsed), [""; 0]);
            assert_eq!(parsed.pods[0].annotations().collect::<Vec<_>>(), [("a", expected)]);
        }
        Err(expected) => {
            let found = problems(&parsed);
            assert!(found[0].ends_with(expected), "{found:?}");
        }
    }
}

/// The value of a label, as kubectl reads it.
#[rstest]
#[case::entry_after_merge_key("{<<: {a: b}, a: z}", "z")]
#[case::entry_before_merge_key("{a: z, <<: {a: b}}", "b")]
#[case::first_of_a_list("{<<: [{a: b}, {a: c}]}", "b")]
#[case::last_merge_key("{<<: {a: b}, <<: {a: c}}", "c")]
fn last_of_merged_entries_counts(#[case] labels: &str, #[case] expected: &str) {
    let text = GOOD.replace("{name: web}", &format!("{{name: web, labels: {labels}}}"));
    let parsed = strict(&text);
    assert_eq!(problems(&parsed), [""; 0]);
    let labels = parsed.pods[0].api().metadata.labels.clone().unwrap_or_default();
    assert_eq!(labels["a"], expected);
}

#[test]
fn anchors_and_merges_are_expanded_within_limits() {
    let merged = GOOD
        .replace("  - name: app\n", "  - &a {name: app, image: x}\n  - <<: *a\n    name: other\n");
    let parsed = strict(&merged);
    assert_eq!(problems(&parsed), [""; 0]);
    assert_eq!(parsed.pods[0].containers()[1].image.as_deref(), Some("crib.local/host"));
    assert_eq!(parsed.pods[0].containers()[1].name, "other");
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let before = format!("*a{}, ", level - 1).repeat(10);
        bomb.push_str(&format!("a{level}: &a{level} [{before}]\n"));
    }
    assert!(problems(&strict(&bomb))[0].contains("more than 200000 values"));
    let deep = problems(&strict(&format!("{}{}", "[".repeat(100), "]".repeat(100))));
    assert!(deep[0].contains("levels deep"), "{deep:?}");
    assert!(problems(&strict(&"[".repeat(5000)))[0].contains("recursion limit"));
}

/// Few values, but long ones: 20,000 aliases of 100 kB are 2 GB.
#[test]
fn aliases_of_long_values_are_refused() {
    let long = "y".repeat(100_000);
    let text = format!("d: &d {long}\ne: [{}]\n", "*d, ".repeat(20_000));
    let found = problems(&strict(&text));
    let expected = "the values of this file's aliases take more than 64 MiB";
    assert!(found[0].contains(expected), "{found:?}");
}

#[rstest]
#[case("  volumes: [{name: v, csi: {driver: d}}]\n", "spec.volumes[0].csi")]
#[case(
    "  volumes: [{name: v, projected: {sources: [{podCertificate: {signerName: example.org/s, keyType: ED25519, keyPath: p}}]}}]\n",
    "spec.volumes[0].projected.sources[0].podCertificate"
)]
#[case("  resourceClaims: [{name: c, resourceClaimName: r}]\n", "spec.resourceClaims")]
#[case(
    "  volumes: [{name: d, emptyDir: {}}, {name: v, nfs: {server: s, path: /p}}]\n",
    "spec.volumes[1].nfs"
)]
fn unsupported_fields_are_reported(#[case] addition: &str, #[case] path: &str) {
    let parsed = strict(&format!("{GOOD}{addition}"));
    assert_eq!(
        parsed.problems.iter().map(|problem| problem.path.as_str()).collect::<Vec<_>>(),
        [path]
    );
    let message = &parsed.problems[0].message;
    assert!(message.contains("not supported yet"), "{message}");
    let instead = message.split_once(": ").unwrap().1;
    assert!(["use ", "mount ", "put "].iter().any(|verb| instead.starts_with(verb)), "{message}");
}

#[rstest]
#[case("  readinessGates: [{conditionType: x/y}]\n", &["spec.readinessGates"])]
#[case("  schedulingGates: [{name: x/y}]\n", &["spec.schedulingGates"])]
#[case(
    "  affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, \
     labelSelector: {matchLabels: {a: b}}}]}}\n",
    &["spec.affinity.podAntiAffinity"]
)]
#[case("  ephemeralContainers: []\n  readinessGates: []\n", &[])]
#[case("  schedulerName: other\n  imagePullSecrets: [{name: s}]\n", &[])]
fn fields_without_effect_are_warned_of(#[case] addition: &str, #[case] paths: &[&str]) {
    let parsed = strict(&format!("{GOOD}{addition}"));
    assert_eq!(problems(&parsed), [""; 0]);
    let warned: Vec<&str> = parsed.warnings.iter().map(|warning| warning.path.as_str()).collect();
    assert_eq!(warned, paths);
}

/// Fields without effect are reported separately, at the position that the author wrote, not where they are defaulted.
#[test]
fn fields_without_effect_are_reported() {
    let parsed = strict(&format!("{GOOD}  schedulerName: other\n"));
    assert_eq!(problems(&parsed), [""; 0]);
    let noted: Vec<&str> = parsed.no_effect.iter().map(|field| field.path.as_str()).collect();
    assert_eq!(noted, ["spec.schedulerName"]);
    assert_eq!(strict(GOOD).no_effect, []);
}

#[test]
fn fields_of_templates_are_supported_as_those_of_pods() {
    let text = "apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  paused: true
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: i}]
      readinessGates: [{conditionType: x/y}]
      volumes: [{name: v, nfs: {server: s, path: /p}}, {name: m, emptyDir: {medium: HugePages}}]
status: {replicas: 1}
";
    let parsed = strict(text);
    let paths = |found: &[super::Problem]| -> Vec<String> {
        found.iter().map(|field| field.path.clone()).collect()
    };
    let volumes = "spec.template.spec.volumes";
    assert_eq!(
        paths(&parsed.problems),
        [format!("{volumes}[0].nfs"), format!("{volumes}[1].emptyDir.medium")]
    );
    assert_eq!(paths(&parsed.warnings), ["spec.paused", "spec.template.spec.readinessGates"]);
    assert_eq!(paths(&parsed.no_effect), ["status"]);
}

#[test]
fn probes_are_supported() {
    let parsed = strict(&format!("{GOOD}    livenessProbe: {{exec: {{command: [x]}}}}\n"));
    assert_eq!(problems(&parsed), [""; 0]);
    assert!(parsed.warnings.is_empty(), "{:?}", parsed.warnings);
}

/// A rejected value is reported once, and the rest is still decoded.
#[test]
fn rejected_values_do_not_hide_other_problems() {
    let text = GOOD.replace("{name: web}", "{name: web, creationTimestamp: soon, uuid: x}");
    let parsed = strict(&text);
    let paths: Vec<&str> = parsed.problems.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(paths, ["metadata.creationTimestamp", "metadata.uuid"], "{:?}", problems(&parsed));
}

proptest! {
    #[test]
    fn parse_survives_any_text(text in ".*") {
        let _ = strict(&text);
    }

    #[test]
    fn parse_survives_yaml_like_text(text in "([a-c&*!|>{}\\[\\]:,#'\"~?-]|: |- |\n|  |<<|\t|---\n){0,80}") {
        let _ = strict(&text);
    }

    /// A pod with some characters replaced: mostly valid YAML, rarely a valid pod.
    #[test]
    fn parse_survives_damaged_pod(at in 0..GOOD.len(), patch in "[ -~\n]{0,12}", cut in 0..20_usize) {
        let end = (at + cut).min(GOOD.len());
        let parsed = strict(&format!("{}{patch}{}", &GOOD[..at], &GOOD[end..]));
        let lines = parsed.problems.iter().filter(|problem| problem.line == 0 || problem.column == 0).count();
        prop_assert_eq!(lines, 0);
    }
}

#[rstest]
#[case::as_it_is("kind: Pot", 7, "kind: Pot", 6)]
#[case::the_caret_after_the_end("kind:", 6, "kind:", 5)]
#[case::nothing_steers_the_terminal("a: \x1b[2J", 4, "a: \u{fffd}[2J", 3)]
fn excerpt_shows_line_and_caret(
    #[case] line: &str,
    #[case] column: usize,
    #[case] text: &str,
    #[case] caret: usize,
) {
    assert_eq!(super::excerpt(line, column), (text.to_owned(), " ".repeat(caret)));
}

#[test]
fn excerpt_of_long_line_is_short_and_contains_column() {
    let line = format!("{}!{}", "x".repeat(100_000), "y".repeat(100_000));
    let (text, indent) = super::excerpt(&line, 100_001);
    assert_eq!(text.chars().nth(indent.chars().count()), Some('!'));
    assert_eq!(text.chars().count(), super::EXCERPT + 2);
    assert!(text.starts_with('…') && text.ends_with('…'), "{text}");
}

#[rstest]
#[case(256 * 1024, true)]
#[case(256 * 1024 + 1, false)]
fn annotations_have_total_size_limit(#[case] bytes: usize, #[case] allowed: bool) {
    let text = GOOD.replace(
        "{name: web}",
        &format!("{{name: web, annotations: {{a: b, cd: {}}}}}", "x".repeat(bytes - 4)),
    );
    let expected = "must have at most 262144 bytes in total";
    assert_eq!(problems(&strict(&text)).iter().any(|problem| problem.contains(expected)), !allowed);
}

#[test]
fn token_needs_no_named_account() {
    let volumes = "{volumes: [{name: t, projected: {sources: [{serviceAccountToken: {path: t}}]}}], containers: [{name: c, image: i}]}";
    let pod = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {volumes}\n");
    let set = format!(
        "---\napiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: d}}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    \
         metadata: {{labels: {{a: b}}}}\n    spec: {volumes}\n"
    );
    assert_eq!(problems(&strict(&format!("{pod}{set}"))), [""; 0]);
}

#[rstest]
#[case(
    "metadata: {name: {{ .Release.Name }}}\n",
    "a list or an object cannot be a key: render a template with {{ … }} first, for example with helm template"
)]
#[case("a: &x {b: *x}\n", "an alias refers to an anchor that contains it")]
#[case(
    "a: &x {b: c}\n---\na: *x\n",
    "an alias refers to an anchor of another document: write the value out, because an anchor is valid only in its own document"
)]
fn undefined_alias_and_unrendered_template_are_reported(
    #[case] text: &str,
    #[case] expected: &str,
) {
    let parsed = strict(text);
    let messages = parsed.problems.iter().map(|problem| &problem.message);
    assert!(messages.clone().any(|message| message == expected), "{:?}", parsed.problems);
}
