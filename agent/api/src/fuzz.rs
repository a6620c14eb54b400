//! Fuzz targets of this package: manifests, and the formats of their fields.

use fuzz_target::{Target, bytes, text};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::duration::parse_go_duration;
use crate::manifest::{Strictness, indexes, parse, schedule, to_json};
use crate::quantity;

/// Every target of this package.
#[must_use]
pub fn targets() -> Vec<Target> {
    vec![
        Target::new("manifest", manifest, manifests).slow(1000),
        Target::new("quantity", amount, amounts),
        Target::new("cron_schedule", cron, crons),
        Target::new("go_duration", duration, durations),
        Target::new("job_indexes", index, index_lists),
    ]
}

/// Problems have a position in the text. A pod that is written as JSON parses to the same pod.
fn manifest(data: &[u8]) {
    for strictness in [Strictness::Strict, Strictness::Lenient] {
        let parsed = parse("m.yaml", text(data), strictness);
        for problem in parsed.problems.iter().chain(&parsed.warnings).chain(&parsed.no_effect) {
            assert!(problem.line > 0 && problem.column > 0, "{problem:?}");
        }
        if !parsed.problems.is_empty() {
            continue;
        }
        for pod in &parsed.pods {
            let json = to_json(pod.api()).to_string();
            let again = parse("m.yaml", &json, strictness);
            assert_eq!(again.problems, [], "{json}");
            assert_eq!(again.pods[0].spec(), pod.spec(), "{json}");
        }
    }
}

fn manifests() -> Vec<Vec<u8>> {
    bytes(&[
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {b: c}}\nspec:\n  containers:\n  - name: c\n    image: i:1\n    env: [{name: A, value: $(B)}]\n    resources: {limits: {cpu: 1500m, memory: 1Gi}}\n    livenessProbe: {exec: {command: [x]}, periodSeconds: 1}\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: v}\nspec:\n  initContainers: [{name: i, image: i, restartPolicy: Always}]\n  containers: [{name: c, image: i, volumeMounts: [{name: d, mountPath: /d, subPath: e}]}]\n  volumes:\n  - name: d\n    projected: {sources: [{secret: {name: s}}, {serviceAccountToken: {path: t}}]}\n",
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: j}\nspec:\n  schedule: \"*/5 1-3 * * mon\"\n  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}\n---\napiVersion: v1\nkind: List\nitems: []\n",
        "a: &x {b: c}\nd: *x\n? [e]\n: |\n  f\n--- !!map\ng: 'h'\n<<: *x\n",
        r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "b\u001b"}, "binaryData": {"c": "AAE="}}"#,
    ])
}

/// The canonical text has the same amount, and is its own canonical text.
fn amount(data: &[u8]) {
    let Ok(quantity) = quantity::Quantity::parse(text(data)) else {
        assert!(quantity::canonical(text(data)).is_err());
        return;
    };
    let Ok(written) = quantity::canonical(text(data)) else {
        return;
    };
    let again = quantity::Quantity::parse(&written.text).expect("a canonical text is a quantity");
    // Beyond 64 bits the value depends on the format, as in Kubernetes.
    let is_in_range = text(data).len() < 12 && !text(data).contains(['e', 'E', 'P', 'T']);
    if is_in_range {
        assert_eq!(again.value(), quantity.value(), "{}", written.text);
    }
    let twice = quantity::canonical(&written.text).expect("a canonical text stays one");
    assert_eq!(twice.text, written.text);
}

fn amounts() -> Vec<Vec<u8>> {
    bytes(&["0", "1500m", "1.5Gi", "12e6", "-3", "9223372036854775807", "0.000000001", "1E2Ki"])
}

/// The next time is later, and the one after it later still.
fn cron(data: &[u8]) {
    let Ok(schedule) = schedule::parse(text(data)) else {
        return;
    };
    let mut at = Timestamp::UNIX_EPOCH;
    for _ in 0..3 {
        let Some(next) = schedule.next(at, &TimeZone::UTC) else {
            return;
        };
        assert!(next > at, "{next} after {at}");
        at = next;
    }
}

fn crons() -> Vec<Vec<u8>> {
    bytes(&[
        "*/5 * * * *",
        "0 0 29 2 *",
        "0 0 1 1 0",
        "1,2-10/3 * ? jan-mar SUN",
        "@every 1h30m",
        "@daily",
    ])
}

/// Whole numbers of nanoseconds, as in Go: negation negates the value.
fn duration(data: &[u8]) {
    let text = text(data);
    if !text.starts_with(['+', '-'])
        && let Some(nanos) = parse_go_duration(text)
        && !text.is_empty()
    {
        assert_eq!(parse_go_duration(&format!("-{text}")), Some(-nanos), "{text:?}");
    }
}

fn durations() -> Vec<Vec<u8>> {
    bytes(&["1h2m3.5s", "0", "100ms", "1.5h", "2562047h47m16.854775807s", ".5us", "3µs", "9ns"])
}

/// The numbers of a parsed list occur in it.
fn index(data: &[u8]) {
    let Some(numbers) = indexes::parse(text(data)) else {
        return;
    };
    let listed: Vec<String> = numbers.iter().map(u32::to_string).collect();
    assert_eq!(indexes::parse(&listed.join(",")), Some(numbers));
}

fn index_lists() -> Vec<Vec<u8>> {
    bytes(&["0", "1,3-5,7", "10-12", ""])
}

#[test]
fn fuzz_targets_pass_on_corpus_and_mutations() {
    fuzz_target::check(&targets());
}
