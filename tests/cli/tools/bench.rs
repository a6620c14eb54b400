//! `crib bench`.

use std::path::Path;
use std::time::Duration;

use bench::report::markdown;
use bench::{Report, Section};
use nix::sys::signal::Signal;
use tokio::io::AsyncReadExt as _;

use crate::command::*;
use crate::tools::check::start_proxy;

/// The time limit of a benchmark: it takes seconds, but many times as long while all other tests run.
const WAIT_LIMIT: Duration = Duration::from_secs(300);

/// Runs a benchmark to its end.
async fn bench(place: &Place, endpoint: &str, options: &[&str]) -> Ended {
    let args = ["bench", "--runtime-endpoint", endpoint, "--quick"];
    let args = [&args[..], options, &["--output", "json"]].concat();
    place.end_within(WAIT_LIMIT, place.command(&args)).await
}

/// Every row of a report as `SECTION NAME`, after a check that each has samples of each runtime, and floor samples where
/// applicable.
fn rows(report: &Report) -> Vec<String> {
    let mut names = Vec::new();
    for row in &report.rows {
        assert_eq!(row.samples.len(), report.subjects.len(), "{row:?}");
        // Only crib's own daemon is started, and only once for both.
        let measured = match row.section == Section::Startup {
            true => 1,
            false => report.subjects.len(),
        };
        for samples in &row.samples[..measured] {
            let sound = samples.iter().all(|sample| *sample >= 0.0);
            assert!(!samples.is_empty() && sound, "{row:?}");
        }
        names.push(format!("{} {}", row.section.name(), row.name));
    }
    names
}

fn report(ended: &Ended) -> Report {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Report = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report.failures, Vec::<String>::new());
    report
}

/// Starts another runtime in the place.
async fn second_runtime(place: &Place) -> (Running, String) {
    let (socket, state) = (place.path("s2"), place.path("state2"));
    let (socket, state) = (socket.to_str().unwrap(), state.to_str().unwrap());
    let mut runtime =
        place.start(&["runtime", "--listen", socket, "--state-dir", state, "--ephemeral"]);
    runtime.line_with("listening").await;
    (runtime, format!("unix://{socket}"))
}

/// A socket that accepts connections and never responds.
fn silent(place: &Place) -> (tokio::net::UnixListener, String) {
    let socket = place.path("silent");
    let endpoint = format!("unix://{}", socket.display());
    (tokio::net::UnixListener::bind(socket).unwrap(), endpoint)
}

#[tokio::test]
async fn runtime_that_never_answers_is_named() {
    let place = Place::new();
    let (_silent, endpoint) = silent(&place);
    let args = ["bench", "--runtime-endpoint", &endpoint, "--deadline", "1s"];
    let ended = place.crib(&args).await.exits(3);
    ended.err_has("/silent does not respond to Version: no answer within 1s");
}

#[tokio::test]
async fn signal_ends_bench_whose_runtime_never_answers() {
    let place = Place::new();
    let (silent, endpoint) = silent(&place);
    let bench = place.start(&["bench", "--runtime-endpoint", &endpoint]);
    // The first connection is a probe that sends nothing.
    let mut connection = silent.accept().await.unwrap().0;
    while connection.read_u8().await.is_err() {
        connection = silent.accept().await.unwrap().0;
    }
    bench.signal(Signal::SIGTERM);
    bench.end().await.exits(130);
}

#[tokio::test]
async fn quick_bench_measures_every_section_and_leaves_nothing() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let file = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let (html, markdown) = (file("page"), file("document"));
    let reports = [format!("html={html}"), format!("markdown={markdown}")];
    let mut options = vec!["--rounds", "2", "--sizes", "1,2", "--pods", "1"];
    for report in &reports {
        options.extend(["--report", report]);
    }
    let measured = bench(&place, &endpoint, &options).await;
    let report = report(&measured);
    let rows = rows(&report);
    for expected in [
        "startup from process start to first response",
        "calls RunPodSandbox",
        "calls from nothing to a running container",
        "throughput pod lifecycles",
        "growth ListPodSandbox",
        "density processes of a pod",
        "events CONTAINER_STOPPED_EVENT",
        "pulls one layer of 4 files of 1 MB",
        "logs 10000 lines of 100 bytes",
    ] {
        assert!(rows.iter().any(|row| row == expected), "{expected}: {rows:#?}");
    }
    // The kernel alone is measured, or a note has the reason.
    let floor = report.rows.iter().any(|row| !row.floor.is_empty());
    let reason = report.notes.iter().any(|note| note.contains("kernel"));
    assert!(floor != reason, "{:?}", report.notes);
    // An earlier report can be shown in each format.
    let json = place.file("json", &measured.out);
    let again = file("again");
    let again_option = format!("markdown={again}");
    let shown = place.crib(&["bench", "report", &json, "--report", &again_option]).await.exits(0);
    shown.out_has("Calls of a pod lifecycle\n");
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    assert_eq!(read(&again), read(&markdown));
    assert!(read(&html).contains("<h2>Image pulls</h2>"));
    assert_eq!(pods(&place, &endpoint).await, "");
    assert_eq!(bench_images(&place, &endpoint).await, "");
    assert_eq!(temporary(&place), Vec::<String>::new());
    runtime.stop().await;
}

#[tokio::test]
async fn two_runtimes_are_measured_in_turns() {
    let place = Place::new();
    let (runtime, first) = place.runtime().await;
    let (other, second) = second_runtime(&place).await;
    let options = ["--vs", &second, "--select", "calls,throughput"];
    let measured = bench(&place, &first, &options).await;
    let report = report(&measured);
    let endpoints: Vec<&str> =
        report.subjects.iter().map(|subject| subject.endpoint.as_str()).collect();
    assert_eq!(endpoints, [&first, &second]);
    rows(&report);
    let json: Value = serde_json::from_str(&measured.out).unwrap();
    for row in json["rows"].as_array().unwrap() {
        let seen = row["samples"][0].as_array().map(Vec::len);
        assert_eq!(seen, row["samples"][1].as_array().map(Vec::len));
        assert!(row["ratio"]["p50"].as_f64().unwrap() > 0.0, "{row}");
    }
    for endpoint in [&first, &second] {
        assert_eq!(pods(&place, endpoint).await, "");
    }
    runtime.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn signal_ends_bench_and_removes_its_pods() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let bench = endless(&place, &endpoint, "growth").await;
    let ended = bench.interrupt().await.exits(130);
    // Without a terminal, each step prints a line.
    let steps =
        "crib: preparing images\ncrib: Calls of a pod lifecycle, by the number of running pods\n";
    assert!(ended.err.starts_with(steps), "{}", ended.err);
    ended.err_has(
        "\ncrib: received SIGINT: removing the pods of the benchmark; a second signal exits immediately\ncrib: removing the \
         pods of the benchmark\ncrib: interrupted\n",
    );
    assert_eq!(pods(&place, &endpoint).await, "");
    assert_eq!(bench_images(&place, &endpoint).await, "");
    assert_eq!(temporary(&place), Vec::<String>::new());
    runtime.stop().await;
}

#[tokio::test]
async fn interrupted_bench_shows_what_it_has_measured() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let bench = endless(&place, &endpoint, "calls,growth").await;
    let ended = bench.interrupt().await.exits(130);
    for reported in ["RunPodSandbox", "interrupted: only what was measured before is shown"] {
        ended.out_has(reported);
    }
    runtime.stop().await;
}

#[tokio::test]
async fn call_that_hangs_fails_its_section() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &["StartContainer hang"]).await;
    let args = ["bench", "--runtime-endpoint", &endpoint, "--quick"];
    // Every other call must be answered within this deadline.
    let args = [&args[..], &["--select", "calls", "--deadline", "10s"]].concat();
    let ended = place.crib(&args).await.exits(1);
    let reported = format!(
        "StartContainer failed at {}: no answer within 10s",
        endpoint.trim_start_matches("unix://")
    );
    ended.out_has(&reported);
    proxy.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn next_bench_removes_what_a_killed_one_left() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    // The call does not reach the runtime, which would execute it after the client's end.
    let (proxy, endpoint, trace) = start_proxy(&place, &upstream, &["StartContainer hang"]).await;
    let args = ["bench", "--runtime-endpoint", &endpoint];
    let killed = place.start(&[&args[..], &["--select", "calls"]].concat());
    eventually("a container of the benchmark", || {
        let text = std::fs::read_to_string(&trace).unwrap_or_default();
        match text.contains("\"method\":\"CreateContainer\"") {
            true => Vec::new(),
            false => vec![text],
        }
    })
    .await;
    killed.signal(Signal::SIGKILL);
    let ended = killed.end().await;
    assert_eq!(ended.code, None, "{ended:?}");
    assert_ne!(pods(&place, &upstream).await, "");
    assert_ne!(temporary(&place), Vec::<String>::new());
    let next = bench(&place, &upstream, &["--select", "calls"]).await;
    report(&next);
    assert_eq!(pods(&place, &upstream).await, "");
    assert_eq!(bench_images(&place, &upstream).await, "");
    assert_eq!(temporary(&place), Vec::<String>::new());
    proxy.stop().await;
    runtime.stop().await;
    place.wait_until_clean().await;
}

#[tokio::test]
async fn failed_section_exits_1_and_keeps_the_others() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let faults = ["ListContainers answer INTERNAL"];
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &faults).await;
    let ended = bench(&place, &endpoint, &["--select", "calls,events"]).await.exits(1);
    let report: Report = serde_json::from_str(&ended.out).unwrap();
    let [failure] = report.failures.as_slice() else {
        panic!("{:?}", report.failures);
    };
    assert!(failure.starts_with("calls: ListContainers failed at "), "{failure}");
    assert!(report.of(Section::Events).next().is_some());
    assert_eq!(pods(&place, &upstream).await, "");
    proxy.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn startup_with_a_long_temporary_directory_names_the_limit_and_tmpdir() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let far = place.path(&format!("tmp/{}", "d".repeat(100)));
    std::fs::create_dir(&far).unwrap();
    let args = ["bench", "--runtime-endpoint", &endpoint, "--quick", "--select", "startup"];
    let mut command = place.command(&[&args[..], &["--output", "json"]].concat());
    command.env("TMPDIR", &far);
    let ended = place.end_within(WAIT_LIMIT, command).await.exits(1);
    let report: Report = serde_json::from_str(&ended.out).unwrap();
    let [failure] = report.failures.as_slice() else {
        panic!("{:?}", report.failures);
    };
    let expected =
        "a unix socket path can have at most 107; set TMPDIR to a directory with a shorter path";
    assert!(failure.starts_with("startup: ") && failure.ends_with(expected), "{failure}");
    // It left nothing in the directory.
    std::fs::remove_dir(&far).unwrap();
    runtime.stop().await;
}

#[tokio::test]
async fn bench_without_runtime_exits_3_and_bad_options_exit_2() {
    let place = Place::new();
    let endpoint = format!("unix://{}", place.path("none").display());
    let select = ["bench", "--select", "logs", "--skip", "logs"];
    let none = place.file("none.json", "{}");
    let missing = place.path("missing.json");
    let read = ["bench", "report", &none];
    let missing = ["bench", "report", missing.to_str().unwrap()];
    for (args, code, message) in [
        (
            &["bench", "--runtime-endpoint", &endpoint][..],
            3,
            "failed to connect to the runtime at ",
        ),
        (&select, 2, "no section is left"),
        (&["bench", "--select", "speed"], 2, "no section is named \"speed\""),
        (&["bench", "--rounds", "0"], 2, "invalid value '0'"),
        (&read, 2, "is not a report of `crib bench`"),
        (&missing, 2, "failed to read "),
    ] {
        let ended = place.crib(args).await;
        assert_eq!(ended.code, Some(code), "{args:?} {ended:?}");
        assert!(ended.err.contains(message), "{message}: {ended:?}");
    }
    let (runtime, endpoint) = place.runtime().await;
    let none = place.path("none");
    let args = ["bench", "--runtime-endpoint", &endpoint, "--vs", none.to_str().unwrap()];
    let ended = place.crib(&args).await.exits(3);
    ended.err_has("does not respond to Version");
    runtime.stop().await;
}

#[test]
fn performance_document_shows_its_report() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap();
    let report: Report = serde_json::from_str(&read("performance.json")).unwrap();
    let document = read("performance.md");
    let heading = "\n# Results\n";
    let (prose, _) = document.split_once(heading).unwrap();
    let expected = format!("{prose}{heading}\n{}", markdown(&report));
    if std::env::var_os("CRIB_UPDATE_DOCS").is_some() {
        std::fs::write(docs.join("performance.md"), &expected).unwrap();
        return;
    }
    assert!(
        document == expected,
        "docs/performance.md does not show docs/performance.json: run this test with CRIB_UPDATE_DOCS=1 to update it"
    );
}

#[tokio::test]
async fn benchmarks_are_compared_row_by_row() {
    let place = Place::new();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance.json");
    let old = docs.to_str().unwrap();
    let ended = place.crib(&["bench", "compare", old, old]).await.exits(0);
    ended.out_has("\n0 worse, 0 better, ");

    let mut report: Report = serde_json::from_slice(&std::fs::read(&docs).unwrap()).unwrap();
    let slower = "StartContainer";
    let rows = report.rows.iter_mut();
    for row in rows.filter(|row| row.name == slower && row.section == Section::Calls) {
        row.samples[0].iter_mut().for_each(|sample| *sample *= 10.0);
    }
    let new = place.file("new.json", &serde_json::to_string(&report).unwrap());
    let ended = place.crib(&["bench", "compare", old, &new]).await.exits(1);
    ended.out_has("\n1 worse, 0 better, ");
    let line = ended.out.lines().find(|line| line.ends_with("worse"));
    assert!(line.is_some_and(|line| line.contains(slower)), "{ended:?}");

    let none = place.file("none.json", "{}");
    let ended = place.crib(&["bench", "compare", old, &none]).await.exits(2);
    ended.err_has("is not a report of `crib bench`");
}

/// Starts a benchmark that does not end by itself, and waits until it has several pods.
async fn endless(place: &Place, endpoint: &str, sections: &str) -> Running {
    let args = ["bench", "--runtime-endpoint", endpoint, "--quick"];
    let bench = place.start(&[&args[..], &["--select", sections, "--sizes", "60000"]].concat());
    // Sections before the growth run one or two pods at a time.
    eventually("ten pods of the benchmark", || {
        let directories = temporary(place).into_iter();
        let logs = directories.map(|directory| Path::new(&directory).join("logs"));
        let pods = logs.filter_map(|logs| std::fs::read_dir(logs).ok()).flatten();
        let pods = pods.count();
        if pods < 10 { vec![format!("{pods} pods")] } else { Vec::new() }
    })
    .await;
    bench
}

/// The ids of all pods.
async fn pods(place: &Place, endpoint: &str) -> String {
    let listed = place.crib(&["pods", "--quiet", "--runtime-endpoint", endpoint]).await.exits(0);
    listed.out
}

/// The lines of images from a benchmark.
async fn bench_images(place: &Place, endpoint: &str) -> String {
    let listed = place.crib(&["images", "--runtime-endpoint", endpoint]).await.exits(0);
    let lines = listed.out.lines();
    lines.filter(|line| line.contains("crib-bench-")).collect()
}

/// The entries of the temporary directory.
fn temporary(place: &Place) -> Vec<String> {
    let entries = std::fs::read_dir(place.path("tmp")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path().display().to_string());
    paths.collect()
}
