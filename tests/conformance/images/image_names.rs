//! The image names in a container's status, which a kubelet copies into the pod status.

use cri::v1::{ContainerConfig, ContainerStatus, ImageSpec};
use registry::Registry;

use crate::support::*;

/// A registry with one image under two tags, and a runtime.
struct Bench {
    registry: Registry,
    runtime: Runtime,
    digest: String,
}

impl Bench {
    async fn new() -> Self {
        let registry = Registry::start().await.unwrap();
        let layer = Layer::new().file("etc/motd", 0o644, "hello\n");
        let add = |name| {
            let image = ImageBuilder::new(name).layer(layer.clone());
            registry.add(&image).unwrap()
        };
        let digest = add("example.com/app:1");
        assert_eq!(add("example.com/app:2"), digest);
        let digest = format!("{}/app@{digest}", registry.host());
        let runtime = Runtime::with().durable().start().await.unwrap();
        Self { registry, runtime, digest }
    }

    fn tag(&self, tag: &str) -> String {
        format!("{}/app:{tag}", self.registry.host())
    }
}

fn of(name: &str, image: &str, specified: &str) -> ContainerConfig {
    let mut config = fixture::forever(name);
    config.image = Some(ImageSpec {
        image: image.to_owned(),
        user_specified_image: specified.to_owned(),
        ..ImageSpec::default()
    });
    config
}

fn names(status: &ContainerStatus) -> [&str; 3] {
    let image = status.image.as_ref().unwrap();
    [&image.image, &status.image_ref, &status.image_id]
}

#[tokio::test]
async fn container_status_names_image_by_tag_digest_and_id() {
    harness::needs!(Namespaces);
    let mut bench = Bench::new().await;
    let (one, two) = (bench.tag("1"), bench.tag("2"));
    let client = bench.runtime.client.clone();
    let id = client.pull(&one).await.unwrap();
    assert_eq!(client.pull(&two).await.unwrap(), id);
    let pod = bench.runtime.pod("p").await.unwrap();

    // A kubelet creates containers by image id, and passes the pod's reference as `user_specified_image`.
    let kubelets = pod.create(of("a", &id, &two)).await.unwrap();
    let status = client.container(&kubelets).await.unwrap();
    let expected = [two.as_str(), &bench.digest, &id];
    assert_eq!(names(&status), expected);
    assert_eq!(status.image.unwrap().user_specified_image, two);
    let image = client.image(&id).await.unwrap().unwrap();
    assert!(image.repo_tags.contains(&two) && image.repo_digests.contains(&bench.digest));

    // Other clients create containers by tag, digest or id.
    for (name, requested, tag) in [("b", &two, &two), ("c", &bench.digest, &one), ("d", &id, &one)]
    {
        let container = pod.create(of(name, requested, "")).await.unwrap();
        let status = client.container(&container).await.unwrap();
        assert_eq!(names(&status), [tag.as_str(), &bench.digest, &id], "{requested}");
    }

    // Neither RemoveImage nor a restart changes the names; PodSandboxStatus reports the same.
    client.remove_image(&one).await.unwrap();
    bench.runtime.kill_and_restart().await.unwrap();
    assert_eq!(names(&client.container(&kubelets).await.unwrap()), expected);
    let pod = client.pod(&pod.id).await.unwrap();
    let reported = pod.containers_statuses.iter().find(|c| c.id == kubelets);
    assert_eq!(names(reported.unwrap()), expected);
}
