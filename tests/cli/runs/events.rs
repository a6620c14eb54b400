//! `crib events`: text for people, JSON objects for programs, and templates.

use crate::command::*;

#[tokio::test]
async fn events_prints_lines_until_interrupted() {
    let (place, runtime) = (Place::unchecked(), Runtime::with().start().await.unwrap());
    let socket = runtime.socket().display().to_string();
    let mut events = place.start(&["events", "--runtime-endpoint", &socket, "-o", "json"]);
    let mut lines = place.start(&["events", "--runtime-endpoint", &socket]);
    let template = "{{.podSandboxStatus.metadata.name}} {{.containerId}} {{.containerEventType}}";
    let args =
        ["events", "--runtime-endpoint", &socket, "-o", "go-template", "--template", template];
    let mut filled = place.start(&args);
    // The first pods may be created before the subscription: create pods until an event is printed.
    let pod = loop {
        let pod = runtime.pod("web").await.unwrap();
        let reported = tokio::time::timeout(std::time::Duration::from_secs(1), async {
            lines.line_with(&pod.id[..13]).await;
            filled.line_with(&pod.id).await;
            events.line_with(&pod.id).await
        });
        if reported.await.is_ok() {
            break pod;
        }
    };
    let id = pod.start(pod.script("main", "exit 7")).await.unwrap();
    let line = lines.line_with("stopped").await;
    assert!(line.contains(&id[..13]) && line.ends_with("test/web main Error 7"), "{line}");
    let line = filled.line_with("STOPPED").await;
    assert_eq!(line, format!("web {id} CONTAINER_STOPPED_EVENT"));
    let event: Value =
        serde_json::from_str(&events.line_with("CONTAINER_STOPPED_EVENT").await).unwrap();
    assert_eq!(event["containerId"], *id);
    assert_eq!(event["podSandboxStatus"]["id"], *pod.id);
    events.signal(Signal::SIGINT);
    assert_eq!(events.end().await.code, Some(130));
    lines.signal(Signal::SIGTERM);
    assert_eq!(lines.end().await.code, Some(130));
}
