//! `crib proxy` with rules that are enabled and disabled, and its errors.

use crate::command::*;
use crate::tools::readme::shown;

/// Arguments of a proxy for a runtime that need not exist.
fn args<'a>(listen: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["proxy", "--listen", listen, "--upstream", "/nowhere/r.sock"];
    args.extend(more);
    args
}

#[tokio::test]
async fn rules_of_running_proxy_are_switched() {
    let place = Place::new();
    let text = "# What a slow runtime does.\noff slow: Version answer ABORTED \"slow\"\n";
    let rules = place.file("rules", text);
    let (runtime, upstream) = place.runtime().await;
    let (listen, control) = (place.path("p"), place.path("c"));
    let (listen, control) = (listen.to_str().unwrap(), control.to_str().unwrap());
    let mut proxy = place.start(&[
        "proxy",
        "--listen",
        listen,
        "--upstream",
        &upstream,
        "--rules",
        &rules,
        "--control",
        control,
        "--fault",
        "Status times 1 fail ABORTED",
    ]);
    proxy.line_with("listening").await;
    let ask = ["--runtime-endpoint", listen, "version"];
    place.crib(&ask).await.exits(0);
    let on = place.crib(&["proxy", "ctl", "--control", control, "on", "slow"]).await.exits(0);
    let lines: Vec<Value> =
        on.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{on:?}");
    assert_eq!((&lines[0]["name"], &lines[0]["on"]), (&"slow".into(), &true.into()));
    assert_eq!(lines[1]["name"], "2");
    let slow = place.crib(&ask).await.exits(1);
    slow.err_has("slow (Aborted)");
    let list = place.crib(&["proxy", "ctl", "--control", control, "list"]).await;
    list.out_has("\"applied\":1");
    let unknown =
        place.crib(&["proxy", "ctl", "--control", control, "off", "quick"]).await.exits(1);
    unknown.err_has("no rule is named \"quick\"; the rules are: slow, 2");
    let ctl = ["proxy", "ctl", "--control", control];
    let ctl = |more: &[&'static str]| [&ctl[..], more].concat();
    place.crib(&ctl(&["remove", "slow"])).await.exits(0);
    place.crib(&ask).await.exits(0);
    place.crib(&ctl(&["add", "odd: Version answer DATA_LOSS \"odd\""])).await.exits(0);
    place.crib(&ask).await.exits(1).err_has("odd (DataLoss)");
    let invalid = place.crib(&ctl(&["add", "Version hagn"])).await.exits(2);
    invalid.err_has("did you mean \"hang\"?");
    let left = place.crib(&ctl(&["remove", "odd"])).await.exits(0);
    assert_eq!(left.out.lines().count(), 1, "{left:?}");
    proxy.stop().await;
    place.crib(&["proxy", "ctl", "--control", control, "list"]).await.exits(1);
    runtime.stop().await;
}

#[tokio::test]
async fn client_meets_faults_and_is_judged() {
    let place = Place::new();
    let (runtime, _) = place.runtime().await;
    std::os::unix::fs::symlink(place.path("s"), place.path("crib.sock")).unwrap();
    let listen = place.path("p").display().to_string();
    let line = "crib proxy --listen unix:///tmp/p.sock --upstream unix:///run/crib/crib.sock --fault 'ListContainers after 1 fail INTERNAL' --lint";
    let mut proxy = Running::start(shown(&place, line, &[("/tmp/p.sock", &listen)], ""));
    proxy.line_with("listening").await;
    let list = ["--runtime-endpoint", &listen, "ps"];
    place.crib(&list).await.exits(0);
    let second = place.crib(&list).await.exits(1);
    second.err_has("(Internal)");
    let judged = proxy.interrupt().await;
    // Every call of crib's commands has a deadline.
    assert_eq!(judged.code, Some(0), "{judged:?}");
    runtime.stop().await;
}

#[tokio::test]
async fn proxy_replaces_socket_of_killed_one_and_nothing_else() {
    let place = Place::new();
    let listen = place.path("p").display().to_string();
    let all = args(&listen, &[]);
    let mut killed = place.start(&all);
    killed.line_with("listening").await;
    let second = place.crib(&all).await.exits(1);
    second.err_has("a server is already listening on");
    killed.signal(Signal::SIGKILL);
    killed.end().await;
    let mut next = place.start(&all);
    next.line_with("listening").await;
    next.stop().await;
    let file = place.file("f", "text");
    let other = place.crib(&args(&file, &[])).await.exits(1);
    other.err_has("is not a socket");
    place.crib(&["proxy", "--listen", &listen, "--upstream", &listen]).await.exits(2);
}

#[tokio::test]
async fn bad_rules_exit_2_with_place() {
    let place = Place::new();
    let rules = place.file("rules", "Version hang\nStopContainer if container_ID == \"x\" hang\n");
    let listen = place.path("p");
    let listen = listen.to_str().unwrap();
    let deep = format!("Version if {}", "(".repeat(50_000));
    let long = place.file("long", &"[".repeat(400_000));
    let table: [(&[&str], &str); 5] = [
        (
            &["--rules", &rules],
            "rules:2:18: neither StopContainerRequest nor StopContainerResponse has a field \"container_ID\": did you mean \"container_id\"?",
        ),
        (&["--rules", "/nowhere/rules"], "failed to read the rules /nowhere/rules: No such file"),
        (&["--fault", "Version hnag"], "column 9: unknown action \"hnag\": did you mean \"hang\"?"),
        (&["--fault", &deep], "column 77: ( and `not` may nest at most 64 levels deep"),
        (&["--rules", &long], "long:1:1: the CRI has no call \"[[[["),
    ];
    for (more, sentence) in table {
        let ended = place.crib(&args(listen, more)).await;
        assert_eq!(ended.code, Some(2), "{more:?}: {ended:?}");
        assert!(ended.err.contains(sentence), "{more:?}: {}", ended.err);
    }
}
