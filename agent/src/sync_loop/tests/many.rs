//! Many pods at once: the work for each is constant.

use super::*;

const PODS: usize = 500;

#[tokio::test(start_paused = true)]
async fn work_for_each_pod_is_constant() {
    let scene = Scene::new();
    let pods: Vec<Pod> =
        (0..PODS).map(|number| pod(&format!("u{number:03}"), "app", "Always")).collect();
    // A client that keeps what it was shown, as one that prints does.
    let mut reports = scene.agent().reports();
    let begun = std::time::Instant::now();
    let wanted = scene.clock.now();
    scene.want(&pods);
    loop {
        let seen = reports.borrow_and_update().clone();
        let running = seen.values().filter(|report| phase(report) == "Running");
        if running.count() == PODS {
            break;
        }
        reports.changed().await.unwrap();
    }
    let started = (begun.elapsed(), scene.fake.total());
    // Nobody waits for a turn in vain: each pod gives its own back when it rests.
    let waited = scene.clock.now().duration_since(wanted);
    assert!(waited.as_millis() < 200, "{waited:?}");
    let begun = std::time::Instant::now();
    scene.want(&[]);
    loop {
        let seen = reports.borrow_and_update().clone();
        if seen.values().filter(|report| report.removed).count() == PODS {
            break;
        }
        reports.changed().await.unwrap();
    }
    let ended = (begun.elapsed(), scene.fake.total() - started.1);
    eprintln!("{PODS} pods: started {started:?}, ended {ended:?} (time, calls)");
    let pods = PODS as u64;
    assert!(started.1 <= 13 * pods, "{} calls", started.1);
    assert!(ended.1 <= 13 * pods, "{} calls", ended.1);
    scene.assert_clean();
}
