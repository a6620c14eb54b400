//! The page of `crib bench --report html=FILE`, in a browser.

use harness::bench::{Machine, Report, Row, Section, Subject, Unit};
use serde_json::json;

use super::browser::Browser;
use super::command::Place;

/// Text of a runtime that would run a script if the page did not escape it.
const HOSTILE: &str =
    "</title><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>";

fn report() -> Report {
    let row = |section, name: &str, at, samples: [Vec<f64>; 2], floor: &[f64]| Row {
        section,
        name: name.to_owned(),
        at,
        unit: Unit::Milliseconds,
        samples: samples.into(),
        floor: floor.to_vec(),
    };
    Report {
        machine: Machine {
            cores: 2,
            kernel: HOSTILE.to_owned(),
            root: true,
            load: [0.0, 1.0],
        },
        subjects: ["crib 1.0", HOSTILE]
            .map(|name| Subject {
                name: name.to_owned(),
                endpoint: format!("unix:///{HOSTILE}"),
            })
            .into(),
        rows: vec![
            row(
                Section::Calls,
                HOSTILE,
                None,
                [vec![1.0, 2.0], vec![20.0, 10.0]],
                &[0.5],
            ),
            row(
                Section::Growth,
                "RunPodSandbox",
                Some(10),
                [vec![3.0], vec![]],
                &[],
            ),
            row(
                Section::Events,
                "CONTAINER_STARTED_EVENT",
                None,
                [vec![0.0], vec![0.0]],
                &[],
            ),
        ],
        notes: vec![HOSTILE.to_owned()],
        failures: vec![HOSTILE.to_owned()],
        seconds: 60.0,
    }
}

#[tokio::test]
async fn bench_page_has_plots_and_runs_no_hostile_text() {
    let place = Place::new();
    let Some(mut browser) = Browser::start(&place).await else {
        harness::skip!(
            "bench_page_has_plots_and_runs_no_hostile_text",
            "there is no chromium: apt-get install chromium"
        );
    };
    let file = place.file("bench.json", &serde_json::to_string(&report()).unwrap());
    let page = place.path("page.html");
    let html = format!("html={}", page.display());
    let written = place
        .crib(&["bench", "report", &file, "--report", &html])
        .await;
    assert_eq!(written.code, Some(0), "{written:?}");
    browser.open(&page, "").await;
    let title = browser
        .value("document.querySelector('h1').textContent")
        .await;
    assert_eq!(title, format!("crib 1.0 and {HOSTILE}"));
    let inert = "[typeof window.hacked, document.scripts.length, document.images.length]";
    assert_eq!(browser.value(inert).await, json!(["undefined", 0, 0]));
    // A logarithmic axis has no zero: a section of zeros has no plot.
    let sections = "[...document.querySelectorAll('h2')].map((title) => [title.textContent, title.nextElementSibling.tagName])";
    let expected = json!([
        ["Calls of a pod's life", "svg"],
        [
            "Calls of a pod's life, by the number of running pods",
            "svg"
        ],
        ["Latency of events", "DIV"],
    ]);
    assert_eq!(browser.value(sections).await, expected);
    // Medians from left to right: the kernel alone, the first runtime, the second.
    let order = "[...document.querySelectorAll('svg')[0].querySelectorAll('circle')] \
        .sort((a, b) => a.getBoundingClientRect().x - b.getBoundingClientRect().x).map((circle) => circle.getAttribute('class'))";
    assert_eq!(browser.value(order).await, json!(["k", "s0", "s1"]));
    // On a phone nothing is wider than the screen.
    let phone = json!({"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true});
    browser
        .call("Emulation.setDeviceMetricsOverride", phone)
        .await;
    let widths = "[innerWidth, document.documentElement.scrollWidth]";
    assert_eq!(browser.value(widths).await, json!([360, 360]));
    assert_eq!(browser.close().await, Vec::<String>::new());
    // Its other processes write into the place as they end.
    place.wait_until_clean().await;
}
