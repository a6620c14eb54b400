//! Images: pull, list, run, remove.

use cri::v1::FilesystemUsage;

use crate::support::*;

const SMALL: &str = "example.com/small:1";

#[tokio::test]
async fn start_fails_without_command() {
    let layer = with_programs(Layer::new(), &["/bin/sh"]);
    let (runtime, _place) = with_image(Runtime::with(), SMALL, layer).await;
    let pod = runtime.pod("p").await.unwrap();
    let config = of_image(fixture::container::<String>("c", []), SMALL);
    let failed = match pod.create(config).await {
        Ok(id) => runtime.client.start(&id).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(failed.message().contains("command"), "{failed:?}");
}

#[tokio::test]
async fn pull_rejects_missing_and_invalid_references() {
    let runtime = Runtime::with().start().await.unwrap();
    rejected(
        runtime.client.pull("crib.local/not/here:1").await,
        Code::NotFound,
        "crib.local/not/here:1",
    );
    for nonsense in ["", "UPPER CASE", "a//b", "example.com/x:tag:tag"] {
        assert_eq!(
            code(runtime.client.pull(nonsense).await),
            Code::InvalidArgument,
            "{nonsense:?}"
        );
    }
    assert_eq!(runtime.client.image("example.com/not/here:1").await.unwrap(), None);
}

/// Used bytes and inodes of an existing file system.
fn checked_usage(usage: &FilesystemUsage) -> (u64, u64) {
    assert!(usage.timestamp > 0);
    let mountpoint = &usage.fs_id.as_ref().unwrap().mountpoint;
    assert!(std::path::Path::new(mountpoint).is_dir(), "{mountpoint}");
    let (bytes, inodes) = (usage.used_bytes.unwrap(), usage.inodes_used.unwrap());
    (bytes.value, inodes.value)
}

/// An exited container of [`SMALL`], and the minimum number of bytes that it has written.
async fn exited_writer(pod: &Pod) -> (String, u64) {
    let mut config = fixture::script("c", "for i in 1 2 3 4; do cat /bin/cat; done > /written");
    config.image.as_mut().unwrap().image = SMALL.to_owned();
    let id = pod.start(config).await.unwrap();
    pod.ended(&id).await.unwrap();
    (id, 4 * std::fs::metadata("/bin/cat").unwrap().len())
}

async fn layer(runtime: &Runtime, id: &str) -> u64 {
    let layer = runtime.client.container_stats(id).await.unwrap().writable_layer.unwrap();
    layer.used_bytes.unwrap().value
}

#[tokio::test]
async fn fs_info_reports_separate_container_file_system() {
    harness::needs!(Namespaces, SecondFileSystem);
    let small = with_programs(Layer::new(), &["/bin/sh", "/bin/cat"]);
    let memory = TempDir::new_in("/dev/shm").unwrap();
    let (mut runtime, _place) = with_image(Runtime::with().durable(), SMALL, small).await;
    runtime.client.remove_image(SMALL).await.unwrap();
    runtime.stop().await;
    let images = runtime.state_dir().join("images");
    file_tree::remove(&images).unwrap();
    std::os::unix::fs::symlink(memory.path(), &images).unwrap();
    runtime.restart().await.unwrap();
    runtime.client.pull(SMALL).await.unwrap();
    let both = async || {
        let info = runtime.client.image_fs_info().await.unwrap();
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
