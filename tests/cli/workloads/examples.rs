//! The manifests under examples/ behave as their comments describe. Other tests cover those of controllers, volumes and Services.

use std::time::Duration;

use crate::command::*;

fn example(name: &str) -> String {
    format!("{}/../../examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"))
}

/// Stops the run, and asserts that nothing is left.
async fn interrupt(running: Running, place: &Place) -> String {
    let ended = running.interrupt().await.exits(130);
    place.assert_clean();
    ended.err
}

#[tokio::test]
async fn configuration_is_in_variables_and_files() {
    let place = Place::new();
    let ended = place.crib(&["run", "-q", &example("configuration")]).await.exits(0);
    let message: Vec<&str> = ended.out.lines().collect();
    assert_eq!(
        message,
        [
            "configured/main | colour green, user admin, pod configured, memory 64 MiB, greeting: hello from configured",
            "configured/main | app.ini: threads = 4",
            r#"configured/main | labels: tier="example""#,
            "configured/main | password: not-a-secret",
            "configured/main | mode of the password: 400",
        ]
    );
}

#[tokio::test]
async fn sidecar_prints_what_the_program_wrote_and_ends_after_it() {
    let place = Place::new();
    let ended = place.crib(&["run", "-q", &example("sidecar")]).await.exits(0);
    for line in [
        "batch/app | finished",
        "batch/log | step 1 is done",
        "batch/log | step 2 is done",
        "batch/log | step 3 is done",
    ] {
        assert!(ended.out.lines().any(|message| message == line), "{}", ended.out);
    }
}

#[tokio::test]
async fn indexed_job_repeats_the_part_that_failed() {
    let place = Place::new();
    let ended = place.crib(&["run", "-q", &example("indexed-job")]).await.exits(0);
    for part in 0..6 {
        let words = format!("| part {part} of 6 is done");
        assert_eq!(ended.out.matches(&words).count(), 1, "{}", ended.out);
    }
    assert_eq!(ended.out.matches("| part 3 fails").count(), 1);
}

#[tokio::test]
async fn cron_job_starts_one_job_now() {
    let place = Place::new();
    let ended = place.crib(&["run", "-q", "--now", &example("cron-job")]).await.exits(0);
    assert_eq!(ended.out.matches("a report from report-").count(), 1);
}

#[tokio::test]
async fn output_of_helm_runs_as_it_is() {
    let place = Place::unchecked();
    let mut running = place.start(&["run", &example("helm")]);
    running.line_with("/shop | the shop is open, prices in EUR").await;
    let err = interrupt(running, &place).await;
    for skipped in [
        "kind Role (rbac.authorization.k8s.io/v1) is skipped",
        "Pod shop-test-connection is skipped: it is a helm hook for test",
    ] {
        assert_eq!(err.matches(skipped).count(), 1, "{skipped}: {err}");
    }
}

#[tokio::test]
async fn output_of_kustomize_runs_as_it_is() {
    let place = Place::unchecked();
    let mut running = place.start(&["run", "--strict", &example("kustomize")]);
    running.line_with("/guestbook | hello from the dev overlay, debug").await;
    let err = interrupt(running, &place).await;
    assert!(!err.contains("warning"), "{err}");
}

#[tokio::test]
async fn web_server_serves_its_page_and_is_restarted_when_unhealthy() {
    let place = Place::unchecked();
    let mut running = place.start(&["run", &example("web-server")]);
    running.line_with("web/server | listening on port 8080").await;
    let mut forward = place.start(&["port-forward", "web", "0:8080"]);
    let line = forward.line_with("Forwarding from 127.0.0.1:").await;
    let address = line.trim_start_matches("Forwarding from ").split(' ').next().unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(30), get(address)).await;
    let answer = answer.unwrap();
    assert!(answer.ends_with("<h1>Hello from a ConfigMap</h1>\n"), "{answer}");
    place.crib(&["exec", "web", "rm", "/healthy"]).await.exits(0);
    running.line_with("web/server | stopping").await;
    running.line_with("web/server | listening on port 8080").await;
    forward.interrupt().await;
    let err = interrupt(running, &place).await;
    let cause = "Liveness probe failed: HTTP probe failed with statuscode: 503";
    assert!(err.contains(cause), "{err}");
}

/// The response to `GET /`.
async fn get(address: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut server = tokio::net::TcpStream::connect(address).await.unwrap();
    server.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    server.read_to_string(&mut answer).await.unwrap();
    answer
}
