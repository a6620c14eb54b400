//! Seccomp: the profile of a container, as shown in `/proc/PID/status`, and its effect.

use std::path::Path;

use cri::v1::{Capability, ContainerConfig, SecurityProfile, security_profile::ProfileType};

use crate::support::*;

/// Profiles that block `chmod` with an error or by killing the process, and allow everything else.
const NO_CHMOD: &str = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[
    {"names":["chmod","fchmod","fchmodat","fchmodat2"],"action":"SCMP_ACT_ERRNO","errnoRet":95}]}"#;
const DEADLY_CHMOD: &str = r#"{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_AARCH64"],
    "syscalls":[{"names":["chmod","fchmod","fchmodat","fchmodat2"],"action":"SCMP_ACT_KILL_PROCESS"}]}"#;

fn write(directory: &Path, text: &str) -> String {
    let path = directory.join("profile.json");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn with(mut config: ContainerConfig, kind: ProfileType, reference: &str) -> ContainerConfig {
    fixture::security(&mut config).seccomp =
        Some(SecurityProfile { profile_type: kind.into(), localhost_ref: reference.to_owned() });
    config
}

/// A container that prints its seccomp mode.
fn print_seccomp_mode(pod: &Pod) -> ContainerConfig {
    pod.script("look", "grep Seccomp: /proc/self/status")
}

#[allow(deprecated, reason = "clients from before Kubernetes 1.19")]
fn with_path(mut config: ContainerConfig, path: &str) -> ContainerConfig {
    fixture::security(&mut config).seccomp_profile_path = path.to_owned();
    config
}

#[rstest]
#[case::unconfined("unconfined", 0)]
#[case::runtime_default("runtime/default", 2)]
#[case::docker_default("docker/default", 2)]
#[case::file("localhost/", 2)]
#[tokio::test]
async fn deprecated_profile_names_are_accepted(#[case] path: &str, #[case] mode: u8) {
    let place = tempfile::tempdir().unwrap();
    let file = write(place.path(), NO_CHMOD);
    let path = match path {
        "localhost/" => format!("localhost/{file}"),
        path => path.to_owned(),
    };
    let (_runtime, pod) = with_pod().await;
    let config = with_path(print_seccomp_mode(&pod), &path);
    assert_eq!(pod.output(config).await.unwrap(), format!("Seccomp:\t{mode}\n"));
}

/// The profile is read by CreateContainer, so later changes to the file have no effect.
#[tokio::test]
async fn localhost_profile_applies_to_first_process_and_execs() {
    let place = tempfile::tempdir().unwrap();
    let file = write(place.path(), NO_CHMOD);
    let (runtime, pod) = with_pod().await;
    let config = with(fixture::forever("c"), ProfileType::Localhost, &file);
    let id = pod.create(config).await.unwrap();
    std::fs::remove_file(&file).unwrap();
    runtime.client.start(&id).await.unwrap();
    let chmod = "cp /bin/true t 2>&1; chmod 700 t 2>&1 | grep -o 'Operation not supported'";
    let out = runtime.client.sh(&id, chmod).await.unwrap();
    assert_eq!(out, "Operation not supported\n");
    let text = std::fs::write(&file, DEADLY_CHMOD);
    text.unwrap();
    let config = with(
        pod.script("d", "echo x > t; chmod 700 t; echo survived"),
        ProfileType::Localhost,
        &file,
    );
    let id = pod.start(config).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    let lines: Vec<String> = pod.log(&status).into_iter().map(|line| line.text).collect();
    // Only the `chmod` process is killed; the shell continues.
    assert!(
        lines.iter().any(|line| line == "survived")
            && lines.iter().any(|line| line.contains("Bad system call")),
        "{lines:?}"
    );
}

/// Loading the filter must not leave an additional capability, nor no_new_privs unless requested.
#[rstest]
#[case::root(0)]
#[case::non_root(1001)]
#[tokio::test]
async fn default_profile_blocks_calls_and_changes_nothing_else(#[case] user: i64) {
    harness::needs!(UserIds);
    let (_runtime, pod) = with_pod().await;
    let script = "unshare --user true 2>&1 | grep -o 'not permitted'; grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status";
    let of = async |kind: ProfileType| {
        let mut config = with(pod.script(&fixture::unique("c"), script), kind, "");
        fixture::security(&mut config).run_as_user = Some(v1::Int64Value { value: user });
        pod.output(config).await.unwrap()
    };
    let (free, filtered) =
        (of(ProfileType::Unconfined).await, of(ProfileType::RuntimeDefault).await);
    assert_eq!(filtered, format!("not permitted\n{free}"));
    assert!(free.contains("NoNewPrivs:\t0"), "{free}");
}

#[tokio::test]
async fn default_profile_allows_calls_of_added_capabilities() {
    harness::needs!(Namespaces);
    let (_runtime, pod) = with_pod().await;
    for (add, expected) in [(vec![], "refused\n"), (vec!["SYS_ADMIN"], "done\n")] {
        let script = "mkdir -p /tmp/m && mount -t tmpfs none /tmp/m 2>/dev/null && echo done || echo refused";
        let mut config =
            with(pod.script(&fixture::unique("c"), script), ProfileType::RuntimeDefault, "");
        fixture::security(&mut config).capabilities = Some(Capability {
            add_capabilities: add.into_iter().map(str::to_owned).collect(),
            ..Default::default()
        });
        assert_eq!(pod.output(config).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn profile_applies_without_namespaces() {
    let (_runtime, pod) = pod_of(Runtime::with().isolation("process")).await;
    let config = with(print_seccomp_mode(&pod), ProfileType::RuntimeDefault, "");
    assert_eq!(pod.output(config).await.unwrap(), "Seccomp:\t2\n");
}

#[rstest]
#[case::missing(None, Code::FailedPrecondition, "No such file")]
#[case::empty(Some(""), Code::FailedPrecondition, "EOF while parsing")]
#[case::half_written(Some(r#"{"defaultAction":"#), Code::FailedPrecondition, "EOF while parsing")]
#[case::not_a_profile(Some("{}"), Code::InvalidArgument, "defaultAction")]
#[case::notify_action(
    Some(r#"{"defaultAction":"SCMP_ACT_NOTIFY"}"#),
    Code::InvalidArgument,
    "SCMP_ACT_NOTIFY"
)]
#[tokio::test]
async fn create_rejects_invalid_profile(
    #[case] text: Option<&str>,
    #[case] code: Code,
    #[case] expected: &str,
) {
    let place = tempfile::tempdir().unwrap();
    let path = match text {
        Some(text) => write(place.path(), text),
        None => place.path().join("none").to_str().unwrap().to_owned(),
    };
    let (_runtime, pod) = with_pod().await;
    let create = |config| pod.create(config);
    let error =
        create(with(fixture::forever("c"), ProfileType::Localhost, &path)).await.unwrap_err();
    assert_eq!(error.code(), code);
    assert!(error.message().contains(&path) && error.message().contains(expected), "{error:?}");
    // The failed create leaves nothing: the name is free.
    let kind = ProfileType::Unconfined;
    create(with(fixture::forever("c"), kind, "")).await.unwrap();
}

#[tokio::test]
async fn create_rejects_profile_reference_that_is_no_file() {
    let place = tempfile::tempdir().unwrap();
    let (_runtime, pod) = with_pod().await;
    let directory = place.path().to_str().unwrap();
    // At an absolute path a suitable file may appear later.
    for (reference, expected) in [
        ("", Code::InvalidArgument),
        ("profile.json", Code::InvalidArgument),
        ("localhost/profile.json", Code::InvalidArgument),
        (directory, Code::FailedPrecondition),
        ("/dev/zero", Code::FailedPrecondition),
    ] {
        let config = with(fixture::forever("c"), ProfileType::Localhost, reference);
        assert_eq!(code(pod.create(config).await), expected, "{reference}");
    }
    for path in ["localhost/x", "runtime", "/profile.json"] {
        let config = with_path(fixture::forever("c"), path);
        assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
    }
}
