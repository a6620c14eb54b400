//! Rules for the access of a container's user: groups, standard streams, writable mounts, modes of devices.

use std::os::unix::fs::PermissionsExt as _;

use harness::cri_log::Stream;

use crate::prelude::*;
use crate::rules::limits::with;
use crate::rules::mounts::{directory, of};
use crate::rules::security::groups_in;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SEC-029": "A container's process has all configured supplemental groups, even if there are 20, and ContainerStatus lists them if it reports a user.",
        KUBELET, tags ["kubelet", "user"], calls [CreateContainer, ContainerStatus],
        many_groups_are_kept given [users], faults [
            "CreateContainer request drop config.linux.security_context.supplemental_groups",
            "CreateContainer request set config.linux.security_context.supplemental_groups [\"3001\", \"3002\"]",
            "ContainerStatus drop status.user.linux.supplemental_groups",
        ];
    Should "CRI-SEC-030": "Masked and read-only paths do not apply to a privileged container, even though the kubelet's request lists them.",
        CONTAINERD, tags ["kubelet", "files"], calls [CreateContainer],
        privileged_container_sees_all, faults [
            "CreateContainer request drop config.linux.security_context.privileged",
        ];
    Must "CRI-SEC-031": "A writable mount stays writable if the root filesystem is read-only.",
        CRITEST, tags ["kubelet", "mounts"], calls [CreateContainer],
        mount_in_read_only_root_is_written, faults [
            "CreateContainer request drop config.linux.security_context.readonly_rootfs",
            "CreateContainer request drop config.mounts",
            "CreateContainer request set config.mounts.readonly true",
        ];
    Must "CRI-SEC-032": "A non-root process can open /dev/stdout and /dev/stderr, in a container and in an ExecSync command.",
        CONTAINERD, tags ["kubelet", "user", "exec"], calls [CreateContainer, ExecSync],
        streams_are_opened_by_path given [users], faults [
            "CreateContainer request drop config.linux.security_context.run_as_user",
            "CreateContainer request set config.tty true",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"exec >/dev/null; id -u >/dev/stdout\"]",
            "ExecSync drop stderr",
            "ExecSync set stdout \"MTIzNApvdGhlcgo=\"",
        ];
    Must "CRI-SEC-033": "The highest oom_score_adj, 1000, which the kubelet requests for BestEffort pods, is set unchanged.",
        KUBELET, tags ["kubelet", "resources"], calls [CreateContainer],
        highest_oom_score_is_set, faults [
            "CreateContainer request drop config.linux.resources",
            "CreateContainer request set config.linux.resources.oom_score_adj 999",
        ];
    Must "CRI-SEC-034": "A host device has the host's file mode in the container.",
        API, tags ["kubelet", "device"], calls [CreateContainer],
        device_has_mode_of_host given [namespaces], faults [
            "CreateContainer request drop config.devices",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo 600\"]",
        ];
};

async fn many_groups_are_kept(x: &Context) -> Verdict {
    let wanted: Vec<i64> = (3001..=3020).collect();
    let pod = x.pod().await?;
    let mut config = x.script("c", "id -G; echo end; while :; do sleep 1000; done");
    fixture::security(&mut config).supplemental_groups.clone_from(&wanted);
    let id = pod.start(config).await?;
    x.logged(&pod, "end").await?;
    let missing = |groups: &[i64]| -> Vec<i64> {
        let missing = wanted.iter().filter(|group| !groups.contains(group));
        missing.copied().collect()
    };
    let none = Vec::<i64>::new();
    let lines = x.lines(&pod);
    // id may first print errors about groups without names.
    let line = lines.iter().find(|line| line.stream == Stream::Stdout);
    let groups = groups_in(line.map_or("", |line| line.text.as_str()));
    equal("groups missing in id -G", &missing(&groups), &none)?;
    // Older runtimes do not have the field.
    let Some(user) = x.client.container(&id).await?.user else {
        return Ok(());
    };
    let groups = user.linux.unwrap_or_default().supplemental_groups;
    let what = "groups missing in user.linux.supplemental_groups of ContainerStatus";
    equal(what, &missing(&groups), &none)
}

async fn privileged_container_sees_all(x: &Context) -> Verdict {
    let volume = directory(x)?;
    let script = "read -r word rest </proc/version; echo \"$word\"
        (echo text >/mnt/file) 2>/dev/null && echo written; echo end";
    let mut config = x.script("c", script);
    let security = fixture::security(&mut config);
    security.privileged = true;
    security.masked_paths = vec!["/proc/version".to_owned()];
    security.readonly_paths = vec!["/mnt".to_owned()];
    config.mounts = vec![of(&volume, "/mnt")];
    let mut sandbox = x.sandbox();
    let linux = sandbox.linux.get_or_insert_default();
    // Some runtimes allow privileged containers only in privileged pods.
    linux.security_context.get_or_insert_default().privileged = true;
    let pod = x.pod_of(sandbox).await?;
    x.prints_in(&pod, config, "the output", "Linux\nwritten\nend\n").await
}

async fn mount_in_read_only_root_is_written(x: &Context) -> Verdict {
    let volume = directory(x)?;
    let script = "touch /written 2>/dev/null && echo root written
        (echo text >/mnt/file) 2>/dev/null || echo mount not written; echo end";
    let mut config = x.script("c", script);
    fixture::security(&mut config).readonly_rootfs = true;
    config.mounts = vec![of(&volume, "/mnt")];
    x.prints(config, "the output", "end\n").await?;
    let written = std::fs::read_to_string(volume.join("file")).ok();
    equal("the file on the host", &written.as_deref(), &Some("text\n"))
}

async fn streams_are_opened_by_path(x: &Context) -> Verdict {
    const TEXT: &str = "id -u; echo out >/dev/stdout; echo err >/dev/stderr";
    let user = Some(v1::Int64Value { value: 1234 });
    let pod = x.pod().await?;
    let mut config = x.script("c", TEXT);
    fixture::security(&mut config).run_as_user = user;
    let id = pod.start(config).await?;
    x.exited(&id).await?;
    let lines = x.lines(&pod);
    let text = |stream| {
        let lines = lines.iter().filter(|line| line.stream == stream);
        lines.map(|line| format!("{}\n", line.text)).collect::<String>()
    };
    let seen = (text(Stream::Stdout), text(Stream::Stderr));
    let expected = ("1234\nout\n".to_owned(), "err\n".to_owned());
    equal("the container's output and errors", &seen, &expected)?;
    let mut config = x.forever("d");
    fixture::security(&mut config).run_as_user = user;
    let id = pod.start(config).await?;
    let answer = x.client.exec(&id, ["/bin/sh", "-c", TEXT], 30).await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let seen = (text(&answer.stdout), text(&answer.stderr));
    equal("the output and errors of ExecSync", &seen, &expected)
}

async fn highest_oom_score_is_set(x: &Context) -> Verdict {
    let resources = v1::LinuxContainerResources { oom_score_adj: 1000, ..Default::default() };
    let config = with(x.script("c", "cat /proc/self/oom_score_adj"), resources);
    x.prints(config, "/proc/self/oom_score_adj", "1000\n").await
}

async fn device_has_mode_of_host(x: &Context) -> Verdict {
    const DEVICE: &str = "/dev/null";
    let metadata = std::fs::metadata(DEVICE)
        .map_err(|error| Outcome::Skipped(format!("no {DEVICE}: {error}")))?;
    let script = "command -v perl >/dev/null || { echo no perl; exit; }; perl -e 'printf qq(%o\\n), (stat q(/dev/xnull))[2] & 07777'";
    let mut config = x.script("c", script);
    config.devices.push(v1::Device {
        container_path: "/dev/xnull".to_owned(),
        host_path: DEVICE.to_owned(),
        permissions: "rwm".to_owned(),
    });
    let mode = x.output(config).await?;
    if mode == "no perl\n" {
        return skipped("the image has no perl");
    }
    let what = "the mode of the device";
    equal(what, mode.as_str(), &format!("{:o}\n", metadata.permissions().mode() & 0o7777))
}
