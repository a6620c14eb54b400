//! The permissions of the environment decide the isolation, not the user: root in a container has fewer rights than root of a
//! machine.

use crate::command::*;
use crate::runs::run::pod;

/// The capabilities of Docker's and Podman's containers; Podman's have no additional ones.
const DOCKER: &str = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,\
    +sys_chroot,+mknod,+audit_write,+setfcap";
/// As with `--cap-add SYS_ADMIN`.
const DOCKER_WITH_NAMESPACES: &str = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,\
    +net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap,+sys_admin";
/// With `--cap-add SYS_ADMIN,NET_ADMIN`.
const PODMAN_WITH_NETWORKS: &str = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,\
    +net_bind_service,+sys_chroot,+setfcap,+sys_admin,+net_admin";

/// A command in an environment with at most these capabilities.
fn in_box(place: &Place, capabilities: &str, words: &[&str]) -> tokio::process::Command {
    let bounds = format!("--bounding-set={capabilities}");
    by_setpriv(place, [bounds.as_str(), "--inh-caps=-all"], words)
}

fn by_setpriv<const N: usize>(
    place: &Place,
    flags: [&str; N],
    words: &[&str],
) -> tokio::process::Command {
    let crib = place.command(words);
    let mut command = tokio::process::Command::new("setpriv");
    command.args(flags).arg("--");
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
#[case::root_of_docker_with_namespaces(DOCKER_WITH_NAMESPACES, "auto", "rootless (65536 ids)")]
#[case::root_of_docker_with_namespaces_by_name(
    DOCKER_WITH_NAMESPACES,
    "rootless",
    "rootless (65536 ids)"
)]
#[case::root_of_podman_with_networks(PODMAN_WITH_NETWORKS, "auto", "rootless (65536 ids)")]
#[case::root_without_networks("-net_admin", "auto", "rootless (65536 ids)")]
#[case::root_without_devices("-mknod", "auto", "rootless (65536 ids)")]
#[case::root_without_chroot("-sys_chroot", "auto", "rootless (65536 ids)")]
#[case::root_that_drops_no_capabilities("-setpcap", "auto", "rootless (65536 ids)")]
#[case::root_that_kills_no_others("-kill", "auto", "rootless (65536 ids)")]
#[case::root_that_gives_no_files_away("-chown", "auto", "rootless (65536 ids)")]
#[case::root_that_becomes_no_other_user("-setuid", "auto", "rootless (a single id)")]
#[case::root_that_becomes_no_other_group("-setgid", "auto", "rootless (a single id)")]
#[case::plain_root_that_drops_no_capabilities("-setpcap", "process", "process")]
#[case::plain_root_with_namespaces_only("-all,+sys_admin", "process", "process")]
#[case::root_without_other_rights("-sys_ptrace,-sys_resource,-net_raw", "auto", "root")]
#[case::root_with_all_rights("+all", "root", "root")]
#[case::root_with_all_rights_by_name("+all", "rootless", "rootless (65536 ids)")]
#[tokio::test]
async fn root_gets_rights_that_its_box_allows(
    #[case] capabilities: &str,
    #[case] requested: &str,
    #[case] expected: &str,
) {
    harness::needs!(Root, UserNamespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "echo it runs as $(id -u)"));
    let run = ["run", "--isolation", requested, &manifest];
    let ended = place.end(in_box(&place, capabilities, &run)).await.exits(0);
    ended.err_has(&format!("crib: isolation: {expected}\n"));
    ended.out_has("it runs as 0");
}

#[rstest]
#[case::root("root", "isolation root is unavailable: this process lacks CAP_SYS_ADMIN;")]
// Since Linux 5.12, only processes with CAP_SETFCAP may map root.
#[case::rootless("rootless", "isolation rootless is unavailable: failed to map the user id")]
#[tokio::test]
async fn requested_isolation_error_names_missing_permission(
    #[case] requested: &str,
    #[case] message: &str,
) {
    harness::needs!(Root, UserNamespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "true"));
    let run = ["run", "--isolation", requested, &manifest];
    let ended = place.end(in_box(&place, "-sys_admin,-setfcap", &run)).await.exits(3);
    ended.err_has(message);
}

#[rstest]
#[case::user("-setuid", "runAsUser: 1000", "become user 1000: the runtime lacks CAP_SETUID")]
#[case::group("-setgid", "runAsUser: 0, runAsGroup: 1000", "the runtime lacks CAP_SETGID")]
#[tokio::test]
async fn ids_that_plain_root_cannot_take_name_the_missing_capability(
    #[case] capabilities: &str,
    #[case] security: &str,
    #[case] message: &str,
) {
    harness::needs!(Root);
    let place = Place::new();
    let manifest = format!("{}    securityContext: {{{security}}}\n", pod("p", "true"));
    let manifest = place.file("p.yaml", &manifest);
    let run = ["run", "--isolation", "process", &manifest];
    let ended = place.end(in_box(&place, capabilities, &run)).await.exits(1);
    ended.err_has(message);
}

/// Root without CAP_SETPCAP cannot reduce the bounding set, and `execve` gives user 0 all of it.
#[tokio::test]
async fn dropped_capabilities_stay_dropped_with_full_bounding_set() {
    harness::needs!(Root);
    let place = Place::new();
    let script = "grep -E '^(CapEff|NoNewPrivs)' /proc/self/status";
    let manifest = pod("p", script) + "    securityContext: {capabilities: {drop: [ALL]}}\n";
    let manifest = place.file("p.yaml", &manifest);
    let run = ["run", "--isolation", "process", &manifest];
    let ended = place.end(in_box(&place, "-setpcap", &run)).await.exits(0);
    ended.out_has("CapEff:\t0000000000000000");
    ended.out_has("NoNewPrivs:\t1");
}

#[rstest]
#[tokio::test]
async fn locked_securebits_do_not_hinder_containers_of_user_0(
    #[values("root", "process")] isolation: &str,
) {
    harness::needs!(Root, Namespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "echo it runs as $(id -u)"));
    let run = ["run", "--isolation", isolation, &manifest];
    let command = by_setpriv(&place, ["--securebits=+keep_caps_locked"], &run);
    place.end(command).await.exits(0).out_has("it runs as 0");
}

/// Root of `unshare -Ur` is not root of the machine, whatever its capabilities.
#[rstest]
#[case::process("process", Some("process"))]
#[case::root("root", None)]
#[case::rootless("rootless", Some("rootless (a single id)"))]
#[case::auto("auto", Some("rootless (a single id)"))]
#[tokio::test]
async fn root_of_user_namespace_gets_no_isolation_root(
    #[case] requested: &str,
    #[case] expected: Option<&str>,
) {
    harness::needs!(UserNamespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "echo it runs as $(id -u)"));
    let crib = place.command(&["run", "--isolation", requested, &manifest]);
    let mut command = tokio::process::Command::new("unshare");
    command.args(["--user", "--map-root-user"]);
    command.arg(crib.as_std().get_program()).args(crib.as_std().get_args());
    for (name, value) in crib.as_std().get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let ended = place.end(command).await;
    match expected {
        Some(expected) => {
            let ended = ended.exits(0);
            ended.err_has(&format!("crib: isolation: {expected}\n"));
            ended.out_has("it runs as 0");
        }
        None => {
            let ended = ended.exits(3);
            ended.err_has("isolation root is unavailable: this is root of a user namespace only;");
        }
    }
}

#[rstest]
#[case::privileges("", "crib: pods have a single user id: for more ids, install uidmap")]
#[case::no_new_privileges(
    "--no-new-privs",
    "crib: pods have a single user id: newuidmap cannot map more ids for a process with no_new_privs"
)]
#[tokio::test]
async fn single_id_is_explained(#[case] flag: &str, #[case] message: &str) {
    harness::needs!(Root, UserNamespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "true"));
    let crib = place.command(&["run", &manifest]);
    let mut command = tokio::process::Command::new("setpriv");
    command.args(Some(flag).filter(|flag| !flag.is_empty())).arg("--inh-caps=-all");
    command.arg("--").arg(crib.as_std().get_program()).args(crib.as_std().get_args());
    for (name, value) in crib.as_std().get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let ended = place.end(place.as_ordinary_user(command)).await.exits(0);
    ended.err_has(message);
}

/// A pod as a CI system creates it for a job that runs `crib`; its user 1000 has subordinate ids.
const JOB: &str = r#"apiVersion: v1
kind: ConfigMap
metadata: {name: files}
data:
  pod.yaml: |
    apiVersion: v1
    kind: Pod
    metadata: {name: p}
    spec:
      restartPolicy: Never
      containers:
      - name: c
        image: crib.local/host
        command: [sh, -c, "echo it runs as $(id -u)"]
        resources: {limits: {memory: 64Mi}}
  passwd: |
    root:x:0:0:root:/root:/bin/sh
    dev:x:1000:1000::/tmp:/bin/sh
  subid: "dev:100000:65536"
  setup: |
    SETUP
    exec "$@"
---
apiVersion: v1
kind: Pod
metadata: {name: job}
spec:
  restartPolicy: Never
  hostUsers: HOST_USERS
  volumes:
  - {name: tmp, emptyDir: {}}
  - {name: files, configMap: {name: files}}
  - {name: crib, hostPath: {path: CRIB, type: File}}
  containers:
  - name: c
    image: crib.local/host
    command: [sh, /files/setup, /crib, run, --timeout, 50s, /files/pod.yaml]
    env: [{name: TMPDIR, value: /own}, {name: HOME, value: /own}]
    securityContext: {SECURITY}
    volumeMounts:
    - {name: tmp, mountPath: /own}
    - {name: files, mountPath: /files}
    - {name: crib, mountPath: /crib}
    - {name: files, mountPath: /etc/passwd, subPath: passwd}
    - {name: files, mountPath: /etc/subuid, subPath: subid}
    - {name: files, mountPath: /etc/subgid, subPath: subid}
"#;

/// The defaults of containers in Docker, Podman and Kubernetes: capabilities, masked paths, no writable cgroup, only the usual
/// devices, and a seccomp profile that forbids mount, unshare and setns.
const DEFAULT: &str = "seccompProfile: {type: RuntimeDefault}";

/// As on hosts of Docker and Kubernetes; the network namespace of a container inherits this value.
const FORWARDS: &str = "echo 1 >/proc/sys/net/ipv4/ip_forward";
const READ_ONLY_CGROUPS: &str = "echo 1 >/proc/sys/net/ipv4/ip_forward; \
    for at in /sys/fs/cgroup /sys/fs/cgroup/*; do mountpoint -q $at && mount -o remount,bind,ro $at; done";
/// User 1000 without capabilities, as in a container that starts as this user.
const USER: &str = "chown 1000 /own; set -- setpriv --reuid=1000 --regid=1000 --clear-groups --inh-caps=-all \"$@\"";
const WITHOUT_TUN: &str = "rm -f /dev/net/tun; USER";
/// In its own user namespace: otherwise the sysctl would apply to the whole machine.
const WITHOUT_USER_NAMESPACES: &str = "set -- unshare --user --map-current-user --keep-caps sh -c \
    'echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all \"$@\"' sh \"$@\"";
/// A copy has no set-user-ID bit.
const FILE_CAPABILITIES: &str = "for id in u g; do cp /usr/bin/new${id}idmap /tmp/map && mv /tmp/map /usr/bin/new${id}idmap && \
    setcap cap_set${id}id=ep /usr/bin/new${id}idmap || exit 99; done; USER";

/// A job whose seccomp filter blocks one system call with this errno.
fn job_without(place: &Place, call: &str, error: u32, security: &str, setup: &str) -> [String; 2] {
    let profile = format!(
        r#"{{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{{"names": ["{call}"], "action": "SCMP_ACT_ERRNO", "errnoRet": {error}}}]}}"#
    );
    let profile = place.file("seccomp/job.json", &profile);
    let directory = profile.trim_end_matches("/job.json").to_owned();
    let security =
        format!("seccompProfile: {{type: Localhost, localhostProfile: job.json}}, {security}");
    let job = JOB
        .replace("SECURITY", &security)
        .replace("SETUP", setup)
        .replace("HOST_USERS", "true")
        .replace("CRIB", env!("CARGO_BIN_EXE_crib"));
    [directory, place.file("job.yaml", &job)]
}

/// No directory of the run may be left.
const REFUSED: &str =
    "\"$@\"; [ $? = 3 ] || exit 9; [ \"$(ls /own | grep -c crib-run-)\" = 0 ] || exit 8; exit 0";
const ENOSYS: u32 = 38;
const EPERM: u32 = 1;

#[rstest]
#[case::openat2("openat2", ENOSYS, "runAsUser: 0", "the system call openat2 is unavailable")]
#[case::openat2_of_user("openat2", EPERM, "runAsUser: 1000", "openat2 is unavailable")]
#[case::setsid("setsid", EPERM, "runAsUser: 0", "forbids the system call setsid")]
#[case::setsid_of_user("setsid", EPERM, "runAsUser: 1000", "forbids the system call setsid")]
#[case::capset("capset", EPERM, "runAsUser: 0", "forbids the system call capset")]
#[tokio::test]
async fn box_where_no_container_can_start_is_refused_at_once(
    #[case] call: &str,
    #[case] error: u32,
    #[case] security: &str,
    #[case] message: &str,
) {
    harness::needs!(Root, Namespaces);
    let place = Place::new();
    let [profiles, job] = job_without(&place, call, error, security, REFUSED);
    let run = ["run", "--quiet", "--seccomp-profile-root", &profiles, &job];
    let ended = place.crib(&run).await.exits(0);
    ended.out_has(message);
}

/// Without namespaces the containers of an ordinary user need neither call.
#[rstest]
#[case::setgroups("setgroups", ENOSYS)]
#[case::capset("capset", EPERM)]
#[tokio::test]
async fn box_of_user_without_calls_of_root_gets_process(#[case] call: &str, #[case] error: u32) {
    harness::needs!(Root, Namespaces);
    let place = Place::new();
    let [profiles, job] = job_without(&place, call, error, "runAsUser: 1000", "");
    let run = ["run", "--quiet", "--seccomp-profile-root", &profiles, &job];
    let ended = place.crib(&run).await.exits(0);
    ended.out_has("crib: isolation: process");
    ended.out_has("it runs as ");
}

#[tokio::test]
async fn rootless_pods_run_where_the_host_has_no_tty() {
    harness::needs!(Root, Namespaces, UserNamespaces);
    let place = Place::new();
    let setup = format!("rm -f /dev/tty; {USER}");
    let job = JOB
        .replace("SECURITY", "")
        .replace("SETUP", &setup)
        .replace("HOST_USERS", "true")
        .replace("CRIB", env!("CARGO_BIN_EXE_crib"));
    let manifest = place.file("job.yaml", &job);
    let ended = place.crib(&["run", "--quiet", &manifest]).await.exits(0);
    ended.out_has("crib: isolation: rootless (");
    ended.out_has("it runs as 0");
}

/// docs/ci.md has a line for each: the isolation, whether limits apply, and whether pods reach other hosts. `CRIB_UPDATE_DOCS=1`
/// writes these into the line that begins with the description.
#[rstest]
#[case::docker_root("a container, as root", DEFAULT, true, "", ["process", "no", "yes"])]
#[case::docker_user("a container, as an ordinary user", "RUNTIME_DEFAULT, runAsUser: 1000", true, "", ["process", "no", "yes"])]
#[case::docker_root_without_rights("a container, as root with `--cap-drop ALL`", "RUNTIME_DEFAULT, capabilities: {drop: [ALL]}", true, "", ["process", "no", "yes"])]
#[case::unconfined_root("a container with `seccomp=unconfined`, as root", "", true, "", ["rootless (65536 ids)", "no", "no"])]
#[case::unconfined_root_of_podman("a container with `seccomp=unconfined` and Podman's default capabilities, as root", "capabilities: {drop: [AUDIT_WRITE, MKNOD, NET_RAW]}", true, "", ["rootless (65536 ids)", "no", "no"])]
#[case::unconfined_root_with_sys_admin("a container with `seccomp=unconfined` and `--cap-add SYS_ADMIN`, as root", "capabilities: {add: [SYS_ADMIN]}", true, "", ["rootless (65536 ids)", "no", "no"])]
#[case::unconfined_root_without_setuid("a container with `seccomp=unconfined` but without `CAP_SETUID` and `CAP_SETGID`, as root", "capabilities: {drop: [SETUID, SETGID]}", true, "", ["rootless (a single id)", "no", "no"])]
#[case::unconfined_root_without_setfcap("a container with `seccomp=unconfined` but without `CAP_SETFCAP`, as root (Linux 5.12 or later)", "capabilities: {drop: [SETFCAP]}", true, "", ["process", "no", "yes"])]
#[case::unconfined_user("a container with `seccomp=unconfined`, as an ordinary user", "runAsUser: 1000", true, "", ["rootless (a single id)", "no", "no"])]
#[case::unconfined_user_without_new_privileges("a container with `seccomp=unconfined` and `no-new-privileges`, as an ordinary user", "runAsUser: 1000, allowPrivilegeEscalation: false", true, "", ["rootless (a single id)", "no", "no"])]
#[case::unconfined_user_with_file_capabilities("a container with `seccomp=unconfined`, as an ordinary user, where `newuidmap` and `newgidmap` have file capabilities", "", true, FILE_CAPABILITIES, ["rootless (65537 ids)", "no", "no"])]
#[case::own_user_namespace("a container with `seccomp=unconfined` in a user namespace, such as a rootless Podman container, as root", "", false, "", ["rootless (65536 ids)", "no", "no"])]
#[case::privileged_root("a container with `--privileged`, as root", "privileged: true", true, FORWARDS, ["root", "yes", "yes"])]
#[case::privileged_root_without_cgroups("a container with `--privileged` and cgroups mounted read-only, as root", "privileged: true", true, READ_ONLY_CGROUPS, ["root", "no", "yes"])]
#[case::privileged_user("a container with `--privileged`, as an ordinary user with subordinate ids (`/etc/subuid`, `/etc/subgid`)", "privileged: true, runAsUser: 1000", true, "", ["rootless (65537 ids)", "no", "yes"])]
#[case::privileged_user_without_tun("a container with `--privileged` but without `/dev/net/tun`, as an ordinary user with subordinate ids", "privileged: true", true, WITHOUT_TUN, ["rootless (65537 ids)", "no", "yes"])]
#[case::privileged_user_without_user_namespaces("a container with `--privileged` where user namespaces are forbidden (`user.max_user_namespaces=0`), as an ordinary user", "privileged: true, runAsUser: 1000", true, WITHOUT_USER_NAMESPACES, ["process", "no", "yes"])]
#[tokio::test]
async fn job_gets_the_isolation_of_its_box(
    #[case] description: &str,
    #[case] security: &str,
    #[case] host_users: bool,
    #[case] setup: &str,
    #[case] expected: [&str; 3],
) {
    harness::needs!(Root, Namespaces, UserNamespaces);
    let place = Place::new();
    let job = JOB
        .replace("SECURITY", &security.replace("RUNTIME_DEFAULT", DEFAULT))
        .replace("SETUP", &setup.replace("USER", USER))
        .replace("HOST_USERS", &host_users.to_string())
        .replace("CRIB", env!("CARGO_BIN_EXE_crib"));
    let manifest = place.file("job.yaml", &job);
    let ended = place.crib(&["run", "--quiet", &manifest]).await.exits(0);
    let line = ended.out.lines().find_map(|line| line.split_once("crib: isolation: "));
    let isolation = line.map(|(_, isolation)| isolation).unwrap_or_default();
    let unless = |message: &str| if ended.out.contains(message) { "no" } else { "yes" };
    let got = [
        isolation,
        unless("crib: warning: limits of memory are not applied"),
        unless("crib: pods cannot reach other hosts"),
    ];
    assert_eq!(got, expected, "{}", ended.out);
    ended.out_has("it runs as ");
    assert_documented(description, got);
}

/// Fails unless docs/ci.md documents the result for an environment.
fn assert_documented(description: &str, [isolation, limits, hosts]: [&str; 3]) {
    static WRITES: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ci.md");
    let start = format!("| {description} | ");
    let row = format!("{start}`{isolation}` | {limits} | {hosts} |");
    let _one_at_a_time = WRITES.lock().unwrap();
    let mut text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find(|line| line.starts_with(&start));
    let line = line.unwrap_or_else(|| panic!("docs/ci.md has no line `{start}…`")).to_owned();
    if std::env::var_os("CRIB_UPDATE_DOCS").is_some() {
        text = text.replace(&line, &row);
        std::fs::write(path, &text).unwrap();
    }
    assert!(text.contains(&row), "docs/ci.md has `{line}`; CRIB_UPDATE_DOCS=1 writes `{row}`");
}

/// Runs a command after `setup`, in its own mount namespace.
fn in_mount_namespace(place: &Place, setup: &str, words: &[&str]) -> tokio::process::Command {
    let crib = place.command(words);
    let mut command = tokio::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{setup} && exec \"$@\""), "sh"]);
    command.arg(crib.as_std().get_program()).args(crib.as_std().get_args());
    for (name, value) in crib.as_std().get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
}

#[rstest]
#[case::null("mount -t tmpfs none /dev", "crib: /dev/null does not exist: create it (mknod")]
#[case::proc("umount -R -l /proc", "crib: /proc is not mounted: mount it (mount -t proc")]
#[tokio::test]
async fn missing_file_of_host_is_named_at_start(#[case] setup: &str, #[case] message: &str) {
    harness::needs!(Root, Namespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "true"));
    let run = in_mount_namespace(&place, setup, &["run", &manifest]);
    place.end(run).await.exits(3).err_begins(message);
    let state = place.path("state");
    let runtime = ["runtime", "--state-dir", state.to_str().unwrap()];
    let runtime = in_mount_namespace(&place, setup, &runtime);
    place.end(runtime).await.exits(3).err_begins(message);
}

#[rstest]
#[case::root(
    "root",
    "this process lacks CAP_SYS_ADMIN; give crib these capabilities, or use --isolation auto"
)]
#[case::rootless(
    "rootless",
    "; give crib CAP_SETFCAP, without which root cannot be mapped, or use --isolation process"
)]
#[tokio::test]
async fn refusal_names_required_permissions(#[case] requested: &str, #[case] message: &str) {
    harness::needs!(Root, UserNamespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "true"));
    let run = ["run", "--isolation", requested, &manifest];
    place.end(in_box(&place, "-sys_admin,-setfcap", &run)).await.exits(3).err_has(message);
}

#[tokio::test]
async fn refusal_in_chroot_names_chroot() {
    harness::needs!(Root, Namespaces, UserNamespaces);
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "true"));
    let jail = place.path("jail");
    std::fs::create_dir(&jail).unwrap();
    let jail = jail.display();
    let setup = format!("mount --rbind / {jail} && set -- chroot {jail} \"$@\"");
    let run = ["run", "--isolation", "rootless", &manifest];
    let ended = place.end(in_mount_namespace(&place, &setup, &run)).await.exits(3);
    ended.err_has("failed to make a user namespace: Operation not permitted");
    ended.err_has("; run crib without the chroot or security module that forbids it, or use");
}

#[rstest]
#[case::limits("prlimit64", EPERM, "auto", "failed to read the limit of open files: EPERM")]
#[case::threads("clone3", EPERM, "auto", "allow the system calls clone3 and clone in the seccomp")]
#[case::mounts("open_tree", ENOSYS, "rootless", "allow open_tree in the seccomp profile")]
#[tokio::test]
async fn refusal_names_forbidden_call(
    #[case] call: &str,
    #[case] error: u32,
    #[case] requested: &str,
    #[case] message: &str,
) {
    harness::needs!(Root, Namespaces, UserNamespaces);
    let place = Place::new();
    let setup = REFUSED.replacen("\"$@\"", &format!("\"$@\" --isolation {requested}"), 1);
    let [profiles, job] = job_without(&place, call, error, "runAsUser: 0", &setup);
    let run = ["run", "--quiet", "--seccomp-profile-root", &profiles, &job];
    place.crib(&run).await.exits(0).out_has(message);
}
