//! Security context: users, groups, capabilities, no_new_privs, masked and read-only paths.

use cri::v1::{ContainerConfig, Int64Value};

use crate::support::*;

fn value(value: i64) -> Option<Int64Value> {
    Some(Int64Value { value })
}

/// Starts a container, and finds its first process from outside.
pub(crate) async fn start_with_witness(
    pod: &Pod,
    mut config: ContainerConfig,
) -> (String, ObservedProcess) {
    // In an argument, because the environment of another user's process is not readable.
    let mark = format!("CRIB_TEST_MARK={}", fixture::unique("mark"));
    config.args.push(mark.clone());
    let id = pod.start(config).await.unwrap();
    let found = eventually(WAIT_LIMIT, &format!("the process of container {id}"), || async {
        let found = procfs::marked(&mark);
        found.first().copied().ok_or("no such process")
    })
    .await;
    (id, found)
}

#[tokio::test]
async fn create_rejects_invalid_users_and_groups() {
    let (_runtime, pod) = with_pod().await;
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
    rejected(pod.create(config).await, Code::InvalidArgument, "subordinate");
}

#[rstest]
#[tokio::test]
async fn root_writes_stay_in_container(
    #[values((false, "written\n"), (true, "Read-only file system\n"))] root: (bool, &str),
    #[values("/", "/var/", "/tmp/", "/var/tmp/")] directory: &str,
) {
    harness::needs!(Namespaces);
    let (readonly_rootfs, expected) = root;
    let (_runtime, pod) = with_pod().await;
    let file = fixture::unique(directory) + "-crib-test";
    let script = format!(
        "(echo text > {file} && echo written) 2>&1 | grep -oE 'written|Read-only file system'"
    );
    let mut config = pod.script("c", &script);
    fixture::security(&mut config).readonly_rootfs = readonly_rootfs;
    assert_eq!(pod.output(config).await.unwrap(), expected);
    assert!(!std::path::Path::new(&file).exists(), "it was written to the host");
    // The next container does not see the file either.
    let next = pod.script("d", &format!("cat {file} 2>/dev/null || echo nothing"));
    assert_eq!(pod.output(next).await.unwrap(), "nothing\n");
}

#[tokio::test]
async fn default_paths_are_protected_without_security_context() {
    harness::needs!(Namespaces);
    let (_runtime, pod) = with_pod().await;
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
    harness::needs!(Namespaces);
    let (_runtime, pod) = with_pod().await;
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

/// A kubelet requests -997 for some pods: if the kernel denies it, they run with the runtime's score.
#[tokio::test]
async fn disallowed_oom_score_adj_falls_back_to_score_of_runtime() {
    let runtime = Runtime::start().await.unwrap();
    let daemon = runtime.pid().unwrap();
    let own = std::fs::read_to_string(format!("/proc/{daemon}/oom_score_adj")).unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    config.linux.as_mut().unwrap().resources =
        Some(v1::LinuxContainerResources { oom_score_adj: -997, ..Default::default() });
    let (_, process) = start_with_witness(&pod, config).await;
    let given = process.text("oom_score_adj");
    assert!(given == "-997\n" || given == own, "{given}, the runtime {own}");
}
