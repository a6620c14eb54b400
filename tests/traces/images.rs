//! The images of the scenarios, in a registry that stands in for those that the manifests name.

use std::process::Command;
use std::time::Duration;

use harness::Registry;
use harness::fixture_image::{ImageBuilder, Layer};
use harness::registry::Fault;

/// The registries that the manifests name.
pub(crate) const HOSTS: [&str; 2] = ["registry.k8s.io", SLOW_HOST];
pub(crate) const SLOW_HOST: &str = "slow.test";

const SHELLS: [&str; 5] = [
    "registry.k8s.io/e2e-test-images/busybox:1.29-2",
    "registry.k8s.io/e2e-test-images/busybox:latest",
    "registry.k8s.io/k8s-staging-cri-tools/test-image-tags:1",
    "slow.test/k8s-staging-cri-tools/test-image-tags:2",
    "slow.test/k8s-staging-cri-tools/test-image-3:latest",
];

/// The image of a web server. As the recorded one does, it needs a moment before it serves, and another before it ends on
/// SIGTERM.
const SERVER: &str = "registry.k8s.io/e2e-test-images/nginx:1.14-2";
const SERVE: &str = "sleep 0.05; httpd -f -p 80 -h /www & sleep 0.2; trap 'exit 0' TERM; wait";

/// The image of containerd's sandboxes.
pub(crate) const PAUSE: &str = "registry.k8s.io/pause:3.10";

/// How long the slow registry takes.
const SLOW: Duration = Duration::from_secs(15);

/// Starts the registry.
pub(crate) async fn registry() -> Registry {
    let registry = Registry::start().await.unwrap();
    let layer = busybox();
    for name in SHELLS {
        let image = ImageBuilder::new(name).layer(layer.clone()).cmd(["sh"]);
        // Tags of one repository are one image, others have an image of their own.
        let repository = name
            .rsplit_once(':')
            .map_or(name, |(repository, _)| repository);
        let image = image.env([format!("REPOSITORY={repository}")]);
        registry.add(&image).unwrap();
    }
    let pause = ImageBuilder::new(PAUSE)
        .layer(layer.clone())
        .cmd(["sleep", "infinity"]);
    registry.add(&pause).unwrap();
    let pages =
        Layer::new()
            .file("www/index.html", 0o644, "ok\n")
            .file("www/healthz", 0o644, "ok\n");
    let server = ImageBuilder::new(SERVER)
        .layer(layer)
        .layer(pages)
        .cmd(["sh", "-c", SERVE]);
    registry.add(&server).unwrap();
    registry
}

/// Makes the registry slow once.
pub(crate) fn slow_down_once(registry: &Registry) {
    registry.fail(
        Fault::delay(SLOW)
            .on("test-image-tags/manifests/2")
            .times(1),
    );
}

/// Whether this machine has a busybox that can be in an image.
pub(crate) fn busybox_is_here() -> bool {
    Command::new("busybox")
        .arg("true")
        .status()
        .is_ok_and(|status| status.success())
}

fn busybox() -> Layer {
    let found = Command::new("which").arg("busybox").output().unwrap();
    let path = String::from_utf8(found.stdout).unwrap();
    let path = path.trim();
    let listed = Command::new(path).arg("--list").output().unwrap();
    let mut layer = Layer::new().host_program(path).unwrap();
    for applet in String::from_utf8(listed.stdout).unwrap().lines() {
        if applet != "busybox" {
            layer = layer.symlink(&format!("bin/{applet}"), path);
        }
    }
    layer
        .directory("tmp", 0o1777)
        .file(
            "etc/passwd",
            0o644,
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
        )
        .file("etc/group", 0o644, "root:x:0:\nnobody:x:65534:\n")
}
