//! Documents generated from the definition of the command line: docs/cli.md and the manual pages.

use std::path::PathBuf;

use crate::command::*;

/// The commands that the help of `crib`, or of one of its commands, lists.
pub(crate) async fn commands(place: &Place, of: &str) -> Vec<String> {
    let args: Vec<&str> = of.split_whitespace().chain(["--help"]).collect();
    let help = place.crib(&args).await.out;
    let Some(list) = help.split("Commands:\n").nth(1) else {
        return Vec::new();
    };
    let lines = list.lines().take_while(|line| !line.is_empty());
    // Continuation lines of a description are indented further.
    let lines = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    lines
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .filter(|name| name != "help")
        .collect()
}

#[tokio::test]
async fn reference_of_commands_is_up_to_date() {
    let place = Place::unchecked();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let written = std::fs::read_to_string(&path).unwrap();
    // The text before the help is written by hand.
    let (mut text, _) = written.split_once("\n## crib\n").map_or_else(
        || panic!("{} has no heading `crib`", path.display()),
        |(by_hand, help)| (by_hand.to_owned(), help),
    );
    let names = commands(&place, "").await;
    let named = text.split("`crib ").skip(1).filter_map(|rest| rest.split([' ', '`']).next());
    for command in named {
        assert!(names.iter().any(|name| name == command), "there is no `crib {command}`");
    }
    assert!(names.len() > 30, "{names:?}");
    let mut all = vec![String::new()];
    for name in names {
        let of = commands(&place, &name).await;
        all.push(name.clone());
        all.extend(of.iter().map(|command| format!("{name} {command}")));
    }
    for name in all {
        let args: Vec<&str> = name.split_whitespace().chain(["--help"]).collect();
        let help = place.crib(&args).await.out;
        let help: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        let help = help.join("\n");
        let title = format!("crib {name}");
        text += &format!("\n## {}\n\n```text\n{}\n```\n", title.trim(), help.trim_end());
    }
    if std::env::var_os("CRIB_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    let differs = written.lines().zip(text.lines()).position(|(a, b)| a != b);
    assert!(
        written == text,
        "docs/cli.md is out of date from line {:?} on: run this test with CRIB_UPDATE_DOCS=1 to update it",
        differs.map(|line| line + 1)
    );
}

#[tokio::test]
async fn manual_pages_are_printed_and_written() {
    let place = Place::unchecked();
    let page = place.crib(&["man", "exec"]).await.exits(0);
    for text in [".TH crib-exec 1", "Run a command in a container", "\\-\\-sync"] {
        assert!(page.out.contains(text), "{text}: {}", page.out);
    }
    assert!(place.crib(&["man"]).await.out.contains(".TH crib 1"));
    let none = place.crib(&["man", "dance"]).await.exits(2);
    assert_eq!(none.err, "crib: no page for crib-dance: `crib --help` lists the commands\n");
    let directory = place.path("man1");
    place.crib(&["man", "-o", directory.to_str().unwrap()]).await.exits(0);
    for name in commands(&place, "").await {
        let page = directory.join(format!("crib-{name}.1"));
        assert!(page.exists(), "{}", page.display());
    }
}
