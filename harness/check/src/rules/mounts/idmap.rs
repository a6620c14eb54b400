//! Rules for idmapped mounts of pods with a user namespace.

use std::os::unix::fs::MetadataExt as _;

use crate::prelude::*;
use crate::rules::mounts::{directory, made, of};
use crate::rules::namespaces::user::{IDS, mapped, needs_user_namespaces, of_pod};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-MNT-033": "In an idmapped mount of a pod with a user namespace, the host's root and the container's root own the same files.",
        KUBELET, tags ["kubelet", "files", "user-namespaces"], calls [RunPodSandbox, CreateContainer],
        mount_has_mapped_ids, faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request set config.mounts.uidMappings.host_id 4000",
            "CreateContainer request set config.mounts.gidMappings.host_id 4000",
        ];
};

/// Whether an error message says that idmapped mounts are unsupported by this machine or by a rootless runtime.
fn cannot(message: &str) -> bool {
    let message = message.to_lowercase();
    let words = ["idmap", "id-map", "setattr", "by root only"];
    words.iter().any(|word| message.contains(word))
}

async fn mount_has_mapped_ids(x: &Context) -> Verdict {
    needs_user_namespaces(x).await?;
    let volume = directory(x)?;
    let (old, new) = (volume.join("old"), volume.join("new"));
    made(std::fs::write(&old, "old\n"))?;
    let owner = |path: &std::path::Path| {
        let file = std::fs::metadata(path);
        file.map(|file| (file.uid(), file.gid()))
            .map_err(|error| Outcome::Skipped(format!("{}: {error}", path.display())))
    };
    if owner(&old)? != (0, 0) {
        return skipped("the check does not run as root");
    }
    let pod = mapped(x, IDS).await?;
    let text = "ls -n /mnt/old; echo new >/mnt/new";
    let mut config = of_pod(&pod, x.script("c", text));
    let users = fixture::security(&mut config)
        .namespace_options
        .clone()
        .unwrap_or_default()
        .userns_options
        .unwrap_or_default();
    config.mounts = vec![v1::Mount {
        uid_mappings: users.uids,
        gid_mappings: users.gids,
        ..of(&volume, "/mnt")
    }];
    let seen = match x.output_in(&pod, config).await {
        Err(Outcome::Refused { message, .. }) if cannot(&message) => {
            return Err(Outcome::Skipped(message));
        }
        result => result?,
    };
    // The mode and the link count come first.
    let ids: Vec<&str> = seen.split_whitespace().skip(2).take(2).collect();
    equal("user and group of a file of the host's root, in the container", &ids, &["0", "0"])?;
    let what = "user and group of a file that the container's root wrote, on the host";
    equal(what, &owner(&new).ok(), &Some((0, 0)))
}
