//! Security context: users, groups, capabilities, no_new_privs, masked and read-only paths.

use cri::v1::{
    Capability, ContainerConfig, Int64Value, LinuxContainerUser, SupplementalGroupsPolicy,
};
use harness::fixture_image::{ImageBuilder, Layer};
use harness::witness::{self, Witness};
use harness::{PATIENCE, Pod, Runtime, eventually, fixture};
use rstest::rstest;
use tonic::Code;

use crate::support::{Means, code, skip_if};

/// The default capabilities of containerd and Docker: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP,
/// NET_BIND_SERVICE, NET_RAW, SYS_CHROOT, MKNOD, AUDIT_WRITE, SETFCAP.
const DEFAULT: u64 = 0xa80425fb;
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;

fn value(value: i64) -> Option<Int64Value> {
    Some(Int64Value { value })
}

/// Starts a container, and finds its first process from outside.
async fn start_with_witness(pod: &Pod, mut config: ContainerConfig) -> (String, Witness) {
    // In an argument, because the environment of another user's process is not readable.
    let mark = format!("CRIB_TEST_MARK={}", fixture::unique("mark"));
    config.args.push(mark.clone());
    let id = pod.start(config).await.unwrap();
    let found = eventually(
        PATIENCE,
        &format!("the process of container {id}"),
        || async {
            let found = witness::marked(&mark);
            found.first().copied().ok_or("no such process")
        },
    )
    .await;
    (id, found)
}

fn with_capabilities(add: &[&str], drop: &[&str]) -> ContainerConfig {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let mut config = fixture::forever(&fixture::unique("c"));
    fixture::security(&mut config).capabilities = Some(Capability {
        add_capabilities: words(add),
        drop_capabilities: words(drop),
        ..Default::default()
    });
    config
}

#[rstest]
#[case::default(&[], &[], DEFAULT)]
#[case::one_added(&["NET_ADMIN"], &[], DEFAULT | NET_ADMIN)]
#[case::one_added_by_long_name(&["CAP_NET_ADMIN"], &[], DEFAULT | NET_ADMIN)]
#[case::one_dropped(&[], &["NET_RAW"], DEFAULT & !NET_RAW)]
#[case::none(&[], &["ALL"], 0)]
#[case::one(&["NET_ADMIN"], &["ALL"], NET_ADMIN)]
#[case::all(&["ALL"], &[], u64::MAX)]
#[case::all_but_one(&["ALL"], &["NET_RAW"], !NET_RAW)]
#[tokio::test]
async fn capabilities_are_added_and_dropped(
    #[case] add: &[&str],
    #[case] drop: &[&str],
    #[case] expected: u64,
) {
    let runtime = Runtime::with().start().await.unwrap();
    skip_if!(
        "capabilities_are_added_and_dropped",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    // The daemon can only grant capabilities that it has.
    let daemon = Witness {
        pid: runtime.pid().unwrap(),
    };
    let expected = expected & daemon.capabilities("CapPrm").unwrap();
    let (_, process) = start_with_witness(&pod, with_capabilities(add, drop)).await;
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(process.capabilities(set).unwrap(), expected, "{set}");
    }
    assert_eq!(process.capabilities("CapAmb").unwrap(), 0);
}

/// A non-root user gets the ambient capabilities and no others, with or without a seccomp filter.
#[rstest]
#[tokio::test]
async fn non_root_user_keeps_ambient_capabilities_only(#[values(false, true)] filtered: bool) {
    let runtime = Runtime::with().start().await.unwrap();
    skip_if!(
        "non_root_user_keeps_ambient_capabilities_only",
        Means::of(&runtime).await.no_users()
    );
    let pod = runtime.pod("p").await.unwrap();
    let mut config = with_capabilities(&[], &[]);
    let security = fixture::security(&mut config);
    security.run_as_user = value(1001);
    if filtered {
        security.seccomp = Some(cri::v1::SecurityProfile::default());
    }
    let capabilities = security.capabilities.get_or_insert_default();
    capabilities.add_ambient_capabilities = vec!["NET_ADMIN".to_owned()];
    let (_, process) = start_with_witness(&pod, config).await;
    for set in ["CapEff", "CapPrm", "CapAmb", "CapInh"] {
        assert_eq!(process.capabilities(set).unwrap(), NET_ADMIN, "{set}");
    }
    assert_eq!(process.capabilities("CapBnd").unwrap(), DEFAULT | NET_ADMIN);
}

#[tokio::test]
async fn create_rejects_unknown_capability() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let error = pod
        .create(with_capabilities(&["NET_ADMN"], &[]))
        .await
        .unwrap_err();
    assert!(error.message().contains("NET_ADMN"), "{error:?}");
}

#[tokio::test]
async fn privileged_container_has_all_capabilities_of_daemon() {
    let runtime = Runtime::with().start().await.unwrap();
    skip_if!(
        "privileged_container_has_all_capabilities_of_daemon",
        Means::of(&runtime).await.no_namespaces()
    );
    let mut sandbox = runtime.sandbox("p");
    sandbox
        .linux
        .as_mut()
        .unwrap()
        .security_context
        .as_mut()
        .unwrap()
        .privileged = true;
    let pod = Pod::run(&runtime.client, sandbox).await.unwrap();
    let daemon = Witness {
        pid: runtime.pid().unwrap(),
    };
    let mut config = fixture::forever("c");
    fixture::security(&mut config).privileged = true;
    let (_, process) = start_with_witness(&pod, config).await;
    assert_eq!(
        process.capabilities("CapEff"),
        daemon.capabilities("CapPrm")
    );
}

#[rstest]
#[case::requested(true, "1")]
#[case::not_requested(false, "0")]
#[tokio::test]
async fn no_new_privs_is_set_when_requested(#[case] no_new_privs: bool, #[case] expected: &str) {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::script("c", "grep NoNewPrivs /proc/self/status");
    fixture::security(&mut config).no_new_privs = no_new_privs;
    if runtime.isolation().await.unwrap() == "process" {
        harness::skip!(
            "no_new_privs_is_set_when_requested",
            "a process without namespaces has those of the daemon"
        );
    }
    assert_eq!(
        pod.output(config).await.unwrap(),
        format!("NoNewPrivs:\t{expected}\n")
    );
}

/// An image with its own users and groups.
fn image_of_users(path: &std::path::Path) -> String {
    let passwd = "root:x:0:0::/root:/bin/sh\nalice:x:1001:1002::/home/alice:/bin/sh\n";
    let group = "root:x:0:\nstaff:x:1002:\nwheel:x:1234:alice\naudio:x:50000:alice,bob\n";
    let layer = Layer::new()
        .file("etc/passwd", 0o644, passwd)
        .file("etc/group", 0o644, group);
    let mut layer = layer.directory("tmp", 0o1777);
    for program in ["/bin/sh", "/bin/sleep", "/usr/bin/id", "/bin/grep"] {
        layer = layer.host_program(program).unwrap();
    }
    let name = "example.com/users:1";
    ImageBuilder::new(name)
        .layer(layer)
        .write_docker(path)
        .unwrap();
    name.to_owned()
}

struct Wish {
    user: Option<i64>,
    name: &'static str,
    group: Option<i64>,
    more: &'static [i64],
    policy: SupplementalGroupsPolicy,
}

const NOTHING: Wish = Wish {
    user: None,
    name: "",
    group: None,
    more: &[],
    policy: SupplementalGroupsPolicy::Merge,
};

/// `id` prints the user, the group, and all groups in order.
#[rstest]
#[case::root(NOTHING, "0 0 0")]
#[case::by_number(Wish { user: Some(1001), ..NOTHING }, "1001 1002 1002 1234 50000")]
#[case::by_unknown_number(Wish { user: Some(7), ..NOTHING }, "7 0 0")]
#[case::by_name(Wish { name: "alice", ..NOTHING }, "1001 1002 1002 1234 50000")]
#[case::with_group(Wish { user: Some(1001), group: Some(77), ..NOTHING }, "1001 77 77 1234 50000")]
#[case::with_more_groups(Wish { user: Some(1001), more: &[5, 1234], ..NOTHING }, "1001 1002 5 1002 1234 50000")]
#[case::strict(Wish { user: Some(1001), more: &[1234], policy: SupplementalGroupsPolicy::Strict, ..NOTHING }, "1001 1002 1002 1234")]
#[case::root_with_more(Wish { more: &[5], ..NOTHING }, "0 0 0 5")]
#[tokio::test]
async fn process_runs_as_requested_user_and_groups(#[case] wish: Wish, #[case] expected: &str) {
    let place = tempfile::tempdir().unwrap();
    let archive = place.path().join("users.tar");
    let image = image_of_users(&archive);
    let runtime = Runtime::with().archive(&archive).start().await.unwrap();
    skip_if!(
        "process_runs_as_requested_user_and_groups",
        Means::of(&runtime).await.no_users()
    );
    runtime.client.pull(&image).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let look = "echo $(id -u) $(id -g) $(for g in $(id -G); do echo $g; done)";
    let mut config = fixture::script(
        "c",
        &format!("{look} > /tmp/id; while :; do sleep 1000; done"),
    );
    config.image.as_mut().unwrap().image = image;
    let security = fixture::security(&mut config);
    security.run_as_user = wish.user.and_then(value);
    security.run_as_username = wish.name.to_owned();
    security.run_as_group = wish.group.and_then(value);
    security.supplemental_groups = wish.more.to_vec();
    security.supplemental_groups_policy = wish.policy.into();
    let (id, process) = start_with_witness(&pod, config).await;

    let numbers = |text: &str| {
        text.split_whitespace()
            .map(|word| word.parse::<i64>().unwrap())
            .collect::<Vec<_>>()
    };
    let expected = numbers(expected);
    let (uid, gid, mut groups) = (expected[0], expected[1], expected[2..].to_vec());
    groups.sort_unstable();
    let inside = eventually(PATIENCE, "what id says", || async {
        runtime.client.sh(&id, "grep . /tmp/id").await
    })
    .await;
    for (who, text) in [
        ("the first process", inside),
        ("an exec", runtime.client.sh(&id, look).await.unwrap()),
    ] {
        let seen = numbers(&text);
        let mut seen_groups = seen[2..].to_vec();
        seen_groups.sort_unstable();
        seen_groups.dedup();
        assert_eq!(
            (seen[0], seen[1], &seen_groups),
            (uid, gid, &groups),
            "{who}"
        );
    }
    let status = runtime.client.container(&id).await.unwrap();
    let LinuxContainerUser {
        uid: told_uid,
        gid: told_gid,
        mut supplemental_groups,
    } = status.user.unwrap().linux.unwrap();
    supplemental_groups.push(gid);
    supplemental_groups.sort_unstable();
    supplemental_groups.dedup();
    assert_eq!(
        (told_uid, told_gid, &supplemental_groups),
        (uid, gid, &groups)
    );
    // Other users than root lose the capabilities.
    if uid != 0 {
        assert_eq!(process.capabilities("CapEff").unwrap(), 0);
    }
}

#[tokio::test]
async fn create_rejects_invalid_users_and_groups() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut group_alone = fixture::forever("a");
    fixture::security(&mut group_alone).run_as_group = value(77);
    assert_eq!(code(pod.create(group_alone).await), Code::InvalidArgument);

    let mut unknown = fixture::forever("b");
    fixture::security(&mut unknown).run_as_username = "no-such-user".to_owned();
    let error = pod.create(unknown).await.unwrap_err();
    assert!(error.message().contains("no-such-user"), "{error:?}");

    for impossible in [-1, i64::from(u32::MAX), i64::MAX] {
        let mut config = fixture::forever("c");
        fixture::security(&mut config).run_as_user = value(impossible);
        code(pod.create(config).await);
        let mut config = fixture::forever("d");
        fixture::security(&mut config).supplemental_groups = vec![impossible];
        code(pod.create(config).await);
    }
}

#[tokio::test]
async fn run_as_user_error_names_missing_subordinate_ids() {
    let runtime = Runtime::start().await.unwrap();
    if !runtime.isolation().await.unwrap().contains("single id") {
        return;
    }
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    fixture::security(&mut config).run_as_user = value(1001);
    let error = pod.create(config).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("subordinate"), "{error:?}");
}

#[rstest]
#[tokio::test]
async fn root_writes_stay_in_container(
    #[values((false, "written\n"), (true, "Read-only file system\n"))] root: (bool, &str),
    #[values("/", "/var/", "/tmp/", "/var/tmp/")] directory: &str,
) {
    let (readonly_rootfs, expected) = root;
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "root_writes_stay_in_container",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let file = fixture::unique(directory) + "-crib-test";
    let script = format!(
        "(echo text > {file} && echo written) 2>&1 | grep -oE 'written|Read-only file system'"
    );
    let mut config = pod.script("c", &script);
    fixture::security(&mut config).readonly_rootfs = readonly_rootfs;
    assert_eq!(pod.output(config).await.unwrap(), expected);
    assert!(
        !std::path::Path::new(&file).exists(),
        "it was written to the host"
    );
    // The next container does not see the file either.
    let next = pod.script("d", &format!("cat {file} 2>/dev/null || echo nothing"));
    assert_eq!(pod.output(next).await.unwrap(), "nothing\n");
}

#[tokio::test]
async fn masked_and_read_only_paths_are_applied() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "masked_and_read_only_paths_are_applied",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let mut config = pod.script(
        "c",
        "wc -c < /etc/passwd; ls /usr/share | wc -l; (echo x > /var/tmp/x) 2>&1 | grep -o 'Read-only file system'",
    );
    let security = fixture::security(&mut config);
    security.masked_paths = ["/etc/passwd", "/usr/share", "/no/such/path"]
        .map(ToOwned::to_owned)
        .to_vec();
    security.readonly_paths = ["/var/tmp", "/no/such/path"]
        .map(ToOwned::to_owned)
        .to_vec();
    assert_eq!(
        pod.output(config).await.unwrap(),
        "0\n0\nRead-only file system\n"
    );
}

#[tokio::test]
async fn default_paths_are_protected_without_security_context() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "default_paths_are_protected_without_security_context",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    // Skips files that this kernel does not have.
    let script = "for file in /proc/sys/kernel/domainname /proc/sysrq-trigger /proc/irq/default_smp_affinity; do
            [ ! -e $file ] || (echo x > $file) 2>&1 | grep -oE 'Read-only file system' || echo $file can be written
        done
        (mkdir /sys/crib) 2>&1 | grep -oE 'Read-only|Permission|not permitted' >/dev/null || echo /sys can be written
        for file in /proc/kcore /proc/keys /proc/timer_list; do
            [ ! -e $file ] || [ $(head -c 1 $file | wc -c) = 0 ] || echo $file can be read
        done
        [ -z \"$(ls /sys/firmware)\" ] || echo /sys/firmware can be read; exit 0";
    let mut config = pod.script("c", script);
    config.linux = None;
    let out = pod.output(config).await.unwrap();
    assert!(
        out.lines().count() >= 1 && out.lines().all(|line| line == "Read-only file system"),
        "{out}"
    );
}

/// Each default path that exists must be masked or read-only, even if it reads as empty on this kernel.
#[tokio::test]
async fn every_default_path_is_covered() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "every_default_path_is_covered",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let script = "for path in acpi asound interrupts kcore keys latency_stats sched_debug scsi timer_list timer_stats \
            bus fs irq sys sysrq-trigger; do
            [ ! -e /proc/$path ] || grep -q \" /proc/$path \" /proc/self/mountinfo || echo /proc/$path
        done
        for path in devices/virtual/powercap firmware; do
            [ ! -e /sys/$path ] || grep -q \" /sys/$path \" /proc/self/mountinfo || echo /sys/$path
        done; echo all";
    let mut config = pod.script("c", script);
    config.linux = None;
    assert_eq!(pod.output(config).await.unwrap(), "all\n");
}

/// A kubelet sends empty lists for `procMount: Unmasked`.
#[tokio::test]
async fn empty_path_lists_protect_nothing() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "empty_path_lists_protect_nothing",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let config = pod.script("c", "grep -c ' /proc/' /proc/self/mountinfo; true");
    assert_eq!(pod.output(config).await.unwrap(), "0\n");
}

#[tokio::test]
async fn standard_devices_exist() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "standard_devices_exist",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let script = "echo x > /dev/null && head -c 3 /dev/zero | wc -c && head -c 3 /dev/urandom | wc -c
        head -c 1 /dev/zero 2>&1 >/dev/full | grep -o 'No space left on device'
        test -c /dev/tty && test -c /dev/random && test -c /dev/ptmx && test -d /dev/shm && readlink /dev/fd
        ls /dev | grep -cE '^(sd|vd|nvme|loop|mem|kmsg)'; true";
    let out = pod.output(pod.script("c", script)).await.unwrap();
    assert_eq!(out, "3\n3\nNo space left on device\n/proc/self/fd\n0\n");
}

#[tokio::test]
async fn oom_score_adj_is_applied() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    config.linux.as_mut().unwrap().resources = Some(cri::v1::LinuxContainerResources {
        oom_score_adj: 700,
        ..Default::default()
    });
    let (_, process) = start_with_witness(&pod, config).await;
    assert_eq!(process.text("oom_score_adj"), "700\n");
}

/// A kubelet requests -997 for some pods: where the kernel denies it, they run with the runtime's score.
#[tokio::test]
async fn disallowed_oom_score_adj_falls_back_to_score_of_runtime() {
    let runtime = Runtime::start().await.unwrap();
    let Some(daemon) = runtime.pid() else {
        harness::skip!(
            "disallowed_oom_score_adj_falls_back_to_score_of_runtime",
            "the runtime is external"
        );
    };
    let own = std::fs::read_to_string(format!("/proc/{daemon}/oom_score_adj")).unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    config.linux.as_mut().unwrap().resources = Some(cri::v1::LinuxContainerResources {
        oom_score_adj: -997,
        ..Default::default()
    });
    let (_, process) = start_with_witness(&pod, config).await;
    let given = process.text("oom_score_adj");
    assert!(
        given == "-997\n" || given == own,
        "{given}, the runtime {own}"
    );
}
