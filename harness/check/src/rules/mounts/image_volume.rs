//! Rules for image volumes, and for volumes that an image declares (`VOLUME`).

use crate::images::programs;
use crate::prelude::*;
use crate::rules::image::{add, pull};
use crate::rules::mounts;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-MNT-020": "An image volume contains the image's files and is read-only, and its programs can be executed.",
        CRITEST, tags ["kubelet", "image-volume"], calls [PullImage, CreateContainer, ExecSync],
        image_is_mounted, faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request set config.mounts.image_sub_path \"sub\"",
        ];
    Should "CRI-MNT-021": "An image volume with image_sub_path contains only the directory of the image at this path.",
        CRITEST, tags ["kubelet", "image-volume"], calls [PullImage, CreateContainer, ExecSync],
        sub_path_is_mounted, faults [
            "CreateContainer request drop config.mounts.image_sub_path",
            "CreateContainer request set config.mounts.image_sub_path \"sub/deeper\"",
        ];
    Should "CRI-MNT-022": "An image volume whose image_sub_path does not exist in the image is refused.",
        CRITEST, tags ["kubelet", "image-volume", "input"], calls [PullImage, CreateContainer],
        missing_sub_path_is_refused, faults ["CreateContainer request drop config.mounts.image_sub_path"];
    Should "CRI-MNT-023": "An image volume that is not read-only is refused.",
        CRITEST, tags ["kubelet", "image-volume", "input"], calls [PullImage, CreateContainer],
        writable_image_volume_is_refused, faults ["CreateContainer request set config.mounts.readonly true"];
    Should "CRI-MNT-024": "ContainerStatus reports the image of an image volume by the id that PullImage returned.",
        KUBELET, tags ["kubelet", "image-volume", "echo"], calls [PullImage, CreateContainer, ContainerStatus],
        image_of_volume_is_named, faults [
            "ContainerStatus drop status.mounts.image",
            "ContainerStatus set status.mounts.image.image_ref \"sha256:none\"",
        ];
};

/// An image as a volume, and a pod for the containers that mount it.
struct Volume {
    pod: Pod,
    image: v1::ImageSpec,
}

impl Volume {
    async fn new(x: &Context) -> Verdict<Self> {
        x.needs_namespaces()?;
        let base = programs(&["ls"]).map_err(|error| Outcome::Skipped(error.to_string()))?;
        let files = Layer::new()
            .file("root", 0o644, "of the root\n")
            .file("sub/file", 0o644, "of the sub path\n")
            .file("sub/deeper/file", 0o644, "deeper\n");
        let (name, _) = add(x, "1", |image| image.layer(base).layer(files))?;
        let image = v1::ImageSpec {
            image: pull(x, &name).await?,
            user_specified_image: name,
            ..Default::default()
        };
        let pod = x.pod().await?;
        let volume = Self { pod, image };
        // A runtime without this feature refuses a mount without a host_path.
        match volume.pod.create(volume.container(x, "probe", "", true)).await {
            Ok(_) => Ok(volume),
            Err(status) => {
                unsupported(format!("CreateContainer with an image volume: {}", status.message()))
            }
        }
    }

    fn container(
        &self,
        x: &Context,
        name: &str,
        sub_path: &str,
        readonly: bool,
    ) -> v1::ContainerConfig {
        let mut config = x.forever(name);
        config.mounts = vec![v1::Mount {
            container_path: "/mnt".to_owned(),
            image: Some(self.image.clone()),
            image_sub_path: sub_path.to_owned(),
            readonly,
            ..Default::default()
        }];
        config
    }
}

async fn image_is_mounted(x: &Context) -> Verdict {
    let volume = Volume::new(x).await?;
    let id = volume.pod.start(volume.container(x, "c", "", true)).await?;
    let script = "cat /mnt/root /mnt/sub/file; echo x 2>/dev/null >/mnt/written && echo written; /mnt/bin/ls /mnt/sub";
    let seen = x.client.exec(&id, ["/bin/sh", "-c", script], 30).await?;
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    let expected = "of the root\nof the sub path\ndeeper\nfile\n";
    equal("the container's view of the image", seen.as_str(), expected)
}

async fn sub_path_is_mounted(x: &Context) -> Verdict {
    let volume = Volume::new(x).await?;
    let id = volume.pod.start(volume.container(x, "c", "sub", true)).await?;
    let script =
        "cat /mnt/file; ls /mnt; echo x 2>/dev/null >/mnt/written && echo written; echo end";
    let seen = x.client.exec(&id, ["/bin/sh", "-c", script], 30).await?;
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    let expected = "of the sub path\ndeeper\nfile\nend\n";
    equal("the container's view of the sub path", seen.as_str(), expected)
}

/// Fails unless a container with such a volume is refused.
async fn container_is_refused(x: &Context, what: &str, sub_path: &str, readonly: bool) -> Verdict {
    let volume = Volume::new(x).await?;
    let config = volume.container(x, "c", sub_path, readonly);
    mounts::is_refused(x, what, &volume.pod, config).await
}

async fn missing_sub_path_is_refused(x: &Context) -> Verdict {
    container_is_refused(x, "a sub path that is not in the image", "no/such/path", true).await
}

async fn writable_image_volume_is_refused(x: &Context) -> Verdict {
    container_is_refused(x, "an image volume that is not read-only", "", false).await
}

async fn image_of_volume_is_named(x: &Context) -> Verdict {
    let volume = Volume::new(x).await?;
    let id = volume.pod.start(volume.container(x, "c", "", true)).await?;
    let status = x.client.container(&id).await?;
    let mount = status.mounts.iter().find(|mount| mount.container_path == "/mnt");
    match mount.and_then(|mount| mount.image.as_ref()) {
        Some(image) if image.image_ref.is_empty() => {
            diverges("the image of the mount has no image_ref")
        }
        Some(image) => equal("image_ref of the volume", &image.image_ref, &volume.image.image),
        None => {
            failed("the mount in ContainerStatus", "with its image", format!("{:?}", status.mounts))
        }
    }
}

pub(crate) const DECLARED_VOLUME: &[Rule] = rules! {
    Should "CRI-MNT-025": "Each container has its own writable copy of a volume that its image declares, with the image's files, owners and directory mode.",
        CONTAINERD, tags ["image", "mounts"], calls [CreateContainer],
        declared_volume_has_files_of_image given [users], faults [
            "CreateContainer request set config.mounts [{\"container_path\": \"/data\", \"host_path\": \"/mnt\", \"readonly\": true}]",
        ];
};

async fn declared_volume_has_files_of_image(x: &Context) -> Verdict {
    let base = programs(&["sh", "cat", "ls", "sleep"])
        .map_err(|error| Outcome::Skipped(error.to_string()))?;
    let files = Layer::new()
        .directory("data", 0o2775)
        .owned_by(1002, 1003)
        .file("data/kept", 0o644, "of the image\n")
        .owned_by(1000, 1001);
    let (image, _) = add(x, "1", |image| image.layer(base).layer(files).volumes(["/data"]))?;
    pull(x, &image).await?;
    let script = "cat /data/kept; set -- $(ls -ln /data/kept); echo $3:$4; set -- $(ls -ldn /data); echo ${1%[.+]} $3:$4; ls /data; echo new >/data/new || exit 1; echo end";
    for (what, read_only) in [
        ("the first container", false),
        ("the second container", false),
        ("a container with a read-only root", true),
    ] {
        let mut config = x.script("c", script);
        let linux = config.linux.get_or_insert_default();
        let context = linux.security_context.get_or_insert_default();
        context.readonly_rootfs = read_only;
        image.clone_into(&mut config.image.get_or_insert_default().image);
        let output = x.output(config).await?;
        let expected = "of the image\n1000:1001\ndrwxrwsr-x 1002:1003\nkept\nend\n";
        // The shell exits with 1 if it cannot write the file.
        equal(&format!("the output of {what}"), output.as_str(), expected)?;
    }
    Ok(())
}
