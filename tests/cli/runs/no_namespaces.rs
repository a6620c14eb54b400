//! `crib run` of an ordinary user if user namespaces or others are forbidden: only isolation `process` is left.

use tokio::process::Command;

use crate::command::*;
use crate::runs::run::{HELLO, pod};

/// Forbids a kind of namespaces in a new user namespace, and runs a command there without capabilities. In the new namespace, the
/// sysctl affects no other processes.
const FORBID: &str = "echo 0 >/proc/sys/user/max_$0_namespaces && \
    exec setpriv --inh-caps=-all --ambient-caps=-all \"$@\"";

/// Runs `crib` as an ordinary user who cannot create user namespaces.
async fn crib(place: &Place, args: &[&str]) -> Ended {
    crib_without("user", place, args).await
}

/// Runs `crib` as an ordinary user who cannot create namespaces of this kind.
async fn crib_without(kind: &str, place: &Place, args: &[&str]) -> Ended {
    let crib = place.command(args);
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-current-user", "--keep-caps", "sh", "-c", FORBID, kind]);
    command.arg(crib.as_std().get_program()).args(crib.as_std().get_args());
    command.env("HOME", place.path("home"));
    for (name, value) in crib.as_std().get_envs() {
        command.env(name, value.unwrap());
    }
    place.end(place.as_ordinary_user(command)).await
}

#[tokio::test]
async fn auto_isolation_selects_process_and_fails_unsupported_pods() {
    harness::needs!(UserNamespaces);
    let place = Place::new();
    let hello = crib(&place, &["run", HELLO]).await.exits(1);
    assert_eq!(hello.err.lines().next(), Some("crib: isolation: process"), "{}", hello.err);
    let reason =
        "nothing can be mounted at /shared, because isolation `process` has no mount namespaces";
    hello.err_has(reason);
    let last = "crib: pod default/hello failed: container write cannot run (CreateContainerError)";
    assert_eq!(hello.err.lines().last(), Some(last));
    assert_eq!(hello.out, "");

    // The container sees the host's own files.
    let written = place.path("written");
    let script = format!("echo I am $(id -u) in $HOME >{}; cat {0}", written.display());
    let plain = place.file("plain.yaml", &pod("plain", &script));
    let plain = crib(&place, &["run", "--isolation", "auto", &plain]).await.exits(0);
    assert_eq!(plain.err.lines().next(), Some("crib: isolation: process"), "{}", plain.err);
    let user = match nix::unistd::geteuid().as_raw() {
        0 => 65534,
        own => own,
    };
    // Not the home directory of root, the user in the machine's image.
    let who = format!("I am {user} in {}\n", place.path("home").display());
    assert_eq!(plain.out, format!("plain/main | {who}"));
    assert_eq!(std::fs::read_to_string(written).unwrap(), who);
}

#[rstest]
#[tokio::test]
async fn auto_selects_process_unless_all_namespaces_of_pods_can_be_made(
    #[values("pid", "ipc", "uts", "cgroup", "net", "mnt")] kind: &str,
) {
    harness::needs!(UserNamespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "echo done"));
    let ended = crib_without(kind, &place, &["run", &manifest]).await.exits(0);
    assert_eq!(ended.err.lines().next(), Some("crib: isolation: process"), "{}", ended.err);
    assert_eq!(ended.out, "p/main | done\n");
    let refused = crib_without(kind, &place, &["run", "--isolation", "rootless", &manifest]).await;
    refused.exits(3).err_has("isolation rootless is unavailable: failed to make namespaces: ");
}

#[tokio::test]
async fn requested_namespaces_are_refused_with_remedy() {
    harness::needs!(UserNamespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "echo done"));
    let refused = crib(&place, &["run", "--isolation", "rootless", &manifest]).await.exits(3);
    refused.err_has("isolation rootless is unavailable: ");
    refused.err_has("sysctl user.max_user_namespaces");
    assert_eq!(refused.out, "");
}

#[rstest]
#[tokio::test]
async fn refusal_names_sysctl_that_allows_no_namespace(#[values("user", "pid", "net")] kind: &str) {
    harness::needs!(UserNamespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "true"));
    let run = ["run", "--isolation", "rootless", &manifest];
    let refused = crib_without(kind, &place, &run).await.exits(3);
    let remedy = format!("; raise the sysctl user.max_{kind}_namespaces, or use --isolation");
    refused.err_has(&remedy);
}

#[tokio::test]
async fn selected_process_is_explained_unless_requested() {
    harness::needs!(UserNamespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "true"));
    let unavailable = "crib: stronger isolation is unavailable: ";
    let ended = crib_without("pid", &place, &["run", &manifest]).await.exits(0);
    let line = ended.err.lines().nth(1).unwrap_or_default();
    assert!(line.starts_with(&format!("{unavailable}root: this is user ")), "{}", ended.err);
    let rootless = "; rootless: failed to make namespaces: no space left on device: \
        raise the sysctl user.max_pid_namespaces";
    assert!(line.ends_with(rootless), "{}", ended.err);

    for more in [&["--isolation", "process"][..], &["--quiet"]] {
        let run = [&["run", &manifest][..], more].concat();
        let ended = crib_without("pid", &place, &run).await.exits(0);
        assert!(!ended.err.contains(unavailable), "{more:?}: {}", ended.err);
    }
}
