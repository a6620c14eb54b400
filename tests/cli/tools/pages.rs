//! The pages that `crib check` and `crib bench` write, in a browser.

use std::path::PathBuf;

use bench::{Machine, Report, Row, Section, Subject, Unit};

use crate::browser::Browser;
use crate::command::*;

/// A runtime's text that would run a script if a page did not escape it.
const HOSTILE: &str =
    "</title></script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>";

/// The counts on the page of a check: the displayed text, and the number of visible rules.
const SHOWN: &str = "[document.getElementById('shown').textContent, \
    document.querySelectorAll('.rule:not([hidden])').length]";

/// Whether hostile text was executed, and the number of scripts and images of the page.
const INERT: &str = "[typeof window.hacked, document.scripts.length, document.images.length]";

#[tokio::test]
async fn pages_show_reports_and_run_no_hostile_text() {
    harness::needs!(Chromium);
    let place = Place::new();
    let mut browser = Browser::start(&place).await;
    check_filters_rules(&place, &mut browser).await;
    comparison_shows_changes(&place, &mut browser).await;
    bench_has_plots(&place, &mut browser).await;
    assert_eq!(browser.close().await, Vec::<String>::new());
    // Chromium's other processes write into the place until they exit.
    place.wait_until_clean().await;
}

/// Fails if the page is wider than the screen of a phone.
async fn fits_phone(browser: &mut Browser) {
    let phone = json!({"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true});
    browser.call("Emulation.setDeviceMetricsOverride", phone).await;
    let widths = "[innerWidth, document.documentElement.scrollWidth]";
    assert_eq!(browser.value(widths).await, json!([360, 360]));
    browser.call("Emulation.clearDeviceMetricsOverride", json!({})).await;
}

/// The report on a runtime that has hostile text in its version and violates a rule with it.
async fn check_page(place: &Place) -> PathBuf {
    let (runtime, upstream) = place.runtime().await;
    let socket = place.path("p");
    let listen = socket.to_str().unwrap();
    let faults = [
        format!("Version set runtime_name {}", json!(HOSTILE)),
        format!(
            "Status set status.conditions {}",
            json!([{"type": "RuntimeReady", "status": false, "message": HOSTILE}])
        ),
    ];
    let mut args = vec!["proxy", "--listen", listen, "--upstream", &upstream];
    for fault in &faults {
        args.extend(["--fault", fault]);
    }
    let mut proxy = place.start(&args);
    proxy.line_with("listening").await;
    let (endpoint, page) = (format!("unix://{listen}"), place.path("page.html"));
    let html = format!("html={}", page.display());
    // The runtime's name is not crib's, so the image must be named.
    let args = [
        "check",
        "--runtime-endpoint",
        &endpoint,
        "--image",
        "crib.local/host",
        "--select",
        "CRI-RTM-001,CRI-RTM-002,CRI-RTM-003,CRI-SBX-001",
        "--report",
        &html,
    ];
    place.crib(&args).await.exits(1);
    proxy.stop().await;
    runtime.stop().await;
    page
}

async fn check_filters_rules(place: &Place, browser: &mut Browser) {
    let page = check_page(place).await;
    browser.open(&page, "").await;
    let all = json!(["4 of 4 rules", 4]);
    assert_eq!(browser.value(SHOWN).await, all);
    // The runtime's text is shown as text, and was not executed.
    let title = browser.value("document.querySelector('h1').textContent").await;
    assert!(title.as_str().unwrap().contains(HOSTILE), "{title}");
    assert_eq!(browser.value(INERT).await, json!(["undefined", 1, 0]));

    // The failure is expanded, with its calls as bars and as text.
    let failed = "[...document.querySelectorAll('.rule[open]')].map((rule) => [rule.id, rule.dataset.result])";
    let expected = json!([["CRI-RTM-003", "fail"]]);
    assert_eq!(browser.value(failed).await, expected);
    let calls = "[...document.querySelectorAll('#CRI-RTM-003 .bar')].map((bar) => [bar.textContent, bar.clientWidth > 0, \
        document.querySelector(bar.getAttribute('href')).tagName])";
    let calls = browser.value(calls).await;
    let expected = json!(["Status", true, "DETAILS"]);
    assert!(calls.as_array().unwrap().contains(&expected), "{calls}");

    // A number in the summary is a link that filters its rules.
    let follow = "new Promise((done) => { addEventListener('hashchange', done, {once: true}); \
        document.querySelector('#by-severity tfoot a.fail').click(); }).then(() => true)";
    browser.value(follow).await;
    let one = json!(["1 of 4 rules", 1]);
    assert_eq!(browser.value(SHOWN).await, one);
    assert_eq!(browser.value("document.getElementById('result').value").await, "fail");

    // The URL of a view restores it, and a URL with an unknown word shows all rules.
    browser.open(&page, "#area=sandbox").await;
    assert_eq!(browser.value(SHOWN).await, one);
    browser.open(&page, "#area=dance").await;
    assert_eq!(browser.value(SHOWN).await, all);
    browser.open(&page, "#CRI-SBX-001-call-1").await;
    let open = "document.querySelector('#CRI-SBX-001-call-1').open && document.querySelector('#CRI-SBX-001').open";
    assert_eq!(browser.value(open).await, true);

    // The keyboard: typing into the field, and Enter on a rule.
    browser.open(&page, "").await;
    browser.value("document.getElementById('text').focus()").await;
    let params = json!({"text": "SBX-001"});
    browser.call("Input.insertText", params).await;
    assert_eq!(browser.value(SHOWN).await, one);
    assert_eq!(browser.value("location.hash").await, "#text=SBX-001");
    browser.value("document.querySelector('#CRI-SBX-001 > summary').focus()").await;
    browser.press("Enter", 13, "\r").await;
    let open = "document.getElementById('CRI-SBX-001').open";
    assert_eq!(browser.value(open).await, true);
    browser.value("document.getElementById('text').focus()").await;
    let params = json!({"text": "nothing has this"});
    browser.call("Input.insertText", params).await;
    let none = "document.getElementById('none').checkVisibility()";
    assert_eq!(browser.value(none).await, true);

    browser.open(&page, "").await;
    browser.value("document.getElementById('toggle').click()").await;
    fits_phone(browser).await;
}

async fn comparison_shows_changes(place: &Place, browser: &mut Browser) {
    let report = |result: &str, median: f64| {
        json!({
            "runtime": HOSTILE,
            "rules": [
                {"id": "CRI-CTR-001", "severity": "must", "says": "It holds.", "result": result, "reason": HOSTILE},
                {"id": "CRI-CTR-002", "severity": "must", "says": "It stays.", "result": "pass", "reason": ""},
            ],
            "calls": [{"call": "Version", "count": 9, "medianSeconds": median}],
        })
        .to_string()
    };
    let old = place.file("old", &report("pass", 0.01));
    let new = place.file("new", &report("fail", 0.03));
    let page = place.path("comparison.html");
    let html = ["--html", page.to_str().unwrap()];
    let args = ["check", "compare", &old, &new];
    place.crib(&[&args[..], &html].concat()).await.exits(1);
    browser.open(&page, "").await;
    let headings = "[...document.querySelectorAll('h2')].map((one) => one.textContent)";
    let headings = browser.value(headings).await;
    for heading in ["new failures: 1", "mended: 0", "slower calls: 1"] {
        let shown = headings.as_array().unwrap();
        assert!(shown.contains(&heading.into()), "{heading}: {headings}");
    }
    assert_eq!(browser.value(INERT).await, json!(["undefined", 1, 0]));
    // The reason of the only change is in the page, and is visible when the rule is expanded with the keyboard.
    let reason = "[...document.querySelectorAll('.rule')].map((rule) => \
        [rule.querySelector('code').textContent, rule.querySelector('pre').textContent.includes('onerror'), \
        rule.querySelector('pre').checkVisibility()])";
    let hidden = json!([["CRI-CTR-001", true, false]]);
    assert_eq!(browser.value(reason).await, hidden);
    browser.value("document.querySelector('.rule > summary').focus()").await;
    browser.press("Enter", 13, "\r").await;
    let shown = json!([["CRI-CTR-001", true, true]]);
    assert_eq!(browser.value(reason).await, shown);
    let slower = "[...document.querySelectorAll('table tbody tr')].map((row) => row.textContent)";
    let expected = json!(["Version10.0 ms30.0 ms"]);
    assert_eq!(browser.value(slower).await, expected);
}

fn benchmark() -> Report {
    let row = |section, name: &str, at, samples: [Vec<f64>; 2], floor: &[f64]| Row {
        section,
        name: name.to_owned(),
        at,
        unit: Unit::Milliseconds,
        samples: samples.into(),
        floor: floor.to_vec(),
    };
    Report {
        machine: Machine { cores: 2, kernel: HOSTILE.to_owned(), root: true, load: [0.0, 1.0] },
        subjects: ["crib 1.0", HOSTILE]
            .map(|name| Subject { name: name.to_owned(), endpoint: format!("unix:///{HOSTILE}") })
            .into(),
        rows: vec![
            row(Section::Calls, HOSTILE, None, [vec![1.0, 2.0], vec![20.0, 10.0]], &[0.5]),
            row(Section::Growth, "RunPodSandbox", Some(10), [vec![3.0], vec![]], &[]),
            row(Section::Events, "CONTAINER_STARTED_EVENT", None, [vec![0.0], vec![0.0]], &[]),
        ],
        notes: vec![HOSTILE.to_owned()],
        failures: vec![HOSTILE.to_owned()],
        seconds: 60.0,
    }
}

async fn bench_has_plots(place: &Place, browser: &mut Browser) {
    let file = place.file("bench.json", &serde_json::to_string(&benchmark()).unwrap());
    let page = place.path("bench.html");
    let html = format!("html={}", page.display());
    place.crib(&["bench", "report", &file, "--report", &html]).await.exits(0);
    browser.open(&page, "").await;
    let title = browser.value("document.querySelector('h1').textContent").await;
    assert_eq!(title, format!("crib 1.0 and {HOSTILE}"));
    assert_eq!(browser.value(INERT).await, json!(["undefined", 0, 0]));
    // A logarithmic axis has no zero: a section of zeros has no plot.
    let sections = "[...document.querySelectorAll('h2')].map((title) => [title.textContent, title.nextElementSibling.tagName])";
    let expected = json!([
        ["Calls of a pod lifecycle", "svg"],
        ["Calls of a pod lifecycle, by the number of running pods", "svg"],
        ["Latency of events", "DIV"],
    ]);
    assert_eq!(browser.value(sections).await, expected);
    // Medians from left to right: the kernel alone, the first runtime, the second.
    let order = "[...document.querySelectorAll('svg')[0].querySelectorAll('circle')] \
        .sort((a, b) => a.getBoundingClientRect().x - b.getBoundingClientRect().x).map((circle) => circle.getAttribute('class'))";
    assert_eq!(browser.value(order).await, json!(["k", "s0", "s1"]));
    fits_phone(browser).await;
}
