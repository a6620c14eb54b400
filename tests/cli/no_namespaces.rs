//! `crib run` of an ordinary user where user namespaces are forbidden: isolation `process` is what is left.

use tokio::process::Command;

use super::command::{Ended, Place};
use super::run::{HELLO, assert_code, pod};

/// Forbids user namespaces in one of its own, and runs a command there without capabilities. In a namespace of its own a
/// process keeps the sysctl from everybody else.
const FORBID: &str = "echo 0 >/proc/sys/user/max_user_namespaces && \
    exec setpriv --inh-caps=-all --ambient-caps=-all \"$0\" \"$@\"";

/// Runs `crib` as an ordinary user who can make no user namespace.
async fn crib(place: &Place, args: &[&str]) -> Ended {
    let crib = place.command(args);
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-current-user",
        "--keep-caps",
        "sh",
        "-c",
        FORBID,
    ]);
    command
        .arg(crib.as_std().get_program())
        .args(crib.as_std().get_args());
    command.env("HOME", place.path("home"));
    for (name, value) in crib.as_std().get_envs() {
        command.env(name, value.unwrap());
    }
    place.end(place.as_ordinary_user(command)).await
}

/// Whether this box lets an ordinary user make user namespaces, which a test then forbids.
async fn allowed(place: &Place) -> bool {
    let mut probe = Command::new("unshare");
    probe.args(["--user", "--map-current-user", "--keep-caps", "true"]);
    place.end(place.as_ordinary_user(probe)).await.code == Some(0)
}

#[tokio::test]
async fn auto_selects_process_and_ends_what_cannot_run() {
    let place = Place::new();
    if !allowed(&place).await {
        harness::skip!(
            "auto_selects_process_and_ends_what_cannot_run",
            "needs user namespaces, to forbid them"
        );
    }
    let hello = crib(&place, &["run", HELLO]).await;
    assert_code(&hello, 1);
    assert_eq!(
        hello.err.lines().next(),
        Some("crib: isolation: process"),
        "{}",
        hello.err
    );
    let reason =
        "nothing can be mounted at /shared, because isolation `process` has no mount namespaces";
    assert!(hello.err.contains(reason), "{}", hello.err);
    let last = "crib: pod default/hello failed: container write cannot run (CreateContainerError)";
    assert_eq!(hello.err.lines().last(), Some(last));
    assert_eq!(hello.out, "");

    // It has the host's own files.
    let written = place.path("written");
    let script = format!(
        "echo I am $(id -u) in $HOME >{}; cat {0}",
        written.display()
    );
    let plain = place.file("plain.yaml", &pod("plain", &script));
    let plain = crib(&place, &["run", "--isolation", "auto", &plain]).await;
    assert_code(&plain, 0);
    assert_eq!(
        plain.err.lines().next(),
        Some("crib: isolation: process"),
        "{}",
        plain.err
    );
    let user = match nix::unistd::geteuid().as_raw() {
        0 => 65534,
        own => own,
    };
    // Not that of root, whom the image of this machine names.
    let who = format!("I am {user} in {}\n", place.path("home").display());
    assert_eq!(plain.out, format!("plain/main | {who}"));
    assert_eq!(std::fs::read_to_string(written).unwrap(), who);
    place.assert_clean();
}

#[tokio::test]
async fn requested_namespaces_are_refused_with_what_to_allow() {
    let place = Place::new();
    if !allowed(&place).await {
        harness::skip!(
            "requested_namespaces_are_refused_with_what_to_allow",
            "needs user namespaces, to forbid them"
        );
    }
    let manifest = place.file("p.yaml", &pod("p", "echo done"));
    let refused = crib(&place, &["run", "--isolation", "rootless", &manifest]).await;
    assert_code(&refused, 3);
    assert!(
        refused.err.contains("isolation rootless is unavailable: "),
        "{}",
        refused.err
    );
    assert!(
        refused.err.contains("sysctl user.max_user_namespaces"),
        "{}",
        refused.err
    );
    assert_eq!(refused.out, "");
    place.assert_clean();
}
