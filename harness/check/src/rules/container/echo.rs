//! Rules of the container fields that runtimes echo: metadata, labels, annotations, times, images, mounts.

use crate::prelude::*;
use crate::rules::sandbox::echo::{now, odd_labels, odd_values};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CTR-030": "ContainerStatus and ListContainers report a container's name and attempt.",
        CRITEST, tags ["kubelet", "echo"], calls [ContainerStatus, ListContainers],
        container_metadata_is_echoed, faults [
            "ContainerStatus drop status.metadata.attempt",
            "ContainerStatus set status.metadata.name \"other\"",
            "ListContainers drop containers.metadata.attempt",
        ];
    Must "CRI-CTR-031": "ContainerStatus and ListContainers report a container's labels.",
        CRITEST, tags ["kubelet", "echo"], calls [ContainerStatus, ListContainers],
        container_labels_are_echoed, faults [
            "ContainerStatus drop status.labels.empty",
            "ListContainers drop containers.labels",
        ];
    Must "CRI-CTR-032": "ContainerStatus and ListContainers report a container's annotations; the kubelet stores the container's restart count in an annotation.",
        KUBELET, tags ["kubelet", "echo"], calls [ContainerStatus, ListContainers],
        container_annotations_are_echoed, faults [
            "ContainerStatus drop status.annotations",
            "ListContainers set containers.annotations.text \"x\"",
        ];
    Must "CRI-CTR-033": "ContainerStatus reports the log file's full path: the sandbox's log directory plus the container's log path.",
        KUBELET, tags ["kubelet", "echo", "log"], calls [ContainerStatus],
        log_path_is_that_of_the_file given [pod, container], faults [
            "ContainerStatus drop status.log_path",
            "ContainerStatus set status.log_path \"c.log\"",
        ];
    Must "CRI-CTR-034": "created_at, started_at and finished_at are in nanoseconds and in chronological order; each timestamp is 0 until its event occurs.",
        KUBELET, tags ["kubelet", "time"], calls [ContainerStatus],
        container_times_are_in_order, faults [
            "ContainerStatus drop status.created_at",
            "ContainerStatus drop status.started_at",
            "ContainerStatus drop status.finished_at",
            "ContainerStatus if response status.started_at = null set status.started_at 5",
            "ContainerStatus set status.finished_at 1500000000000000000",
        ];
    Must "CRI-CTR-035": "ContainerStatus and ListContainers have the image's name in the field image, and the image's id or digest in image_ref.",
        KUBELET, tags ["kubelet", "echo", "image"], calls [ContainerStatus, ListContainers],
        container_image_is_echoed, faults [
            "ContainerStatus drop status.image_ref",
            "ContainerStatus set status.image_ref \"example.org/a:1\"",
            "ContainerStatus drop status.image",
            "ListContainers drop containers.image_ref",
            "ListContainers drop containers.image",
        ];
    Should "CRI-CTR-036": "image_id in ContainerStatus and ListContainers is the image id that ImageStatus returns.",
        API, tags ["image", "agreement"], calls [ContainerStatus, ListContainers, ImageStatus],
        container_image_id_is_that_of_image, faults [
            "ContainerStatus drop status.image_id",
            "ListContainers set containers.image_id \"x\"",
        ];
    Must "CRI-CTR-037": "ContainerStatus reports the mounts with host path, container path, read-only flag and propagation.",
        KUBELET, tags ["kubelet", "echo", "mount"], calls [ContainerStatus],
        mounts_are_echoed given [namespaces], faults [
            "ContainerStatus drop status.mounts",
            "ContainerStatus set status.mounts.readonly false",
            "ContainerStatus set status.mounts.readonly true",
            "ContainerStatus set status.mounts.container_path \"/other\"",
        ];
    Must "CRI-CTR-038": "ListContainers reports the sandbox id of each container.",
        KUBELET, tags ["kubelet", "echo"], calls [ListContainers],
        list_names_sandbox_of_container, faults ["ListContainers drop containers.pod_sandbox_id"];
    Should "CRI-CTR-039": "ContainerStatus reports the signal that StopContainer sends, even if it is the default SIGTERM.",
        KUBELET, tags ["kubelet", "signal"], calls [ContainerStatus],
        status_names_stop_signal, faults ["ContainerStatus drop status.stop_signal"];
};

async fn both_containers(x: &Context, id: &str) -> Verdict<(v1::ContainerStatus, v1::Container)> {
    match x.listed_container(id).await? {
        Some(listed) => Ok((x.client.container(id).await?, listed)),
        None => failed("the container in ListContainers", "to be listed", "not listed"),
    }
}

async fn created(
    x: &Context,
    change: impl FnOnce(&mut v1::ContainerConfig),
) -> Verdict<(Pod, String)> {
    let pod = x.pod().await?;
    let mut config = x.forever("c");
    change(&mut config);
    let id = pod.create(config).await?;
    Ok((pod, id))
}

async fn container_metadata_is_echoed(x: &Context) -> Verdict {
    let metadata = v1::ContainerMetadata { name: "c".to_owned(), attempt: 4 };
    let (_pod, id) = created(x, |config| config.metadata = Some(metadata.clone())).await?;
    let (status, listed) = both_containers(x, &id).await?;
    equal("the metadata in ContainerStatus", &status.metadata, &Some(metadata.clone()))?;
    equal("the metadata in ListContainers", &listed.metadata, &Some(metadata))
}

async fn container_labels_are_echoed(x: &Context) -> Verdict {
    let (_pod, id) = created(x, |config| config.labels.extend(odd_labels())).await?;
    let (status, listed) = both_containers(x, &id).await?;
    includes("the labels in ContainerStatus", &status.labels, &odd_labels())?;
    includes("the labels in ListContainers", &listed.labels, &odd_labels())
}

async fn container_annotations_are_echoed(x: &Context) -> Verdict {
    let (_pod, id) = created(x, |config| config.annotations.extend(odd_values())).await?;
    let (status, listed) = both_containers(x, &id).await?;
    includes("the annotations in ContainerStatus", &status.annotations, &odd_values())?;
    includes("the annotations in ListContainers", &listed.annotations, &odd_values())
}

async fn log_path_is_that_of_the_file(x: &Context, pod: Pod, id: String) -> Verdict {
    let status = x.client.container(&id).await?;
    equal("log_path", &status.log_path, &x.log_path(&pod).display().to_string())
}

async fn container_times_are_in_order(x: &Context) -> Verdict {
    let before = now();
    let (pod, id) = created(x, |_| {}).await?;
    let created = x.client.container(&id).await?;
    let what = "created_at";
    ensure(created.created_at >= before, what, &format!("at least {before}"), created.created_at)?;
    equal("started_at of a created container", &created.started_at, &0)?;
    equal("finished_at of a created container", &created.finished_at, &0)?;
    x.client.start(&id).await?;
    x.logged(&pod, "ready").await?;
    let running = x.client.container(&id).await?;
    let started = running.started_at >= running.created_at;
    ensure(started, "started_at", "at least created_at", &running)?;
    equal("finished_at of a running container", &running.finished_at, &0)?;
    x.client.stop(&id, 30).await?;
    let exited = x.client.container(&id).await?;
    let order = exited.finished_at >= exited.started_at && exited.finished_at <= now();
    ensure(order, "finished_at", "between started_at and now", &exited)?;
    equal("created_at after the exit", &exited.created_at, &created.created_at)?;
    equal("started_at after the exit", &exited.started_at, &running.started_at)
}

async fn container_image_is_echoed(x: &Context) -> Verdict {
    let (_pod, id) = created(x, |_| {}).await?;
    let (status, listed) = both_containers(x, &id).await?;
    let image = status.image.clone().unwrap_or_default().image;
    ensure(!image.is_empty(), "image.image in ContainerStatus", "a name", &status)?;
    // With or without its algorithm.
    let digits = status.image_ref.rsplit([':', '@']).next();
    let has_digest = digits.is_some_and(|digits| {
        digits.len() == 64 && digits.chars().all(|digit| digit.is_ascii_hexdigit())
    });
    let what = "image_ref in ContainerStatus";
    ensure(has_digest, what, "an id or a digest, such as sha256:0123…", &status.image_ref)?;
    ensure(!listed.image_ref.is_empty(), "image_ref in ListContainers", "a reference", &listed)?;
    let image = listed.image.clone().unwrap_or_default().image;
    ensure(!image.is_empty(), "image.image in ListContainers", "a name", &listed)
}

async fn container_image_id_is_that_of_image(x: &Context) -> Verdict {
    let (_pod, id) = created(x, |_| {}).await?;
    let (status, listed) = both_containers(x, &id).await?;
    let Some(image) = x.client.image(&x.shared.image).await? else {
        return failed("ImageStatus of the container's image", "an image", "none");
    };
    equal("image_id in ContainerStatus", &status.image_id, &image.id)?;
    equal("image_id in ListContainers", &listed.image_id, &image.id)
}

async fn mounts_are_echoed(x: &Context) -> Verdict {
    let directory = x.shared.directory.join(x.unique("mount"));
    std::fs::create_dir_all(&directory)
        .map_err(|error| Outcome::Skipped(format!("no directory to mount: {error}")))?;
    let mount = v1::Mount {
        host_path: directory.display().to_string(),
        container_path: "/tmp/mounted".to_owned(),
        readonly: true,
        ..Default::default()
    };
    let writable =
        v1::Mount { container_path: "/tmp/written".to_owned(), readonly: false, ..mount.clone() };
    let both = [mount, writable];
    let (_pod, id) = created(x, |config| config.mounts.extend(both.clone())).await?;
    let status = x.client.container(&id).await?;
    for mount in &both {
        let mut all = status.mounts.iter();
        let seen = all.find(|one| one.container_path == mount.container_path);
        let seen = seen.map(|one| (one.host_path.as_str(), one.readonly, one.propagation()));
        let expected = Some((mount.host_path.as_str(), mount.readonly, mount.propagation()));
        equal("a mount in ContainerStatus", &seen, &expected)?;
    }
    Ok(())
}

async fn list_names_sandbox_of_container(x: &Context) -> Verdict {
    let (pod, id) = created(x, |_| {}).await?;
    let (_, listed) = both_containers(x, &id).await?;
    equal("pod_sandbox_id", &listed.pod_sandbox_id, &pod.id)
}

async fn status_names_stop_signal(x: &Context) -> Verdict {
    let (_pod, id) = created(x, |_| {}).await?;
    let status = x.client.container(&id).await?;
    equal("stop_signal", &status.stop_signal(), &v1::Signal::Sigterm)
}
