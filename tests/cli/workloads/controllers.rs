//! `crib run` with objects whose pods a controller creates: Jobs, Deployments, DaemonSets and StatefulSets.

use crate::command::*;

const DEPLOYMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/deployment.yaml");
const JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/job.yaml");

/// An object with a template of one container that runs a shell script.
fn object(kind: &str, name: &str, fields: &str, template: &str, script: &str) -> String {
    let group = match kind {
        "Job" | "CronJob" => "batch/v1",
        _ => "apps/v1",
    };
    format!(
        "apiVersion: {group}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n{fields}  template:\n    metadata: {{labels: {{app: \
         {name}}}}}\n    spec:\n{template}      containers:\n      - name: main\n        image: crib.local/host\n        command: \
         [bash, -c, {script:?}]\n"
    )
}

const NEVER: &str = "      restartPolicy: Never\n";

/// The last line of `--output json`.
fn result(ended: &Ended) -> Value {
    let last = ended.out.lines().last().unwrap();
    let result: Value = serde_json::from_str(last).unwrap();
    assert_eq!(result["type"], "result", "{last}");
    result
}

#[tokio::test]
async fn example_job_succeeds_at_its_second_attempt() {
    let place = Place::new();
    let ended = place.crib(&["run", JOB]).await.exits(0);
    for words in ["the first attempt fails", "the second attempt succeeds"] {
        assert!(ended.out.contains(words), "{words}: {}", ended.out);
    }
    let news = "crib: job default/retries is complete: Reached expected number of succeeded pods";
    ended.err_has(news);
    let quiet = place.crib(&["run", "--quiet", JOB]).await.exits(0);
    assert!(!quiet.err.contains("is complete"), "{}", quiet.err);
}

#[tokio::test]
async fn run_without_replicas_prints_message_and_exits() {
    let place = Place::new();
    let manifest = object(
        "Deployment",
        "none",
        "  replicas: 0\n  selector: {matchLabels: {app: none}}\n",
        "",
        "true",
    );
    let ended = place.crib(&["run", &place.file("d.yaml", &manifest)]).await.exits(0);
    ended.err_has("crib: deployment default/none has 0 replicas and starts no pod\n");
}

#[tokio::test]
async fn pods_that_run_at_the_deadline_of_their_job_count_as_failed() {
    let place = Place::new();
    // One of the pods succeeds when it is stopped.
    let script = "trap 'exit 0' TERM; [ $JOB_COMPLETION_INDEX = 0 ] && exit 0; sleep 1000 & wait";
    let more = "  completionMode: Indexed\n  completions: 3\n  parallelism: 3\n  activeDeadlineSeconds: 5\n";
    let manifest = object("Job", "late", more, NEVER, script);
    let manifest = place.file("job.yaml", &manifest);
    let ended = place.crib(&["run", "--output", "json", &manifest]).await.exits(1);
    assert_eq!(
        result(&ended)["jobs"],
        json!([{
            "job": "default/late", "state": "Failed", "reason": "DeadlineExceeded",
            "message": "Job was active longer than specified deadline", "succeeded": 1, "failed": 2,
        }])
    );
}

#[tokio::test]
async fn job_completes_after_a_failed_pod() {
    let place = Place::new();
    std::fs::create_dir(place.path("shared")).unwrap();
    let shared = place.path("shared");
    let template = format!(
        "{NEVER}      volumes: [{{name: shared, hostPath: {{path: {}}}}}]\n",
        shared.display()
    );
    let script = "mkdir /shared/tried && exit 3; echo second pod";
    let manifest = object("Job", "work", "", &template, script)
        + "        volumeMounts: [{name: shared, mountPath: /shared}]\n";
    let manifest = place.file("job.yaml", &manifest);
    let ended = place.crib(&["run", "--output", "json", &manifest]).await.exits(0);
    let result = result(&ended);
    assert_eq!(
        result["jobs"],
        json!([{
            "job": "default/work", "state": "Complete", "reason": "CompletionsReached",
            "message": "Reached expected number of succeeded pods", "succeeded": 1, "failed": 1,
        }])
    );
    let pods = result["pods"].as_array().unwrap();
    let mut phases: Vec<&str> = pods.iter().map(|pod| pod["phase"].as_str().unwrap()).collect();
    phases.sort_unstable();
    assert_eq!(phases, ["Failed", "Succeeded"]);
}

/// In the form of `kubectl create`, but the same name each time.
#[tokio::test]
async fn job_without_name_gets_one_from_its_prefix() {
    let place = Place::new();
    let manifest = object("Job", "work", "", NEVER, "echo it works");
    let manifest = manifest.replace("metadata: {name: work}", "metadata: {generateName: work-}");
    let manifest = place.file("job.yaml", &manifest);
    let mut names = Vec::new();
    for _ in 0..2 {
        let ended = place.crib(&["run", "--output", "json", &manifest]).await.exits(0);
        ended.out_has("it works");
        names.push(result(&ended)["jobs"][0]["job"].as_str().unwrap().to_owned());
    }
    assert_eq!(names[0], names[1]);
    let suffix = names[0].strip_prefix("default/work-").unwrap_or_default();
    assert_eq!(suffix.len(), 5, "{names:?}");
}

#[tokio::test]
async fn job_fails_at_its_limit_with_exit_code_1() {
    let place = Place::new();
    let manifest = object("Job", "work", "  backoffLimit: 0\n", NEVER, "exit 7");
    let ended = place.crib(&["run", &place.file("job.yaml", &manifest)]).await.exits(1);
    let news = "crib: job default/work failed: BackoffLimitExceeded: Job has reached the specified backoff limit";
    ended.err_has(news);
}

#[tokio::test]
async fn suspended_job_is_reported_and_not_waited_for() {
    let place = Place::new();
    let manifest = object("Job", "work", "  suspend: true\n", NEVER, "exit 7");
    let ended = place.crib(&["run", &place.file("job.yaml", &manifest)]).await.exits(0);
    ended.err_has("crib: job default/work is suspended and starts no pod\n");
}

#[tokio::test]
async fn indexed_job_sets_completion_index_of_each_pod() {
    let place = Place::new();
    let fields = "  completionMode: Indexed\n  completions: 2\n  parallelism: 2\n";
    let script = "echo index $JOB_COMPLETION_INDEX";
    let manifest = object("Job", "work", fields, NEVER, script);
    let ended = place.crib(&["run", "-q", &place.file("job.yaml", &manifest)]).await.exits(0);
    for index in 0..2 {
        let line = ended.out.lines().find(|line| line.starts_with(&format!("work-{index}-")));
        let words = format!("index {index}");
        assert!(line.is_some_and(|line| line.ends_with(&words)), "{}", ended.out);
    }
}

/// The process ids of containers whose command line contains `words`.
fn processes(place: &Place, words: &str) -> Vec<Pid> {
    let left = place.left();
    let lines = left.iter().filter(|line| line.contains(words));
    lines
        .filter_map(|line| {
            let (pid, _) = line.strip_prefix("process ")?.split_once(' ')?;
            Some(Pid::from_raw(pid.parse().unwrap()))
        })
        .collect()
}

#[tokio::test]
async fn example_deployment_runs_two_pods_until_interrupted() {
    let place = Place::new();
    let mut running = place.start(&["run", DEPLOYMENT]);
    for _ in 0..2 {
        running.line_with("hello from the ConfigMap").await;
    }
    let ended = running.interrupt().await.exits(130);
    assert_eq!(ended.out.matches("goodbye").count(), 2, "{}", ended.out);
    ended.err_has("run until Ctrl-C");
}

#[tokio::test]
async fn deployment_restarts_killed_containers_of_both_pods() {
    let place = Place::new();
    let mark = place.path("").display().to_string();
    // A single process without children: a shell's child has the shell's command line for a moment.
    let script = format!("echo up; exec -a 'the container of {mark}' sleep 86400");
    let fields = "  replicas: 2\n  selector: {matchLabels: {app: web}}\n";
    let template = "      terminationGracePeriodSeconds: 0\n";
    let manifest = object("Deployment", "web", fields, template, &script);
    let mut running = place.start(&["run", &place.file("web.yaml", &manifest)]);
    for _ in 0..2 {
        running.line_with("| up").await;
    }
    let found = processes(&place, "the container of");
    assert_eq!(found.len(), 2, "{:#?}", place.left());
    for pid in found {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    for _ in 0..2 {
        running.line_with("| up").await;
    }
    running.interrupt().await.exits(130);
}

#[tokio::test]
async fn deployment_replaces_evicted_pod() {
    let place = Place::new();
    std::fs::create_dir(place.path("shared")).unwrap();
    let template = format!(
        "      volumes:\n      - {{name: shared, hostPath: {{path: {}}}}}\n      - {{name: small, emptyDir: {{sizeLimit: 1Mi}}}}\n",
        place.path("shared").display()
    );
    // The container prints first: it may be evicted as soon as the volume is too large.
    let script = "if mkdir /shared/tried; then echo first; head -c 8M /dev/zero >/small/big; else echo second; fi; exec sleep 86400";
    let manifest = object(
        "Deployment",
        "web",
        "  selector: {matchLabels: {app: web}}\n",
        &template,
        script,
    ) + "        volumeMounts:\n        - {name: shared, mountPath: /shared}\n        - {name: small, mountPath: /small}\n";
    let mut running = place.start(&["run", &place.file("web.yaml", &manifest)]);
    let first = running.line_with("| first").await;
    let second = running.line_with("| second").await;
    let pod = |line: &str| line.split('/').next().unwrap().to_owned();
    assert_ne!(pod(&first), pod(&second));
    // After bash has executed sleep, the first process ignores SIGTERM: the second signal kills it immediately.
    running.signal(Signal::SIGINT);
    running.signal(Signal::SIGTERM);
    running.end().await.exits(130);
}

#[tokio::test]
async fn deployment_is_ended_by_timeout_with_124() {
    let place = Place::new();
    let script = "trap 'exit 0' TERM; sleep 86400 & wait";
    let fields = "  selector: {matchLabels: {app: web}}\n";
    let manifest = object("Deployment", "web", fields, "", script);
    let manifest = place.file("web.yaml", &manifest);
    place.crib(&["run", "--timeout", "1s", &manifest]).await.exits(124);
}

#[tokio::test]
async fn daemon_set_has_one_pod_on_the_node() {
    let place = Place::new();
    let script = "trap 'exit 0' TERM; echo up; sleep 86400 & wait";
    let fields = "  selector: {matchLabels: {app: logs}}\n";
    let manifest = object("DaemonSet", "logs", fields, "", script);
    let manifest = place.file("logs.yaml", &manifest);
    let mut running = place.start(&["run", "--output", "json", &manifest]);
    running.line_with("\"up\"").await;
    let ended = running.interrupt().await.exits(130);
    assert_eq!(result(&ended)["pods"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn stateful_set_starts_and_ends_its_pods_in_order() {
    let place = Place::new();
    let script =
        "trap 'echo bye; exit 0' TERM; echo up; touch /dev/shm/up; while true; do sleep 0.1; done";
    let fields = "  replicas: 3\n  selector: {matchLabels: {app: db}}\n";
    // Without a probe a pod counts as ready before it has printed anything.
    let probe = "exec: {command: [test, -e, /dev/shm/up]}, periodSeconds: 1, timeoutSeconds: 30";
    let manifest = object("StatefulSet", "db", fields, "", script)
        + &format!("        readinessProbe: {{{probe}}}\n");
    let manifest = place.file("db.yaml", &manifest);
    let mut running: Running = place.start(&["run", &manifest]);
    running.line_with("db-2/main | up").await;
    let ended = running.interrupt().await.exits(130);
    let printed: Vec<&str> = ended.out.lines().collect();
    assert_eq!(
        printed,
        [
            "db-0/main | up",
            "db-1/main | up",
            "db-2/main | up",
            "db-2/main | bye",
            "db-1/main | bye",
            "db-0/main | bye",
        ]
    );
}

#[tokio::test]
async fn errors_in_templates_are_reported_with_their_paths() {
    let place = Place::new();
    let manifest = object("Deployment", "web", "", "      restartPolicy: Never\n", "exit 0")
        .replace("image:", "imgae:");
    let ended = place.crib(&["run", &place.file("web.yaml", &manifest)]).await.exits(2);
    for words in [
        "spec.selector: a value is required",
        "spec.template.spec.restartPolicy: unsupported value \"Never\": expected one of Always",
        "spec.template.spec.containers[0].imgae: unknown field \"imgae\", did you mean \"image\"?",
        "spec.template.spec.containers[0].image: a value is required",
    ] {
        assert!(ended.err.contains(words), "{words}: {}", ended.err);
    }
}

/// A CronJob whose pods run a shell script.
fn cron_job(schedule: &str, fields: &str, script: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: tick}}\nspec:\n  schedule: {schedule:?}\n{fields}  jobTemplate:\n    \
         spec:\n      backoffLimit: 0\n      template:\n        spec:\n          restartPolicy: Never\n          containers:\n          - \
         name: main\n            image: crib.local/host\n            command: [bash, -c, {script:?}]\n"
    )
}

#[tokio::test]
async fn cron_job_starts_jobs_until_interrupted() {
    let place = Place::new();
    let manifest = cron_job("@every 1s", "  concurrencyPolicy: Forbid\n", "echo tock");
    let mut running = place.start(&["run", &place.file("tick.yaml", &manifest)]);
    let first = running.line_with("| tock").await;
    let second = running.line_with("| tock").await;
    let pod = |line: &str| {
        let part = line.split('/').find(|part| part.starts_with("tick-"));
        part.map(str::to_owned)
    };
    assert!(pod(&first).is_some(), "{first}");
    assert_ne!(pod(&first), pod(&second));
    let ended = running.interrupt().await.exits(130);
    ended.err_has("crib: cronjob default/tick starts job tick-");
}

#[rstest]
#[case::succeeds("echo once", 0, "Complete")]
#[case::fails("exit 3", 1, "Failed")]
#[tokio::test]
async fn run_now_starts_each_cron_job_once_and_ends_with_it(
    #[case] script: &str,
    #[case] code: i32,
    #[case] state: &str,
) {
    let place = Place::new();
    let manifest = cron_job("@yearly", "  suspend: true\n", script);
    let manifest = place.file("tick.yaml", &manifest);
    let ended = place.crib(&["run", "--now", "--output", "json", &manifest]).await.exits(code);
    let result = result(&ended);
    let jobs = result["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 1, "{result}");
    assert_eq!(jobs[0]["state"], state);
}

#[tokio::test]
async fn stateful_set_backs_off_when_the_node_rejects_its_pod() {
    let place = Place::new();
    let manifest =
        object("StatefulSet", "big", "  selector: {matchLabels: {app: big}}\n", "", "sleep 1000")
            + "        resources: {requests: {memory: 900000Gi}}\n";
    let manifest = place.file("set.yaml", &manifest);
    let ended = place.crib(&["run", "--timeout", "4s", &manifest]).await.exits(124);
    let rejected = ended.err.lines().filter(|line| line.contains("OutOfmemory"));
    let count = rejected.count();
    assert!((2..=12).contains(&count), "{count}: {}", ended.err);
}

#[tokio::test]
async fn pods_that_the_node_has_no_room_for_are_counted() {
    let place = Place::new();
    let fields = "  replicas: 2147483647\n  selector: {matchLabels: {app: many}}\n";
    let manifest = object("Deployment", "many", fields, "", "sleep 1000")
        + "        resources: {requests: {memory: 900000Gi}}\n";
    let manifest = place.file("many.yaml", &manifest);
    let printed = "deployment default/many: 2147483537 pods do not fit on the node, which takes 110 pods at once";
    let ended = place.crib(&["explain-run", &manifest]).await.exits(0);
    ended.out_has(printed);
    let ended = place.crib(&["run", "--timeout", "2s", &manifest]).await.exits(124);
    assert_eq!(ended.err.matches(printed).count(), 1, "{}", ended.err);
}

#[tokio::test]
async fn failed_pod_beside_a_deployment_is_named_and_its_grace_does_not_count() {
    let place = Place::new();
    let selector = "  selector: {matchLabels: {app: web}}\n";
    let grace = "      terminationGracePeriodSeconds: 0\n";
    let manifest = format!(
        "{}---\n{}",
        crate::runs::run::pod("bad", "exit 7"),
        object("Deployment", "web", selector, grace, "sleep 1000")
    );
    let manifest = place.file("m.yaml", &manifest);
    let has_failed = |ended: &Ended| ended.err.contains("pod default/bad failed");
    let args = ["--quiet", &manifest];
    let ended = crate::runs::run::run_until_timeout(&place, &args, has_failed).await;
    assert_eq!(
        ended.err,
        "crib: timed out: ending the pods\ncrib: pod default/bad failed: container main ended with exit code 7 (Error)\n"
    );
}

#[tokio::test]
async fn pods_know_their_service_account() {
    let place = Place::new();
    let variable =
        "    env: [{name: ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}]\n";
    let pod = crate::runs::run::pod("p", "echo account $ACCOUNT") + variable;
    let named = crate::runs::run::pod("q", "echo account $ACCOUNT")
        .replace("spec:", "spec:\n  serviceAccount: other")
        + variable;
    let work = object("Job", "work", "", NEVER, "echo account $ACCOUNT")
        + &variable.replace("    env", "        env");
    let manifest = place.file("m.yaml", &format!("{pod}---\n{named}---\n{work}"));
    let ended = place.crib(&["run", &manifest]).await.exits(0);
    assert_eq!(ended.out.matches("account default").count(), 2, "{}", ended.out);
    assert_eq!(ended.out.matches("account other").count(), 1, "{}", ended.out);
}
