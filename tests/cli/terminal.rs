//! The live view of `crib run`, seen in a real terminal.

use super::command::Place;
use super::run::{CANNOT_PULL, FOREVER, HELLO};
use super::tmux::{self, Terminal};

/// Pods that run until they are told to end, each with two containers, and names that differ in the end.
fn many(place: &Place, count: usize) -> String {
    let mut text = String::new();
    for number in 0..count {
        let name = format!("a-pod-with-a-long-name-{number:02}");
        let container = |name: &str| {
            format!(
                "  - name: {name}\n    image: crib.local/host\n    command: [sh, -c, 'trap \"exit 0\" TERM; sleep 1000 & wait']\n"
            )
        };
        text += &format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 10\n  containers:\n{}{}",
            container("one"),
            container("two")
        );
    }
    place.file("many.yaml", &text)
}

fn count(screen: &[String], text: &str) -> usize {
    screen.iter().filter(|line| line.contains(text)).count()
}

/// The rows of pods that run.
fn running(screen: &[String]) -> usize {
    let row = |line: &&String| line.starts_with("● default/") && line.contains("Running");
    screen.iter().filter(row).count()
}

#[tokio::test]
async fn view_fits_terminals_of_every_size() {
    if let Some(reason) = tmux::missing() {
        harness::skip!("view_fits_terminals_of_every_size", "{reason}");
    }
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
        terminal
            .wait("all pods, and containers of some", |screen| !shows(screen))
            .await;
        let screen = terminal.screen().await;
        assert!(screen.len() < usize::from(rows) + 1, "{screen:#?}");
        terminal.key("C-c").await;
        let history = terminal.end(130).await;
        assert_eq!(count(&history, "✓ default/a-pod"), 15, "{history:#?}");
        assert_eq!(running(&history), 0, "{history:#?}");
        place.wait_until_clean().await;
    }
}

/// On the screen. Rows that tmux moves into its history when a new width breaks lines can no longer be cleared.
#[tokio::test]
async fn resized_view_leaves_nothing_of_the_one_before() {
    if let Some(reason) = tmux::missing() {
        harness::skip!("resized_view_leaves_nothing_of_the_one_before", "{reason}");
    }
    let place = Place::new();
    let manifest = many(&place, 4);
    let terminal = Terminal::start(&place, 120, 40, &[], &["run", &manifest]).await;
    for (columns, rows, containers) in [
        (120, 40, 4),
        (60, 40, 4),
        (100, 30, 4),
        (50, 30, 4),
        (50, 8, 1),
        (120, 40, 4),
    ] {
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
    terminal.key("C-c").await;
    let history = terminal.end(130).await;
    let ending = |line: &String| line.starts_with("crib: ending the pods, ");
    let at = history.iter().position(ending).unwrap();
    assert_eq!(history.len() - at, 1 + 4 * 3 + 1, "{history:#?}");
    place.wait_until_clean().await;
}

/// Said on a machine whose pods have no way to other hosts.
fn is_about_box(line: &str) -> bool {
    line.starts_with("crib: pods do not reach other hosts: ")
}

#[tokio::test]
async fn interrupted_view_leaves_output_and_table_only() {
    if let Some(reason) = tmux::missing() {
        harness::skip!("interrupted_view_leaves_output_and_table_only", "{reason}");
    }
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
        "! default/cannot-pull  ",
        "  ! main  ",
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
    if let Some(reason) = tmux::missing() {
        harness::skip!("marks_have_colours_unless_forbidden", "{reason}");
    }
    for (variables, coloured, live) in [
        (&[][..], true, true),
        (&[("NO_COLOR", "1")][..], false, true),
        (&[("TERM", "dumb")][..], false, false),
    ] {
        let place = Place::new();
        let terminal = Terminal::start(&place, 100, 20, variables, &["run", FOREVER]).await;
        let row = if live {
            "● default/forever "
        } else {
            "default/forever: Pending → Running"
        };
        // Before its first line, the container has no handler for SIGTERM.
        terminal
            .wait(row, |screen| {
                count(screen, row) != 1 || count(screen, "forever/clock | ") == 0
            })
            .await;
        let colours = terminal.colours().await;
        assert_eq!(
            colours.contains('\x1b'),
            coloured,
            "{variables:?}: {colours:?}"
        );
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
    if let Some(reason) = tmux::missing() {
        harness::skip!("finished_view_leaves_output_and_table_only", "{reason}");
    }
    let place = Place::new();
    let terminal = Terminal::start(&place, 80, 24, &[], &["run", HELLO]).await;
    let history = terminal.end(0).await;
    let history: Vec<String> = history
        .into_iter()
        .filter(|line| !is_about_box(line))
        .skip(2)
        .collect();
    assert_eq!(history.len(), 4 + 5 + 1, "{history:#?}");
    assert_eq!(count(&history[..4], " | "), 4, "{history:#?}");
    assert_eq!(count(&history[4..9], "✓"), 5, "{history:#?}");
    place.wait_until_clean().await;
}
