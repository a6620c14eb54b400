//! Behaviour scripts in manifests, in flags, and in the documentation.

use crate::command::*;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/behave.yaml");

#[tokio::test]
async fn run_shows_backoff_and_kills_pod_that_ignores_sigterm() {
    let place = Place::new();
    let mut running = place.start(&["run", EXAMPLE]);
    for _ in 0..2 {
        running.line_with("| line 5").await;
    }
    running.err_line_with("CrashLoopBackOff").await;
    // By then, the next start would have happened.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let ended = running.interrupt().await.exits(130);
    // Names are padded to the longest one.
    let message = |line: &str, end: &str| line.starts_with("flaky/main ") && line.ends_with(end);
    let count = |end: &str| ended.out.lines().filter(|line| message(line, end)).count();
    let runs = (count("| line 5"), count("| line 6"));
    assert_eq!(runs, (2, 0), "it ran at 0 s and at once again: {}", ended.out);
}

#[tokio::test]
async fn run_shows_why_an_image_has_no_script() {
    let place = Place::new();
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  restartPolicy: Never\n  \
         containers: [{name: main, image: crib.local/behave/exti-1}]\n";
    let ended =
        place.crib(&["run", "--timeout", "60s", &place.file("p.yaml", manifest)]).await.exits(1);
    ended.err_has("there is no step \"exti-1\": did you mean exit-CODE[-after-TIME]?");
}

#[tokio::test]
async fn runtime_refuses_malformed_script_of_image() {
    let place = Place::new();
    let socket = format!("unix://{}", place.path("r.sock").display());
    for (flag, reason) in [
        ("app", "write IMAGE=SCRIPT"),
        (
            "app=exit-1000",
            "image docker.io/library/app:latest: step \"exit-1000\": \"1000\" is not an exit code: 0 to 255",
        ),
    ] {
        let ended = place.crib(&["runtime", "--listen", &socket, "--behave", flag]).await.exits(2);
        ended.err_has(reason);
    }
}

#[test]
fn document_has_each_step_once() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/testing.md");
    let document = std::fs::read_to_string(document).unwrap();
    let table = document.split("| step | what happens |").nth(1).unwrap();
    let listed: Vec<&str> =
        table.lines().skip(2).map_while(|row| row.strip_prefix("| `")?.split('`').next()).collect();
    let forms: Vec<&str> = image::FORMS.iter().map(|known| known.form).collect();
    assert_eq!(listed, forms);
}
