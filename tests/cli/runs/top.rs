//! `crib top pod` and `crib stats`: resource usage of the pods of all runs.

use crate::command::*;
use crate::runs::run::pod;

const FOREVER: &str = "trap 'exit 0' TERM; echo up; while true; do sleep 0.1; done";

#[tokio::test]
async fn top_and_stats_show_pods_of_all_runs() {
    let place = Place::new();
    let labelled = pod("web", FOREVER).replace("{name: web}", "{name: web, labels: {app: web}}");
    let mut web = place.start(&["run", &place.file("web.yaml", &labelled)]);
    web.line_with("up").await;
    let elsewhere = pod("db", FOREVER).replace("{name: db}", "{name: db, namespace: shop}");
    let mut db = place.start(&["run", &place.file("db.yaml", &elsewhere)]);
    db.line_with("up").await;
    let top = async |args: &[&str]| place.crib(&[&["top", "pod"], args].concat()).await;
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let shown = top(&[]).await.exits(0);
    let lines: Vec<_> = shown.out.lines().map(words).collect();
    assert_eq!(lines.len(), 2, "{shown:?}");
    assert_eq!(lines[0], ["NAME", "CPU(cores)", "MEMORY(bytes)"]);
    assert_eq!(lines[1][0], "web");
    let number =
        |text: &str, unit: &str| text.strip_suffix(unit).and_then(|n| n.parse::<u64>().ok());
    assert!(
        number(&lines[1][1], "m").is_some() && number(&lines[1][2], "Mi").is_some(),
        "{lines:?}"
    );
    let shown = top(&["-A", "--containers", "--no-headers"]).await.exits(0);
    let lines: Vec<_> = shown.out.lines().map(words).collect();
    assert_eq!(lines[0][..3], ["default", "web", "main"]);
    assert_eq!(lines[1][..3], ["shop", "db", "main"]);
    let shown = top(&["-A", "-l", "app in (web)", "--sort-by", "memory", "--no-headers"]).await;
    assert_eq!(shown.exits(0).out.lines().count(), 1);
    let shown = top(&["-A", "--sum", "--no-headers"]).await.exits(0);
    let lines: Vec<_> = shown.out.lines().map(words).collect();
    assert_eq!((lines.len(), lines[2].join(" ").as_str()), (4, "________ ________"));
    assert!(number(&lines[3][0], "m").is_some() && lines[3].len() == 2, "{lines:?}");
    let shown = top(&["--show-swap"]).await.exits(0);
    let lines: Vec<_> = shown.out.lines().map(words).collect();
    assert_eq!(lines[0], ["NAME", "CPU(cores)", "MEMORY(bytes)", "SWAP(bytes)"]);
    assert!(number(&lines[1][3], "Mi").is_some(), "{lines:?}");
    top(&["db"]).await.exits(1).err_has("pod \"db\" not found");
    top(&["-n", "none"]).await.exits(0).err_has("no resources found in none namespace");
    let stats = place.crib(&["stats"]).await.exits(0);
    let lines: Vec<_> = stats.out.lines().map(words).collect();
    assert_eq!(lines[0].last().unwrap(), "POD");
    let mut pods: Vec<_> = lines[1..].iter().map(|line| line.last().unwrap().as_str()).collect();
    pods.sort_unstable();
    assert_eq!(pods, ["db", "web"]);
    web.interrupt().await.exits(130);
    db.interrupt().await.exits(130);
}
