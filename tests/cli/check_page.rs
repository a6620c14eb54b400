//! The page of `crib check --report html=FILE`, in a browser.

use std::path::PathBuf;

use super::browser::Browser;
use super::command::Place;

/// Text of the runtime that would run a script if the page did not escape it.
const HOSTILE: &str =
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>";

/// The counts of the page: what it says, and how many rules can be seen.
const SHOWN: &str = "[document.getElementById('shown').textContent, \
    document.querySelectorAll('.rule:not([hidden])').length]";

/// The report on a runtime that has hostile text in each version and breaks a rule with it.
async fn report(place: &Place) -> PathBuf {
    let (runtime, upstream) = place.runtime().await;
    let socket = place.path("p");
    let listen = socket.to_str().unwrap();
    let faults = [
        format!("Version set runtime_name {}", serde_json::json!(HOSTILE)),
        format!(
            "Status set status.conditions {}",
            serde_json::json!([{"type": "RuntimeReady", "status": false, "message": HOSTILE}])
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
    // Its name is not crib's, so the image must be named.
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
    let checked = place.crib(&args).await;
    assert_eq!(checked.code, Some(1), "{checked:?}");
    proxy.stop().await;
    runtime.stop().await;
    page
}

#[tokio::test]
async fn page_filters_rules_and_runs_no_hostile_text() {
    let place = Place::new();
    let Some(mut browser) = Browser::start(&place).await else {
        harness::skip!(
            "page_filters_rules_and_runs_no_hostile_text",
            "there is no chromium: apt-get install chromium"
        );
    };
    let page = report(&place).await;
    browser.open(&page, "").await;
    let all = serde_json::json!(["4 of 4 rules", 4]);
    assert_eq!(browser.value(SHOWN).await, all);
    // The text of the runtime is there as text, and did not run.
    let title = browser
        .value("document.querySelector('h1').textContent")
        .await;
    assert!(title.as_str().unwrap().contains(HOSTILE), "{title}");
    let inert = "[typeof window.hacked, document.scripts.length, document.images.length]";
    let expected = serde_json::json!(["undefined", 1, 0]);
    assert_eq!(browser.value(inert).await, expected);

    // The failure is open, with its calls as bars and as text.
    let failed = "[...document.querySelectorAll('.rule[open]')].map((rule) => [rule.id, rule.dataset.result])";
    let expected = serde_json::json!([["CRI-RTM-003", "fail"]]);
    assert_eq!(browser.value(failed).await, expected);
    let calls = "[...document.querySelectorAll('#CRI-RTM-003 .bar')].map((bar) => [bar.textContent, bar.clientWidth > 0, \
        document.querySelector(bar.getAttribute('href')).tagName])";
    let calls = browser.value(calls).await;
    let expected = serde_json::json!(["Status", true, "DETAILS"]);
    assert!(calls.as_array().unwrap().contains(&expected), "{calls}");

    // A number of the summary is a link to the rules that it counts.
    let follow = "new Promise((done) => { addEventListener('hashchange', done, {once: true}); \
        document.querySelector('#by-severity tfoot a.fail').click(); }).then(() => true)";
    browser.value(follow).await;
    let one = serde_json::json!(["1 of 4 rules", 1]);
    assert_eq!(browser.value(SHOWN).await, one);
    assert_eq!(
        browser
            .value("document.getElementById('result').value")
            .await,
        "fail"
    );

    // The address of a view shows it again, and one with an unknown word shows all.
    browser.open(&page, "#area=sandbox").await;
    assert_eq!(browser.value(SHOWN).await, one);
    browser.open(&page, "#area=dance").await;
    assert_eq!(browser.value(SHOWN).await, all);
    browser.open(&page, "#CRI-SBX-001-call-1").await;
    let open = "document.querySelector('#CRI-SBX-001-call-1').open && document.querySelector('#CRI-SBX-001').open";
    assert_eq!(browser.value(open).await, true);

    // The keyboard: text into the field, and Enter on a rule.
    browser.open(&page, "").await;
    browser
        .value("document.getElementById('text').focus()")
        .await;
    let params = serde_json::json!({"text": "RunPodSandbox"});
    browser.call("Input.insertText", params).await;
    assert_eq!(browser.value(SHOWN).await, one);
    assert_eq!(browser.value("location.hash").await, "#text=RunPodSandbox");
    browser
        .value("document.querySelector('#CRI-SBX-001 > summary').focus()")
        .await;
    browser.press("Enter", 13, "\r").await;
    let open = "document.getElementById('CRI-SBX-001').open";
    assert_eq!(browser.value(open).await, true);
    browser
        .value("document.getElementById('text').focus()")
        .await;
    let params = serde_json::json!({"text": "nothing has this"});
    browser.call("Input.insertText", params).await;
    let none = "document.getElementById('none').checkVisibility()";
    assert_eq!(browser.value(none).await, true);

    // On a phone nothing is wider than the screen.
    browser.open(&page, "").await;
    let phone =
        serde_json::json!({"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true});
    browser
        .call("Emulation.setDeviceMetricsOverride", phone)
        .await;
    browser
        .value("document.getElementById('toggle').click()")
        .await;
    let widths = "[innerWidth, document.documentElement.scrollWidth]";
    assert_eq!(browser.value(widths).await, serde_json::json!([360, 360]));

    assert_eq!(browser.close().await, Vec::<String>::new());
    // Its other processes write into the place as they end.
    place.wait_until_clean().await;
}

#[tokio::test]
async fn comparison_shows_changes_and_runs_no_hostile_text() {
    let place = Place::new();
    let Some(mut browser) = Browser::start(&place).await else {
        harness::skip!(
            "comparison_shows_changes_and_runs_no_hostile_text",
            "there is no chromium: apt-get install chromium"
        );
    };
    let report = |result: &str, median: f64| {
        serde_json::json!({
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
    let compared = place.crib(&[&args[..], &html].concat()).await;
    assert_eq!(compared.code, Some(1), "{compared:?}");
    browser.open(&page, "").await;
    let headings = "[...document.querySelectorAll('h2')].map((one) => one.textContent)";
    let headings = browser.value(headings).await;
    for heading in ["new failures: 1", "mended: 0", "slower calls: 1"] {
        let shown = headings.as_array().unwrap();
        assert!(shown.contains(&heading.into()), "{heading}: {headings}");
    }
    let inert = "[typeof window.hacked, document.images.length]";
    let expected = serde_json::json!(["undefined", 0]);
    assert_eq!(browser.value(inert).await, expected);
    // The reason of the only change is there as text, and is seen when the rule is opened with the keyboard.
    let reason = "[...document.querySelectorAll('.rule')].map((rule) => \
        [rule.querySelector('code').textContent, rule.querySelector('pre').textContent.includes('onerror'), \
        rule.querySelector('pre').checkVisibility()])";
    let hidden = serde_json::json!([["CRI-CTR-001", true, false]]);
    assert_eq!(browser.value(reason).await, hidden);
    browser
        .value("document.querySelector('.rule > summary').focus()")
        .await;
    browser.press("Enter", 13, "\r").await;
    let shown = serde_json::json!([["CRI-CTR-001", true, true]]);
    assert_eq!(browser.value(reason).await, shown);
    let slower = "[...document.querySelectorAll('table tbody tr')].map((row) => row.textContent)";
    let expected = serde_json::json!(["Version10.0 ms30.0 ms"]);
    assert_eq!(browser.value(slower).await, expected);
    assert_eq!(browser.close().await, Vec::<String>::new());
    place.wait_until_clean().await;
}
