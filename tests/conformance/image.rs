//! Images: pull, list, run, remove.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cri::v1::{
    ContainerState, ContainerStatsRequest, FilesystemUsage, ImageFsInfoRequest,
    ImageFsInfoResponse, NamespaceMode, Signal,
};
use harness::fixture_image::{ImageBuilder, Layer};
use harness::{Pod, Runtime, fixture};
use rstest::rstest;
use tempfile::TempDir;
use tonic::Code;

use crate::support::{Means, code, skip_if};

const SMALL: &str = "example.com/small:1";

/// A runtime that can pull [`SMALL`] from an archive.
async fn runtime_with_small_image(
    change: impl FnOnce(ImageBuilder) -> ImageBuilder,
) -> (Runtime, tempfile::TempDir) {
    let place = tempfile::tempdir().unwrap();
    let archive = place.path().join("small.tar");
    let mut layer = Layer::new()
        .file("etc/motd", 0o644, "from the image\n")
        .directory("tmp", 0o1777);
    for program in ["/bin/sh", "/bin/cat", "/bin/sleep"] {
        layer = layer.host_program(program).unwrap();
    }
    change(ImageBuilder::new(SMALL).layer(layer))
        .write_docker(&archive)
        .unwrap();
    // An ordinary user's runtime must be able to read it.
    (
        Runtime::with().archive(&archive).start().await.unwrap(),
        place,
    )
}

#[tokio::test]
async fn image_id_is_the_same_in_all_calls() {
    let (runtime, _place) = runtime_with_small_image(|image| image).await;
    let client = &runtime.client;
    assert_eq!(client.image(SMALL).await.unwrap(), None);
    let id = client.pull(SMALL).await.unwrap();
    assert_eq!(client.pull(SMALL).await.unwrap(), id);
    let image = client.image(SMALL).await.unwrap().unwrap();
    assert_eq!(image.id, id);
    assert!(image.size > 0);
    assert_eq!(image.repo_tags, [SMALL]);
    for name in [&id, &image.repo_tags[0]]
        .into_iter()
        .chain(&image.repo_digests)
    {
        assert_eq!(
            client.image(name).await.unwrap().as_ref(),
            Some(&image),
            "{name}"
        );
    }
    assert!(client.list_images().await.unwrap().contains(&image));

    skip_if!(
        "image_id_is_the_same_in_all_calls",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::script("c", "cat /etc/motd");
    config.image.as_mut().unwrap().image = id.clone();
    let container = pod.start(config).await.unwrap();
    let status = pod.ended(&container).await.unwrap();
    assert_eq!(
        (status.exit_code, &status.image_ref, &status.image_id),
        (0, &id, &id)
    );
    assert_eq!(pod.log(&status)[0].text, "from the image");
}

#[tokio::test]
async fn remove_image_removes_all_names() {
    let (runtime, _place) = runtime_with_small_image(|image| image).await;
    let client = &runtime.client;
    let id = client.pull(SMALL).await.unwrap();
    let before = client.image(SMALL).await.unwrap().unwrap();
    client.remove_image(SMALL).await.unwrap();
    for name in [SMALL, &id]
        .into_iter()
        .chain(before.repo_digests.iter().map(String::as_str))
    {
        assert_eq!(client.image(name).await.unwrap(), None, "{name}");
    }
    assert!(
        client
            .list_images()
            .await
            .unwrap()
            .iter()
            .all(|image| image.id != id)
    );
    // RemoveImage must be idempotent (api.proto).
    client.remove_image(SMALL).await.unwrap();
    client
        .remove_image("example.com/never/was:1")
        .await
        .unwrap();
    assert_eq!(client.pull(SMALL).await.unwrap(), id);

    let mut removals = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let (client, id) = (client.clone(), id.clone());
        removals.spawn(async move { client.remove_image(&id).await });
    }
    while let Some(result) = removals.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(client.image(&id).await.unwrap(), None);
}

#[tokio::test]
async fn concurrent_pulls_return_one_image() {
    let (runtime, _place) = runtime_with_small_image(|image| image).await;
    let mut pulls = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let client = runtime.client.clone();
        pulls.spawn(async move { client.pull(SMALL).await.unwrap() });
    }
    let ids: std::collections::BTreeSet<String> = pulls.join_all().await.into_iter().collect();
    assert_eq!(ids.len(), 1);
}

#[tokio::test]
async fn container_defaults_come_from_image_config() {
    let (runtime, _place) = runtime_with_small_image(|image| {
        image
            .entrypoint(["/bin/sh", "-c"])
            .cmd(["echo $GREETING from $PWD"])
            .env(["GREETING=hello", "PATH=/bin:/usr/bin"])
            .working_dir("/etc")
    })
    .await;
    skip_if!(
        "container_defaults_come_from_image_config",
        Means::of(&runtime).await.no_namespaces()
    );
    runtime.client.pull(SMALL).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let config = |name: &str| {
        let mut config = fixture::container::<String>(name, []);
        config.image.as_mut().unwrap().image = SMALL.to_owned();
        config
    };
    assert_eq!(
        pod.output(config("as-it-is")).await.unwrap(),
        "hello from /etc\n"
    );
    let mut other_args = config("other-args");
    other_args.args = vec!["echo other".to_owned()];
    assert_eq!(pod.output(other_args).await.unwrap(), "other\n");
    // A command also replaces the image's arguments (CRI v1, ContainerConfig.command).
    let mut other_command = config("other-command");
    other_command.command = vec!["/bin/cat".to_owned()];
    assert_eq!(pod.output(other_command).await.unwrap(), "");
    let mut other_env = config("other-env");
    other_env.envs = vec![cri::v1::KeyValue {
        key: "GREETING".to_owned(),
        value: "good day".into(),
    }];
    other_env.working_dir = "/tmp".to_owned();
    assert_eq!(pod.output(other_env).await.unwrap(), "good day from /tmp\n");
}

#[tokio::test]
async fn user_and_stop_signal_come_from_image_config() {
    let (runtime, _place) =
        runtime_with_small_image(|image| image.stop_signal("SIGUSR1").user("0:0")).await;
    let id = runtime.client.pull(SMALL).await.unwrap();
    let image = runtime.client.image(&id).await.unwrap().unwrap();
    assert_eq!(image.uid.map(|uid| uid.value), Some(0));
    skip_if!(
        "user_and_stop_signal_come_from_image_config",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::script(
        "c",
        "trap 'exit 10' USR1; echo ready; while :; do sleep 1000 & wait $!; done",
    );
    config.image.as_mut().unwrap().image = id;
    let container = pod.start(config).await.unwrap();
    pod.logged(&container, "ready").await.unwrap();
    runtime.client.stop(&container, 3600).await.unwrap();
    assert_eq!(
        runtime
            .client
            .container(&container)
            .await
            .unwrap()
            .exit_code,
        10
    );
}

#[rstest]
#[case::default("", Signal::RuntimeDefault, Signal::Sigterm)]
#[case::image("SIGUSR1", Signal::RuntimeDefault, Signal::Sigusr1)]
#[case::image_number("34", Signal::RuntimeDefault, Signal::Sigrtmin)]
#[case::image_realtime("RTMIN+3", Signal::RuntimeDefault, Signal::Sigrtminplus3)]
#[case::client("SIGUSR1", Signal::Sigint, Signal::Sigint)]
#[case::client_alias("", Signal::Sigiot, Signal::Sigiot)]
#[tokio::test]
async fn status_reports_effective_stop_signal(
    #[case] of_image: &str,
    #[case] wished: Signal,
    #[case] told: Signal,
) {
    let (runtime, _place) = runtime_with_small_image(|image| image.stop_signal(of_image)).await;
    skip_if!(
        "status_reports_effective_stop_signal",
        Means::of(&runtime).await.no_namespaces()
    );
    runtime.client.pull(SMALL).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    config.image.as_mut().unwrap().image = SMALL.to_owned();
    config.stop_signal = wished.into();
    let id = pod.create(config).await.unwrap();
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(status.stop_signal(), told);
}

#[tokio::test]
async fn start_fails_without_command() {
    let (runtime, _place) = runtime_with_small_image(|image| image).await;
    runtime.client.pull(SMALL).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::container::<String>("c", []);
    config.image.as_mut().unwrap().image = SMALL.to_owned();
    let failed = match pod.create(config).await {
        Ok(id) => runtime.client.start(&id).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(failed.message().contains("command"), "{failed:?}");
}

#[tokio::test]
async fn container_keeps_running_after_image_removal() {
    let (runtime, _place) = runtime_with_small_image(|image| image).await;
    skip_if!(
        "container_keeps_running_after_image_removal",
        Means::of(&runtime).await.no_namespaces()
    );
    let client = &runtime.client;
    let id = client.pull(SMALL).await.unwrap();
    let mut sandbox = runtime.sandbox("p");
    fixture::pod_namespaces(&mut sandbox).pid = NamespaceMode::Container.into();
    let pod = harness::Pod::run(client, sandbox).await.unwrap();
    let mut config = fixture::forever("c");
    config.image.as_mut().unwrap().image = id.clone();
    let container = pod.start(config).await.unwrap();
    // A runtime may reject the removal of an image in use; containerd does not.
    if client.remove_image(SMALL).await.is_ok() {
        assert_eq!(client.image(SMALL).await.unwrap(), None);
    }
    assert_eq!(
        client.sh(&container, "cat /etc/motd").await.unwrap(),
        "from the image\n"
    );
    let status = client.container(&container).await.unwrap();
    assert_eq!(
        (status.state(), status.image_ref),
        (ContainerState::ContainerRunning, id)
    );
}

#[tokio::test]
async fn pull_rejects_missing_and_invalid_references() {
    let runtime = Runtime::with().start().await.unwrap();
    let error = runtime
        .client
        .pull("crib.local/not/here:1")
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error:?}");
    assert!(
        error.message().contains("crib.local/not/here:1"),
        "{error:?}"
    );
    for nonsense in ["", "UPPER CASE", "a//b", "example.com/x:tag:tag"] {
        assert_eq!(
            code(runtime.client.pull(nonsense).await),
            Code::InvalidArgument,
            "{nonsense:?}"
        );
    }
    assert_eq!(
        runtime
            .client
            .image("example.com/not/here:1")
            .await
            .unwrap(),
        None
    );
}

async fn file_systems(runtime: &Runtime) -> ImageFsInfoResponse {
    let mut client = runtime.client.images.clone();
    let answer = client.image_fs_info(ImageFsInfoRequest {}).await.unwrap();
    answer.into_inner()
}

/// Used bytes and inodes of an existing file system.
fn checked_usage(usage: &FilesystemUsage) -> (u64, u64) {
    assert!(usage.timestamp > 0);
    let mountpoint = &usage.fs_id.as_ref().unwrap().mountpoint;
    assert!(std::path::Path::new(mountpoint).is_dir(), "{mountpoint}");
    let (bytes, inodes) = (usage.used_bytes.unwrap(), usage.inodes_used.unwrap());
    (bytes.value, inodes.value)
}

/// An exited container of [`SMALL`], and the least number of bytes that it has written.
async fn exited_writer(pod: &Pod) -> (String, u64) {
    let mut config = fixture::script("c", "for i in 1 2 3 4; do cat /bin/cat; done > /written");
    config.image.as_mut().unwrap().image = SMALL.to_owned();
    let id = pod.start(config).await.unwrap();
    pod.ended(&id).await.unwrap();
    (id, 4 * std::fs::metadata("/bin/cat").unwrap().len())
}

async fn layer(runtime: &Runtime, id: &str) -> u64 {
    let request = ContainerStatsRequest {
        container_id: id.to_owned(),
    };
    let mut client = runtime.client.runtime.clone();
    let stats = client.container_stats(request).await.unwrap().into_inner();
    let layer = stats.stats.unwrap().writable_layer.unwrap();
    layer.used_bytes.unwrap().value
}

/// A kubelet takes two mount points for two disks, and has no statistics of disks without one of containers.
#[tokio::test]
async fn fs_info_reports_single_file_system() {
    let (runtime, _place) = runtime_with_small_image(|image| image).await;
    runtime.client.pull(SMALL).await.unwrap();
    let only = async || {
        let info = file_systems(&runtime).await;
        assert_eq!(info.container_filesystems, info.image_filesystems);
        let [images] = &info.image_filesystems[..] else {
            panic!("{info:?}")
        };
        checked_usage(images)
    };
    let images = only().await;
    assert!(images.0 > 0 && images.1 > 0, "{images:?}");
    skip_if!(
        "fs_info_reports_single_file_system",
        Means::of(&runtime).await.no_namespaces()
    );
    // Writes of a container do not count for images.
    let pod = runtime.pod("p").await.unwrap();
    let (id, least) = exited_writer(&pod).await;
    assert_eq!(only().await.0, images.0);
    assert!(layer(&runtime, &id).await >= least);
}

#[tokio::test]
async fn fs_info_reports_separate_container_file_system() {
    let place = TempDir::new().unwrap();
    let archive = place.path().join("small.tar");
    let small = Layer::new()
        .host_program("/bin/sh")
        .and_then(|layer| layer.host_program("/bin/cat"))
        .unwrap();
    let image = ImageBuilder::new(SMALL).layer(small);
    image.write_docker(&archive).unwrap();
    let memory = TempDir::new_in("/dev/shm").unwrap();
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    if device(memory.path()) == device(place.path()) {
        harness::skip!(
            "fs_info_reports_separate_container_file_system",
            "temporary files are in /dev/shm: no second file system"
        );
    }
    let options = Runtime::with().durable().archive(&archive);
    let mut runtime = options.start().await.unwrap();
    runtime.stop().await;
    let images = runtime.state_dir().join("images");
    file_tree::remove(&images).unwrap();
    std::os::unix::fs::symlink(memory.path(), &images).unwrap();
    runtime.restart().await.unwrap();
    runtime.client.pull(SMALL).await.unwrap();
    let both = async || {
        let info = file_systems(&runtime).await;
        let ([images], [containers]) =
            (&info.image_filesystems[..], &info.container_filesystems[..])
        else {
            panic!("{info:?}")
        };
        assert_ne!(images.fs_id, containers.fs_id);
        (checked_usage(images), checked_usage(containers))
    };
    let (images, containers) = both().await;
    assert!(images.0 > 0 && images.1 > 0, "{images:?}");
    assert_eq!(containers, (0, 0));
    skip_if!(
        "fs_info_reports_separate_container_file_system",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let (id, least) = exited_writer(&pod).await;
    let (still, containers) = both().await;
    assert_eq!(still.0, images.0);
    assert!(containers.0 >= least && containers.1 >= 1, "{containers:?}");
    assert_eq!(layer(&runtime, &id).await, containers.0);
    runtime.client.remove(&id).await.unwrap();
    let (still, containers) = both().await;
    assert_eq!((still.0, containers), (images.0, (0, 0)));
}
