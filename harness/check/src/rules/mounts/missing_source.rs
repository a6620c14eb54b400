//! Rules for mounts whose `host_path` does not exist.

use crate::prelude::*;
use crate::rules::mounts::directory;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-MNT-026": "A container whose mount has a missing host_path is refused, or the directory is created; the container never runs without the mount.",
        API, tags ["kubelet", "mounts"], calls [CreateContainer, StartContainer],
        absent_path_is_refused_or_made given [namespaces], faults ["CreateContainer request drop config.mounts"];
};

async fn absent_path_is_refused_or_made(x: &Context) -> Verdict {
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
        return refused("a container with a missing host_path", started).map(drop);
    };
    let what = "the missing host_path after the container was started";
    ensure(path.is_dir(), what, "a directory", "no directory")?;
    let seen = "touch /mnt/file; ls /mnt";
    let seen = x.client.sh(id, seen).await?;
    equal("the files in the mount", seen.as_str(), "file\n")?;
    let made = path.join("file").exists();
    ensure(made, "a file of the mount on the host", "to exist", "missing")
}
