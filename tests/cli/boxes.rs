//! What a box allows decides the isolation, and not who asks: root of a container has less power than root of a machine.

use super::command::*;
use super::run::pod;

/// The capabilities of Docker's and Podman's containers; Podman's have no more.
const DOCKER: &str = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,\
    +sys_chroot,+mknod,+audit_write,+setfcap";

/// A command for a box with these capabilities at most.
fn in_box(place: &Place, capabilities: &str, words: &[&str]) -> tokio::process::Command {
    let crib = place.command(words);
    let mut command = tokio::process::Command::new("setpriv");
    command.args([&format!("--bounding-set={capabilities}"), "--inh-caps=-all", "--"]);
    command.arg(crib.as_std().get_program()).args(crib.as_std().get_args());
    for (name, value) in crib.as_std().get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
}

#[rstest]
#[case::root_of_docker(DOCKER, "auto", "rootless (65536 ids)")]
#[case::root_of_docker_by_name(DOCKER, "rootless", "rootless (65536 ids)")]
#[case::root_without_namespaces_only("-sys_admin", "auto", "rootless (65536 ids)")]
#[case::root_that_may_map_one_id("-sys_admin,-setuid", "auto", "rootless (a single id)")]
#[tokio::test]
async fn root_gets_what_its_box_allows(
    #[case] capabilities: &str,
    #[case] asked: &str,
    #[case] expected: &str,
) {
    harness::needs!(Root, UserNamespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "echo it runs as $(id -u)"));
    let run = ["run", "--isolation", asked, &manifest];
    let ended = place.end(in_box(&place, capabilities, &run)).await.exits(0);
    ended.err_has(&format!("crib: isolation: {expected}\n"));
    ended.out_has("it runs as 0");
}

#[rstest]
#[case::root("root", "isolation root is unavailable: failed to make namespaces")]
// Linux 5.12 lets root be mapped by those only who may give files capabilities.
#[case::rootless("rootless", "isolation rootless is unavailable: failed to map the user id")]
#[tokio::test]
async fn isolation_that_was_asked_for_is_named_with_what_is_missing(
    #[case] asked: &str,
    #[case] said: &str,
) {
    harness::needs!(Root, UserNamespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "true"));
    let run = ["run", "--isolation", asked, &manifest];
    let ended = place.end(in_box(&place, "-sys_admin,-setfcap", &run)).await.exits(3);
    ended.err_has(said);
}
