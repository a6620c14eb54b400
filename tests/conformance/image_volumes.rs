//! The five image volume tests of critest (cri-tools, image_volume.go), which skips tests that fail; here they must pass.

use cri::v1::{ContainerConfig, ImageSpec, Mount};
use harness::fixture_image::{ImageBuilder, Layer};
use harness::{Pod, Runtime, fixture};
use tonic::Code;

use crate::support::{Means, skip_if};

const IMAGE: &str = "example.com/tools:1";
const AT: &str = "/mnt/image-volume";

/// A runtime with [`IMAGE`], its id, and a pod. As in critest, the image is both run and mounted.
struct Bench {
    runtime: Runtime,
    pod: Pod,
    id: String,
    _place: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let archive = place.path().join("tools.tar");
        let mut layer = Layer::new().file("etc/passwd", 0o644, "root:x:0:0::/:/bin/sh\n");
        for program in [
            "/bin/sh",
            "/bin/ls",
            "/bin/cat",
            "/bin/sleep",
            "/usr/bin/touch",
        ] {
            layer = layer.host_program(program).unwrap();
        }
        let image = ImageBuilder::new(IMAGE).layer(layer);
        image.write_docker(&archive).unwrap();
        let runtime = Runtime::with().archive(&archive).start().await.unwrap();
        let id = runtime.client.pull(IMAGE).await.unwrap();
        let pod = runtime.pod("p").await.unwrap();
        Self {
            runtime,
            pod,
            id,
            _place: place,
        }
    }

    fn container(&self, sub_path: &str, readonly: bool) -> ContainerConfig {
        let image = ImageSpec {
            image: self.id.clone(),
            user_specified_image: IMAGE.to_owned(),
            ..Default::default()
        };
        let mut config = fixture::forever("c");
        config.image = Some(image.clone());
        config.mounts = vec![Mount {
            container_path: AT.to_owned(),
            readonly,
            image: Some(image),
            image_sub_path: sub_path.to_owned(),
            ..Default::default()
        }];
        config
    }

    async fn assert_rejected(&self, config: ContainerConfig, reason: &str) {
        let error = self.pod.create(config).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(reason), "{error}");
        let left = self.runtime.client.containers(Default::default()).await;
        assert_eq!(left.unwrap(), []);
    }
}

#[tokio::test]
async fn status_of_image_volume_has_digest_of_image() {
    let bench = Bench::new().await;
    skip_if!(
        "status_of_image_volume_has_digest_of_image",
        Means::of(&bench.runtime).await.no_namespaces()
    );
    let config = bench.container("", true);
    let mut expected = config.mounts.clone();
    expected[0].image.as_mut().unwrap().image_ref = bench.id.clone();
    let id = bench.pod.create(config).await.unwrap();
    let status = bench.runtime.client.container(&id).await.unwrap();
    assert_eq!(status.mounts, expected);
}

#[tokio::test]
async fn image_volume_shows_content_and_is_read_only_and_executable() {
    let bench = Bench::new().await;
    skip_if!(
        "image_volume_shows_content_and_is_read_only_and_executable",
        Means::of(&bench.runtime).await.no_namespaces()
    );
    let id = bench.pod.start(bench.container("", true)).await.unwrap();
    let client = &bench.runtime.client;
    let exec =
        async |command: &[&str]| client.exec(&id, command.iter().copied(), 10).await.unwrap();
    let passwd = format!("{AT}/etc/passwd");
    let shown = exec(&["/bin/cat", &passwd]).await;
    assert_eq!(shown.stdout, b"root:x:0:0::/:/bin/sh\n");
    let written = exec(&["/usr/bin/touch", &format!("{AT}/test-write")]).await;
    assert_ne!(written.exit_code, 0);
    let said = String::from_utf8_lossy(&written.stderr).into_owned();
    assert!(said.contains("Read-only file system"), "{said}");
    let listed = exec(&[&format!("{AT}/bin/ls"), AT]).await;
    assert_eq!(listed.exit_code, 0, "{listed:?}");
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(!listed.contains("test-write"), "{listed}");
    assert!(listed.lines().any(|name| name == "etc"), "{listed}");
    // The image is unchanged, and containers that run it are writable.
    assert_eq!(
        client.sh(&id, "touch /x && echo fine").await.unwrap(),
        "fine\n"
    );
}

#[tokio::test]
async fn writable_image_volume_is_refused() {
    let bench = Bench::new().await;
    bench
        .assert_rejected(bench.container("", false), "readonly")
        .await;
}

#[tokio::test]
async fn sub_path_of_image_volume_is_mounted_alone() {
    let bench = Bench::new().await;
    skip_if!(
        "sub_path_of_image_volume_is_mounted_alone",
        Means::of(&bench.runtime).await.no_namespaces()
    );
    let id = bench.pod.start(bench.container("etc", true)).await.unwrap();
    let client = &bench.runtime.client;
    let script = format!("cat {AT}/passwd; ls {AT}; ls {AT}/etc 2>/dev/null || echo alone");
    assert_eq!(
        client.sh(&id, &script).await.unwrap(),
        "root:x:0:0::/:/bin/sh\npasswd\nalone\n"
    );
    // As in critest, the container can be stopped and removed.
    client.stop(&id, 0).await.unwrap();
    client.remove(&id).await.unwrap();
    client.remove_pod(&bench.pod.id).await.unwrap();
}

#[tokio::test]
async fn missing_sub_path_of_image_volume_is_refused() {
    let bench = Bench::new().await;
    bench
        .assert_rejected(bench.container("not-existing", true), "not-existing")
        .await;
}
