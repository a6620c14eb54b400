//! Rules for the environment of a container's process: inherited variables, kernel filesystems, programs in mounts.

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-CFG-023": "Containers and ExecSync commands do not inherit environment variables, such as NOTIFY_SOCKET, that systemd sets for the runtime.",
        CONTAINERD, tags ["environment"], calls [CreateContainer, ExecSync],
        variables_of_runtime_are_left_out given [namespaces, container], faults [
            "CreateContainer request set config.envs [{\"key\": \"NOTIFY_SOCKET\", \"value\": \"L3J1bg==\"}]",
            "ExecSync request set cmd [\"/bin/sh\", \"-c\", \"echo LISTEN_FDS=3\"]",
        ];
    Should "CRI-MNT-034": "An mqueue filesystem is mounted at /dev/mqueue.",
        CONTAINERD, tags ["mounts", "files"], calls [CreateContainer],
        message_queues_are_mounted given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo 1 1 0:1 / /dev/shm rw - tmpfs shm rw\"]",
        ];
    Should "CRI-MNT-035": "/sys/class/net lists the network interfaces of the pod, not those of the host.",
        KUBELET, tags ["kubelet", "network", "files"], calls [CreateContainer],
        interfaces_in_sys_are_those_of_pod given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo lo; echo eth7; echo; cat /proc/net/dev\"]",
        ];
    Must "CRI-MNT-036": "Programs in a mounted host directory can be executed.",
        KUBELET, tags ["kubelet", "mounts"], calls [CreateContainer],
        program_in_mount_runs given [namespaces], faults ["CreateContainer request drop config.mounts"];
    Should "CRI-SEC-043": "An unprivileged container cannot create a cgroup below /sys/fs/cgroup.",
        CONTAINERD, tags ["resources", "files"], calls [CreateContainer],
        no_cgroup_is_made given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo made\"]",
        ];
};

/// Variables that systemd sets for the processes that it starts (systemd.exec(5), sd_notify(3), sd_listen_fds(3)).
const OF_SYSTEMD: [&str; 9] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "MEMORY_PRESSURE_WATCH",
];

async fn variables_of_runtime_are_left_out(x: &Context, id: String) -> Verdict {
    let of_first = x.client.sh(&id, "tr '\\0' '\\n' </proc/1/environ").await?;
    let of_command = x.client.sh(&id, "env").await?;
    for (whose, text) in [("the container", of_first), ("a command of ExecSync", of_command)] {
        let names = text.lines().filter_map(|line| line.split_once('='));
        let names = names.map(|(name, _)| name);
        let leaked: Vec<&str> = names.filter(|name| OF_SYSTEMD.contains(name)).collect();
        let what = format!("systemd variables in the environment of {whose}");
        ensure(leaked.is_empty(), &what, "none", leaked)?;
    }
    Ok(())
}

async fn message_queues_are_mounted(x: &Context) -> Verdict {
    let mounts = x.output(x.script("c", "cat /proc/self/mountinfo")).await?;
    let queues = mounts
        .lines()
        .any(|line| line.split(' ').nth(4) == Some("/dev/mqueue") && line.contains(" - mqueue "));
    let what = "the mount at /dev/mqueue";
    ensure(queues, what, "of the type mqueue", mounts)
}

async fn interfaces_in_sys_are_those_of_pod(x: &Context) -> Verdict {
    let output = x.output(x.script("c", "ls /sys/class/net; echo; cat /proc/net/dev"));
    let output = output.await?;
    let (in_sys, in_proc) = output.split_once("\n\n").unwrap_or((&output, ""));
    // The bonding driver adds a file.
    let in_sys = in_sys.lines().filter(|name| *name != "bonding_masters");
    let mut in_sys: Vec<&str> = in_sys.collect();
    let in_proc = in_proc.lines().filter_map(|line| line.split_once(':'));
    let mut in_proc: Vec<&str> = in_proc.map(|(name, _)| name.trim()).collect();
    in_sys.sort_unstable();
    in_proc.sort_unstable();
    let what = "/sys/class/net, compared with /proc/net/dev";
    equal(what, &in_sys, &in_proc)
}

async fn program_in_mount_runs(x: &Context) -> Verdict {
    let directory = x.shared.directory.join(x.unique("programs"));
    let script = directory.join("run");
    let write = || {
        std::fs::create_dir_all(&directory)?;
        harness::process::write_program(&script, "#!/bin/sh\necho ran\n")
    };
    write().map_err(|error| Outcome::Skipped(format!("failed to write a program: {error}")))?;
    // The host's filesystem may be mounted noexec.
    let flags = nix::sys::statvfs::statvfs(&directory).map(|found| found.flags());
    if flags.is_ok_and(|flags| flags.contains(nix::sys::statvfs::FsFlags::ST_NOEXEC)) {
        let why = "the directory for temporary files is mounted noexec";
        return Err(Outcome::Skipped(why.to_owned()));
    }
    let mut config = x.script("c", "/mnt/run || echo refused");
    config.mounts.push(v1::Mount {
        container_path: "/mnt".to_owned(),
        host_path: directory.display().to_string(),
        selinux_relabel: true,
        ..Default::default()
    });
    x.prints(config, "the output of the program", "ran\n").await
}

async fn no_cgroup_is_made(x: &Context) -> Verdict {
    // With cgroup v1, /sys/fs/cgroup itself is not a cgroup.
    let text = "cd /sys/fs/cgroup || { echo end; exit; }
        for group in memory pids; do [ -d $group ] && groups=\"$groups $group\"; done
        for group in ${groups:-.}; do
            mkdir $group/crib-check-made 2>/dev/null && echo made && rm -d $group/crib-check-made
        done; echo end";
    let mut config = x.script("c", text);
    fixture::security(&mut config).privileged = false;
    let output = x.output(config).await?;
    let made = output.contains("made");
    ensure(!made, "mkdir below /sys/fs/cgroup", "to fail", output)
}
