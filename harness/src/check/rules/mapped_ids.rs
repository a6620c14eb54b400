//! Rules of mounts whose ids are mapped for the user namespace of a pod.

use std::os::unix::fs::MetadataExt as _;

use cri::v1;

use super::mounts::{directory, made, of};
use super::user_namespace::{IDS, mapped, needs_user_namespaces, of_pod};
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, equal};
use crate::check::rule::sources::KUBELET;
use crate::check::rule::{Rule, Severity};
use crate::fixture;

pub(super) const RULES: &[Rule] = &[Rule {
    id: "CRI-MNT-033",
    severity: Severity::Must,
    says: "A mount with the id mappings of its pod's user namespace shows files of the host's root as the container's root's, and what that one writes is the host's root's.",
    source: KUBELET,
    tags: &["kubelet", "files", "user-namespaces"],
    calls: &["RunPodSandbox", "CreateContainer"],
    faults: &[
        "CreateContainer request drop config.mounts",
        "CreateContainer request set config.mounts.uidMappings.host_id 4000",
        "CreateContainer request set config.mounts.gidMappings.host_id 4000",
    ],
    body: |x| Box::pin(mount_has_mapped_ids(x)),
}];

/// Whether the words of a runtime are that this machine, or a runtime without the host's root, cannot map the ids of a mount.
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
        return Err(Outcome::Skipped(
            "the check does not run as root".to_owned(),
        ));
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
    // Mode and links are before them.
    let ids: Vec<&str> = seen.split_whitespace().skip(2).take(2).collect();
    equal(
        "user and group of a file of the host's root, in the container",
        &ids,
        &["0", "0"],
    )?;
    equal(
        "user and group of a file that the container's root wrote, on the host",
        &owner(&new).ok(),
        &Some((0, 0)),
    )
}
