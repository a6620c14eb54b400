//! The live view of `crib run`, seen in a real terminal.

use crate::command::*;
use crate::runs::run::{CANNOT_PULL, FOREVER, HELLO};
use crate::tmux::Terminal;
use crate::tools::check::start_proxy;

/// Pods that run until they are stopped, with two containers each, and names that differ in their last characters. A container
/// creates a file once it handles SIGTERM.
fn many(place: &Place, count: usize) -> String {
    let handlers = place.path("handlers");
    std::fs::create_dir(&handlers).unwrap();
    let volume = format!("{{name: v, hostPath: {{path: {}}}}}", handlers.display());
    let mut text = String::new();
    for number in 0..count {
        let name = format!("a-pod-with-a-long-name-{number:02}");
        let container = |container: &str| {
            let script = format!(
                "trap \"exit 0\" TERM; touch /handlers/{container}-{number}; sleep 1000 & wait"
            );
            format!(
                "  - name: {container}\n    image: crib.local/host\n    command: [sh, -c, '{script}']\n    \
                 volumeMounts: [{{name: v, mountPath: /handlers}}]\n"
            )
        };
        text += &format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 10\n  \
             volumes: [{volume}]\n  containers:\n{}{}",
            container("one"),
            container("two")
        );
    }
    place.file("many.yaml", &text)
}

/// Waits until all containers of this many pods handle SIGTERM.
async fn have_handlers(place: &Place, pods: usize) {
    eventually("all handlers", || {
        let files = std::fs::read_dir(place.path("handlers")).unwrap().count();
        if files == 2 * pods { vec![] } else { vec![format!("{files} handlers")] }
    })
    .await;
}

fn count(screen: &[String], text: &str) -> usize {
    screen.iter().filter(|line| line.contains(text)).count()
}

/// The rows of running pods.
fn running(screen: &[String]) -> usize {
    let row = |line: &&String| line.starts_with("● default/") && line.contains("Running");
    screen.iter().filter(row).count()
}

#[tokio::test]
async fn view_fits_terminals_of_every_size() {
    harness::needs!(Tmux);
    for (columns, rows, pods, containers) in [(120, 40, 15, 12), (80, 24, 15, 4), (40, 10, 8, 0)] {
        let place = Place::new();
        let manifest = many(&place, 15);
        let terminal = Terminal::start(&place, columns, rows, &[], &["run", &manifest]).await;
        let more = usize::from(pods < 15);
        let shows = |screen: &[String]| {
            running(screen) == pods
                && count(screen, "  ● one ") == containers
                && count(screen, "… and 7 more: 7 Running") == more
        };
        terminal.wait("all pods, and containers of some", |screen| !shows(screen)).await;
        let screen = terminal.screen().await;
        assert!(screen.len() < usize::from(rows) + 1, "{screen:#?}");
        have_handlers(&place, 15).await;
        terminal.key("C-c").await;
        let history = terminal.end(130).await;
        assert_eq!(count(&history, "✓ default/a-pod"), 15, "{history:#?}");
        assert_eq!(running(&history), 0, "{history:#?}");
        place.wait_until_clean().await;
    }
}

/// On the screen only: rows that tmux moves into its history, when a new width wraps lines, cannot be cleared.
#[tokio::test]
async fn resized_view_leaves_nothing_of_the_one_before() {
    harness::needs!(Tmux);
    let place = Place::new();
    let manifest = many(&place, 4);
    let terminal = Terminal::start(&place, 120, 40, &[], &["run", &manifest]).await;
    for (columns, rows, containers) in
        [(120, 40, 4), (60, 40, 4), (100, 30, 4), (50, 30, 4), (50, 8, 1), (120, 40, 4)]
    {
        terminal.resize(columns, rows).await;
        terminal
            .wait("one picture that fits", |screen| {
                running(screen) != 4
                    || count(screen, "  ● one") != containers
                    || count(screen, "  ● two") != containers
                    || count(screen, "default/") != 4
            })
            .await;
    }
    have_handlers(&place, 4).await;
    terminal.key("C-c").await;
    let history = terminal.end(130).await;
    let ending = |line: &String| line.starts_with("crib: ending the pods, ");
    let at = history.iter().position(ending).unwrap();
    assert_eq!(history.len() - at, 1 + 4 * 3 + 1, "{history:#?}");
    place.wait_until_clean().await;
}

/// The error message contains a manifest's key as part of a path.
#[rstest]
#[tokio::test]
async fn words_of_manifest_do_not_steer_terminal(#[values("run", "explain-run")] command: &str) {
    harness::needs!(Tmux);
    let place = Place::new();
    let spec = r#"{"\e]2;owned\a": 1, "\u202eredro": 1}"#;
    let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {spec}\n");
    let manifest = place.file("hostile.yaml", &text);
    let terminal = Terminal::start(&place, 160, 40, &[], &[command, &manifest]).await;
    let history = terminal.end(2).await;
    let shown = |text: &str| history.iter().any(|line| line.contains(text));
    assert!(shown("spec.\u{241b}]2;owned\u{2407}"), "{history:#?}");
    assert!(shown("spec.\u{fffd}redro"), "{history:#?}");
    place.wait_until_clean().await;
}

/// A message that appears only on machines whose pods cannot reach other hosts.
fn is_about_box(line: &str) -> bool {
    line.starts_with("crib: pods cannot reach other hosts: ")
}

#[tokio::test]
async fn interrupted_view_leaves_output_and_table_only() {
    harness::needs!(Tmux);
    let place = Place::new();
    let terminal = Terminal::start(&place, 100, 20, &[], &["run", FOREVER, CANNOT_PULL]).await;
    terminal
        .wait("output and view", |screen| {
            count(screen, "forever/clock    | ") == 0
                || count(screen, "● default/forever ") != 1
                || count(screen, "! default/cannot-pull ") != 1
        })
        .await;
    terminal.key("C-c").await;
    let history = terminal.end(130).await;
    let rest: Vec<&String> = history
        .iter()
        .filter(|line| !line.starts_with("forever/clock    | ") && !is_about_box(line))
        .collect();
    let starts = [
        "crib: isolation: ",
        "crib: runtime endpoint: ",
        "crib: pod forever has restartPolicy Always",
        "crib: pod default/cannot-pull, container main: ErrImagePull: ",
        "crib: ending the pods, ",
        "■ default/cannot-pull  ",
        "  ■ main  ",
        "✓ default/forever  ",
        "  ✓ clock  ",
        "exit code 130",
    ];
    assert!(
        rest.len() == starts.len()
            && std::iter::zip(&rest, starts).all(|(line, start)| line.starts_with(start)),
        "{history:#?}"
    );
    place.wait_until_clean().await;
}

#[tokio::test]
async fn marks_have_colours_unless_forbidden() {
    harness::needs!(Tmux);
    for (variables, coloured, live) in [
        (&[][..], true, true),
        (&[("NO_COLOR", "1")][..], false, true),
        (&[("TERM", "dumb")][..], false, false),
    ] {
        let place = Place::new();
        let terminal = Terminal::start(&place, 100, 20, variables, &["run", FOREVER]).await;
        let row =
            if live { "● default/forever " } else { "default/forever: Pending → Running" };
        // Before its first line, the container does not handle SIGTERM.
        terminal
            .wait(row, |screen| count(screen, row) != 1 || count(screen, "forever/clock | ") == 0)
            .await;
        let colours = terminal.colours().await;
        assert_eq!(colours.contains('\x1b'), coloured, "{variables:?}: {colours:?}");
        if coloured {
            assert!(colours.contains("\x1b[36m●"), "{colours:?}");
        }
        terminal.key("C-c").await;
        let history = terminal.end(130).await;
        assert_eq!(count(&history, "✓ default/forever "), 1, "{history:#?}");
        place.wait_until_clean().await;
    }
}

#[tokio::test]
async fn finished_view_leaves_output_and_table_only() {
    harness::needs!(Tmux);
    let place = Place::new();
    let terminal = Terminal::start(&place, 80, 24, &[], &["run", HELLO]).await;
    let history = terminal.end(0).await;
    let history: Vec<String> =
        history.into_iter().filter(|line| !is_about_box(line)).skip(2).collect();
    assert_eq!(history.len(), 4 + 5 + 1, "{history:#?}");
    assert_eq!(count(&history[..4], " | "), 4, "{history:#?}");
    assert_eq!(count(&history[4..9], "✓"), 5, "{history:#?}");
    place.wait_until_clean().await;
}

/// Sequences that set a title, clear the screen and reverse the text direction.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}";

/// Whether a text contains no character that controls a terminal.
fn is_tame(text: &str) -> bool {
    let steers = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202a}'..='\u{202e}');
    !text.contains(steers)
}

/// Even if the output is not a terminal: saved output may be shown on one later.
#[rstest]
#[case::check(&["check", "--select", "CRI-SBX-001,CRI-RTM-002,CRI-RTM-005"], 1, r"\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}")]
#[case::verbose_check(&["check", "--verbose", "--select", "CRI-SBX-001,CRI-RTM-002"], 1, r"\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}")]
#[case::pods(&["pods", "-o", "json"], 0, r"\u001b]0;owned\u0007\u009b2J\u202e")]
#[case::version(&["version", "--output", "json"], 0, r"\u001b]0;owned\u0007\u009b2J\u202e")]
#[case::info(&["info", "-o", "json"], 0, r"\u001b]0;owned\u0007\u009b2J\u202e")]
#[case::file_systems(&["imagefsinfo", "-o", "json"], 0, r"\u001b]0;owned\u0007\u009b2J\u202e")]
#[tokio::test]
async fn words_of_runtime_steer_no_terminal(
    #[case] args: &[&str],
    #[case] code: i32,
    #[case] reported: &str,
) {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let text = json!(HOSTILE);
    let faults = [
        format!("RunPodSandbox answer INTERNAL \"{HOSTILE}\""),
        format!("Version set runtime_name {text}"),
        format!("Version set runtime_version {text}"),
        format!(
            "ListPodSandbox set items [{{\"id\": {text}, \"metadata\": {{\"name\": {text}}}}}]"
        ),
        format!("Status set status.conditions [{{\"type\": {text}}}]"),
        format!("ImageFsInfo set image_filesystems.fs_id.mountpoint {text}"),
    ];
    let faults = faults.each_ref().map(String::as_str);
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &faults).await;
    let report = place.path("report");
    let file = format!("json={}", report.display());
    let more = ["--report", &file];
    let more = if args[0] == "check" { &more[..] } else { &[] };
    let endpoint = ["--runtime-endpoint", &endpoint];
    let ended = place.crib(&[args, &endpoint, more].concat()).await.exits(code);
    assert!(is_tame(&ended.out) && is_tame(&ended.err), "{ended:?}");
    ended.out_has(reported);
    if code == 0 {
        let answer: Value = serde_json::from_str(&ended.out).unwrap();
        assert!(answer.to_string().contains("\u{9b}2J\u{202e}"), "{answer}");
    } else {
        let saved = std::fs::read_to_string(report).unwrap();
        assert!(is_tame(&saved) && saved.contains(r"\u009b2J\u202e"), "{saved}");
        serde_json::from_str::<Value>(&saved).unwrap();
    }
    proxy.stop().await;
    runtime.stop().await;
}
