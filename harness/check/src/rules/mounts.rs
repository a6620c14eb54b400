//! Rules for host mounts: files, symlinks, nested and shared mounts, propagation, recursive read-only.

pub(crate) mod destinations;
pub(crate) mod idmap;
pub(crate) mod image_volume;
pub(crate) mod kernel_filesystems;

use std::path::{Path, PathBuf};

use cri::v1::MountPropagation;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-MNT-001": "A host file can be mounted over a container file; the container can write to the host file only if the mount is writable.",
        KUBELET, tags ["kubelet", "files"], calls [CreateContainer],
        file_is_mounted, faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request drop config.mounts.readonly",
            "CreateContainer request set config.mounts.readonly true",
        ];
    Must "CRI-MNT-002": "A mount whose host_path is a symlink mounts the symlink's target.",
        CRITEST, tags ["kubelet", "files"], calls [CreateContainer],
        link_is_followed, faults ["CreateContainer request drop config.mounts"];
    Must "CRI-MNT-003": "A nested mount is visible and keeps its own read-only setting, whether it is listed before or after the outer mount.",
        KUBELET, tags ["kubelet", "files"], calls [CreateContainer],
        mounts_are_nested, faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request drop config.mounts.readonly",
        ];
    Must "CRI-MNT-004": "Two containers of a pod that mount the same host directory share its files.",
        KUBELET, tags ["kubelet", "files"], calls [CreateContainer],
        directory_is_shared, faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer after 1 request drop config.mounts",
        ];
    Must "CRI-MNT-005": "A container sees mounts that the host adds later if the propagation is HOST_TO_CONTAINER, but not if it is PRIVATE; ContainerStatus reports the propagation.",
        CRITEST, tags ["kubelet", "propagation"], calls [CreateContainer, ExecSync, ContainerStatus],
        later_mounts_are_seen, faults [
            "CreateContainer request drop config.mounts.propagation",
            "CreateContainer request set config.mounts.propagation \"PROPAGATION_HOST_TO_CONTAINER\"",
            "ContainerStatus set status.mounts.propagation \"PROPAGATION_PRIVATE\"",
        ];
    Should "CRI-MNT-006": "Submounts of a read-only mount stay writable unless recursive_read_only is set; Status reports the feature, and ContainerStatus reports the setting.",
        CRITEST, tags ["kubelet", "files"], calls [CreateContainer, Status],
        read_only_is_recursive, faults [
            "CreateContainer request drop config.mounts.recursive_read_only",
            "CreateContainer request drop config.mounts",
            "Status set runtime_handlers.features.recursive_read_only_mounts false",
            "ContainerStatus drop status.mounts.recursive_read_only",
        ];
    Must "CRI-MNT-007": "The host sees mounts that a container makes if the propagation is BIDIRECTIONAL, but not if it is HOST_TO_CONTAINER.",
        CRITEST, tags ["kubelet", "propagation"], calls [CreateContainer, ExecSync],
        mounts_of_container_are_seen, faults [
            "CreateContainer request drop config.mounts.propagation",
            "CreateContainer request set config.mounts.propagation \"PROPAGATION_HOST_TO_CONTAINER\"",
            "CreateContainer request set config.mounts.propagation \"PROPAGATION_BIDIRECTIONAL\"",
        ];
    Should "CRI-MNT-008": "HOST_TO_CONTAINER and BIDIRECTIONAL propagation are refused for a mount that is private on the host.",
        KUBELET, tags ["kubelet", "propagation", "input"], calls [CreateContainer],
        propagation_needs_shared_mount, faults ["CreateContainer request drop config.mounts.propagation"];
    Should "CRI-MNT-009": "recursive_read_only is refused unless the mount is read-only and has PRIVATE propagation.",
        CRITEST, tags ["kubelet", "files", "input"], calls [CreateContainer, Status],
        recursive_read_only_is_refused, faults [
            "CreateContainer request drop config.mounts.recursive_read_only",
            "CreateContainer request set config.mounts.readonly true",
            "CreateContainer request drop config.mounts.propagation",
        ];
};

/// Creates a directory on the host for this rule.
pub(crate) fn directory(x: &Context) -> Verdict<PathBuf> {
    x.needs_namespaces()?;
    let path = x.shared.directory.join(x.unique("volume"));
    made(std::fs::create_dir_all(&path))?;
    Ok(path)
}

pub(crate) fn made(result: std::io::Result<()>) -> Verdict {
    result.map_err(|error| Outcome::Skipped(format!("nothing to mount: {error}")))
}

pub(crate) fn of(host_path: &Path, container_path: &str) -> v1::Mount {
    v1::Mount {
        host_path: host_path.display().to_string(),
        container_path: container_path.to_owned(),
        // With enforcing SELinux, containers can access only relabelled files. The kubelet requests relabelling, too.
        selinux_relabel: true,
        ..Default::default()
    }
}

fn read_only(host_path: &Path, container_path: &str) -> v1::Mount {
    v1::Mount { readonly: true, ..of(host_path, container_path) }
}

async fn file_is_mounted(x: &Context) -> Verdict {
    let volume = directory(x)?;
    let (fixed, open) = (volume.join("fixed"), volume.join("open"));
    made(std::fs::write(&fixed, "fixed\n"))?;
    made(std::fs::write(&open, "open\n"))?;
    let text = "cd /tmp; cat fixed open; echo no 2>/dev/null >fixed; echo written >open; cat fixed";
    let mut config = x.script("c", text);
    config.mounts = vec![read_only(&fixed, "/tmp/fixed"), of(&open, "/tmp/open")];
    x.prints(config, "the files", "fixed\nopen\nfixed\n").await?;
    let written = std::fs::read_to_string(&open).unwrap_or_default();
    equal("the file on the host", written.as_str(), "written\n")
}

async fn link_is_followed(x: &Context) -> Verdict {
    let volume = directory(x)?;
    let real = volume.join("real");
    made(std::fs::create_dir(&real))?;
    made(std::fs::write(real.join("file"), "behind the link\n"))?;
    made(std::os::unix::fs::symlink("real", volume.join("link")))?;
    let mut config = x.script("c", "cat /mnt/file");
    config.mounts = vec![of(&volume.join("link"), "/mnt")];
    x.prints(config, "the file", "behind the link\n").await
}

async fn mounts_are_nested(x: &Context) -> Verdict {
    let (outer, inner) = (directory(x)?, directory(x)?);
    made(std::fs::create_dir(outer.join("inner")))?;
    made(std::fs::write(outer.join("file"), "outer\n"))?;
    made(std::fs::write(inner.join("file"), "inner\n"))?;
    let text = "cd /mnt; cat file inner/file; touch no 2>/dev/null && echo written
        echo yes >inner/yes; cat inner/yes";
    let mut mounts = [read_only(&outer, "/mnt"), of(&inner, "/mnt/inner")];
    for order in ["outer", "inner"] {
        let mut config = x.script("c", text);
        config.mounts = mounts.to_vec();
        let output = x.output(config).await?;
        let what = format!("the files, with the {order} mount first");
        equal(&what, output.as_str(), "outer\ninner\nyes\n")?;
        mounts.reverse();
    }
    let there = inner.join("yes").exists();
    equal("whether the file exists on the host", &there, &true)
}

async fn directory_is_shared(x: &Context) -> Verdict {
    let volume = directory(x)?;
    let pod = x.pod().await?;
    let waiting =
        "until [ -s /mnt/message ]; do sleep 0.1; done; cat /mnt/message; echo done >/mnt/answer";
    let mut reader = x.script("c", waiting);
    reader.mounts = vec![of(&volume, "/mnt")];
    let mut writer = x.script("d", "echo hello >/mnt/message");
    writer.mounts = vec![of(&volume, "/mnt")];
    let id = pod.start(reader).await?;
    let other = pod.start(writer).await?;
    x.exited(&other).await?;
    x.exited(&id).await?;
    let lines = x.lines(&pod);
    let last = lines.last().map_or("", |line| line.text.as_str());
    equal("the message of the other container", last, "hello")?;
    let answer = std::fs::read_to_string(volume.join("answer")).unwrap_or_default();
    equal("the answer of this container", answer.as_str(), "done\n")
}

/// A tmpfs on the host, unmounted on drop.
struct OnHost(PathBuf);

impl OnHost {
    fn new(path: PathBuf, propagation: MsFlags) -> Verdict<Self> {
        made(std::fs::create_dir_all(&path))?;
        let none = None::<&str>;
        let mounted = mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), none);
        let refused = |error| Outcome::Skipped(format!("cannot mount on the host: {error}"));
        mounted.map_err(refused)?;
        let this = Self(path);
        mount(none, &this.0, none, propagation, none).map_err(refused)?;
        Ok(this)
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        // Includes submounts. An error means that it is already unmounted.
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

async fn later_mounts_are_seen(x: &Context) -> Verdict {
    for (propagation, expected) in [
        (MountPropagation::PropagationPrivate, "nothing\n"),
        (MountPropagation::PropagationHostToContainer, "host\n"),
    ] {
        let volume = OnHost::new(directory(x)?, MsFlags::MS_SHARED)?;
        made(std::fs::create_dir(volume.0.join("later")))?;
        let pod = x.pod().await?;
        let mut config = x.forever("c");
        let mut shown = of(&volume.0, "/mnt");
        shown.set_propagation(propagation);
        config.mounts = vec![shown];
        let id = pod.start(config).await?;
        let status = x.client.container(&id).await?;
        let mut mounts = status.mounts.iter();
        let echoed = mounts.find(|mount| mount.container_path == "/mnt");
        let echoed = echoed.map(v1::Mount::propagation);
        equal("propagation in ContainerStatus", &echoed, &Some(propagation))?;
        let later = OnHost::new(volume.0.join("later"), MsFlags::MS_SHARED)?;
        made(std::fs::write(later.0.join("file"), "host\n"))?;
        let script = "cat /mnt/later/file 2>/dev/null || echo nothing";
        let seen = x.client.sh(&id, script).await?;
        let what = format!("a later mount with {}", propagation.as_str_name());
        equal(&what, seen.as_str(), expected)?;
        x.client.remove(&id).await?;
    }
    Ok(())
}

async fn mounts_of_container_are_seen(x: &Context) -> Verdict {
    for (propagation, expected) in [
        (MountPropagation::PropagationHostToContainer, None),
        (MountPropagation::PropagationBidirectional, Some("container\n")),
    ] {
        let volume = OnHost::new(directory(x)?, MsFlags::MS_SHARED)?;
        let there = volume.0.join("inner");
        made(std::fs::create_dir(&there))?;
        let mut sandbox = x.sandbox();
        let of_pod = sandbox.linux.get_or_insert_default();
        of_pod.security_context.get_or_insert_default().privileged = true;
        let pod = x.pod_of(sandbox).await?;
        let mut config = x.forever("c");
        fixture::security(&mut config).privileged = true;
        let mut shown = of(&volume.0, "/mnt");
        shown.set_propagation(propagation);
        config.mounts = vec![shown];
        let id = pod.start(config).await?;
        let script = "mount -n -t tmpfs inner /mnt/inner && echo container >/mnt/inner/file";
        let mounting = x.client.exec(&id, ["/bin/sh", "-c", script], 30).await?;
        if mounting.exit_code != 0 {
            let why = String::from_utf8_lossy(&mounting.stderr).into_owned();
            return skipped(format!("the container cannot mount: {why}"));
        }
        let seen = std::fs::read_to_string(there.join("file")).ok();
        x.client.remove(&id).await?;
        let what =
            format!("a mount made by a container with {}, on the host", propagation.as_str_name());
        equal(&what, &seen.as_deref(), &expected)?;
    }
    Ok(())
}

async fn propagation_needs_shared_mount(x: &Context) -> Verdict {
    let volume = OnHost::new(directory(x)?, MsFlags::MS_PRIVATE)?;
    let pod = x.pod().await?;
    for (name, propagation) in [
        ("c", MountPropagation::PropagationHostToContainer),
        ("d", MountPropagation::PropagationBidirectional),
    ] {
        let mut config = x.forever(name);
        let mut shown = of(&volume.0, "/mnt");
        shown.set_propagation(propagation);
        config.mounts = vec![shown];
        let what = format!("a private mount with {}", propagation.as_str_name());
        is_refused(x, &what, &pod, config).await?;
    }
    Ok(())
}

/// Fails unless CreateContainer or StartContainer refuses a container.
pub(crate) async fn is_refused(
    x: &Context,
    what: &str,
    pod: &Pod,
    config: v1::ContainerConfig,
) -> Verdict {
    match pod.create(config).await {
        Ok(id) => refused(&format!("StartContainer with {what}"), x.client.start(&id).await)?,
        answer => refused(&format!("CreateContainer with {what}"), answer)?,
    };
    Ok(())
}

async fn recursive_read_only_is_refused(x: &Context) -> Verdict {
    needs_recursive_read_only(x).await?;
    let volume = OnHost::new(directory(x)?, MsFlags::MS_SHARED)?;
    let pod = x.pod().await?;
    for (name, readonly, propagation) in [
        ("c", false, MountPropagation::PropagationPrivate),
        ("d", true, MountPropagation::PropagationHostToContainer),
        ("e", true, MountPropagation::PropagationBidirectional),
    ] {
        let mut config = x.forever(name);
        let mut shown = of(&volume.0, "/mnt");
        (shown.readonly, shown.recursive_read_only) = (readonly, true);
        shown.set_propagation(propagation);
        config.mounts = vec![shown];
        let what = format!(
            "a recursive read-only mount with readonly {readonly} and {}",
            propagation.as_str_name()
        );
        refused(&format!("CreateContainer with {what}"), pod.create(config).await)?;
    }
    Ok(())
}

/// Whether Status reports support for recursive read-only mounts; `None` if it lists no default handler.
async fn recursive_read_only(x: &Context) -> Verdict<Option<bool>> {
    let handlers = x.client.status().await?.runtime_handlers;
    let default = handlers.iter().find(|handler| handler.name.is_empty());
    let features = default.map(|handler| handler.features.unwrap_or_default());
    Ok(features.map(|features| features.recursive_read_only_mounts))
}

fn no_recursive_read_only() -> Outcome {
    Outcome::Unsupported("the default runtime handler has no recursive_read_only_mounts".to_owned())
}

async fn needs_recursive_read_only(x: &Context) -> Verdict {
    match recursive_read_only(x).await? {
        Some(true) => Ok(()),
        Some(false) | None => Err(no_recursive_read_only()),
    }
}

async fn read_only_is_recursive(x: &Context) -> Verdict {
    match recursive_read_only(x).await? {
        Some(true) => {}
        None => return Err(no_recursive_read_only()),
        // The kubelet refuses pods that need a feature missing in Status.
        Some(false) => {
            return match mounts_recursively(x).await {
                Ok(()) => failed("recursive_read_only_mounts in Status", "true", "false"),
                Err(skipped @ Outcome::Skipped(_)) => Err(skipped),
                Err(_) => Err(no_recursive_read_only()),
            };
        }
    }
    mounts_recursively(x).await
}

async fn mounts_recursively(x: &Context) -> Verdict {
    let volume = OnHost::new(directory(x)?, MsFlags::MS_PRIVATE)?;
    let inner = OnHost::new(volume.0.join("inner"), MsFlags::MS_PRIVATE)?;
    made(std::fs::write(inner.0.join("file"), "inner\n"))?;
    for (recursive_read_only, expected) in
        [(false, "inner\nwritten\nend\n"), (true, "inner\nend\n")]
    {
        let text =
            "cat /mnt/inner/file; echo x 2>/dev/null >/mnt/inner/new && echo written; echo end";
        let mut config = x.script("c", text);
        config.mounts = vec![v1::Mount { recursive_read_only, ..read_only(&volume.0, "/mnt") }];
        let pod = x.pod().await?;
        let id = pod.start(config).await?;
        let status = x.exited(&id).await?;
        let lines = x.lines(&pod).into_iter();
        let output: String = lines.map(|line| line.text + "\n").collect();
        let what = format!("a submount of a mount with recursive_read_only {recursive_read_only}");
        equal(&what, output.as_str(), expected)?;
        // The kubelet shows it in the pod's status.
        let mut mounts = status.mounts.iter();
        let echoed = mounts.find(|mount| mount.container_path == "/mnt");
        let what = "recursive_read_only in ContainerStatus";
        equal(what, &echoed.map(|mount| mount.recursive_read_only), &Some(recursive_read_only))?;
    }
    Ok(())
}
