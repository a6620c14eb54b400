//! Rules for volumes that an image declares (`VOLUME`).

use crate::images::programs;
use crate::prelude::*;
use crate::rules::image::{add, pull};

pub(crate) const RULES: &[Rule] = rules! {
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
