//! Rules of mounts whose path of the host is not there.

use cri::v1;

use super::mounts::directory;
use crate::check::context::Context;
use crate::check::outcome::{Verdict, ensure, equal, refused};
use crate::check::rule::sources::API;
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[Rule {
    id: "CRI-MNT-026",
    severity: Severity::Should,
    says: "A container with a mount of a path of the host that is not there does not run without it: it is refused, or the path is made.",
    source: API,
    tags: &["kubelet", "mounts"],
    calls: &["CreateContainer", "StartContainer"],
    faults: &["CreateContainer request drop config.mounts"],
    body: |x| Box::pin(absent_path_is_refused_or_made(x)),
}];

async fn absent_path_is_refused_or_made(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let path = directory(x)?.join("absent");
    let mut config = x.forever("c");
    config.mounts = vec![v1::Mount {
        host_path: path.display().to_string(),
        container_path: "/mnt".to_owned(),
        ..Default::default()
    }];
    let pod = x.pod().await?;
    let started = pod.start(config).await;
    let Ok(id) = &started else {
        return refused("a container with such a mount", started).map(drop);
    };
    ensure(
        path.is_dir(),
        "the path of the mount in a container that was started",
        "an empty directory",
        "nothing",
    )?;
    let seen = "touch /mnt/file; ls /mnt";
    let seen = x.client.sh(id, seen).await?;
    equal("the files in the mount", seen.as_str(), "file\n")?;
    let made = path.join("file").exists();
    ensure(made, "a file of the mount on the host", "there", "gone")
}
