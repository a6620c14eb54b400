//! The images of the scenarios, in a registry that stands in for those in the manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use harness::fixture_image::{ImageBuilder, Layer};
use registry::{Fault, Registry};

use crate::runtimes::recorded_images::{
    self, RecordedImage, host_of, on_host, recorded, repository_and_tag,
};
use crate::scenarios::scenario::Scenario;

/// The registries in the manifests.
const HOSTS: [&str; 2] = ["registry.k8s.io", SLOW_HOST];
pub(crate) const SLOW_HOST: &str = "slow.test";

const SHELLS: [&str; 5] = [
    "registry.k8s.io/e2e-test-images/busybox:1.29-2",
    "registry.k8s.io/e2e-test-images/busybox:latest",
    "registry.k8s.io/k8s-staging-cri-tools/test-image-tags:1",
    "slow.test/k8s-staging-cri-tools/test-image-tags:2",
    "slow.test/k8s-staging-cri-tools/test-image-3:latest",
];

/// The image of a web server. Like the recorded one, it needs a moment before it serves, and another one before it handles SIGTERM,
/// so that a postStart hook runs earlier even on a busy machine.
const SERVER: &str = "registry.k8s.io/e2e-test-images/nginx:1.14-2";
const SERVE: &str = "sleep 0.5; httpd -f -p 80 -h /www & sleep 0.2; trap 'exit 0' TERM; wait";

/// The accounts in all images.
const ACCOUNTS: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n";

/// The image of containerd's sandboxes.
pub(crate) const PAUSE: &str = "registry.k8s.io/pause:3.10";

/// The delay of the slow registry.
const SLOW: Duration = Duration::from_secs(15);

/// Repositories of web servers.
const SERVERS: [&str; 2] = ["nginx", "httpd"];

/// Starts the registry with all images of the recorded runtimes. Digests in the manifests are replaced by those of the images here.
pub(crate) async fn registry(scenarios: &mut [Scenario]) -> Registry {
    let registry = Registry::start().await.unwrap();
    let layer = busybox();
    let pause = ImageBuilder::new(PAUSE).layer(layer.clone()).cmd(["sleep", "infinity"]);
    registry.add(&pause).unwrap();
    let mut digests = BTreeMap::new();
    let mut add = |name: &str, recorded: &RecordedImage| {
        let (repository, tag) = repository_and_tag(name);
        let name = format!("{repository}:{tag}");
        let known = digests.contains_key(&name);
        if !known {
            let digest = registry.add(&image(&name, recorded, &layer)).unwrap();
            digests.insert(name.clone(), digest.to_string());
        }
        digests[&name].clone()
    };
    for name in SHELLS.into_iter().chain([SERVER]) {
        add(name, &RecordedImage::default());
    }
    for scenario in scenarios.iter() {
        for (name, recorded) in recorded(scenario) {
            add(&name, &recorded);
        }
        for name in on_host(&scenario.manifest, SLOW_HOST) {
            add(name, &RecordedImage::default());
        }
    }
    for scenario in scenarios.iter_mut() {
        for (name, digest) in recorded_images::digests(&scenario.manifest) {
            // Without a tag, any recorded image of the repository matches.
            let own = SHELLS.iter().find(|known| {
                !name.rsplit('/').next().unwrap_or_default().contains(':')
                    && repository_and_tag(known).0 == name
            });
            let here = add(own.copied().unwrap_or(&name), &RecordedImage::default());
            *scenario = scenario.replaced(&digest, &here);
        }
    }
    registry
}

/// The image with this name. The tags of one repository share an image; other repositories have other images.
fn image(name: &str, recorded: &RecordedImage, layer: &Layer) -> ImageBuilder {
    let tags = recorded.tags.iter().map(String::as_str);
    let known = |tag: &&str| SHELLS.contains(tag) || *tag == SERVER;
    let same = tags.clone().find(known).unwrap_or(name);
    let (repository, _) = repository_and_tag(same);
    let image = ImageBuilder::new(name).layer(layer.clone());
    let serves = SERVERS.contains(&repository.rsplit('/').next().unwrap_or_default());
    let image = if serves {
        let pages =
            Layer::new().file("www/index.html", 0o644, "ok\n").file("www/healthz", 0o644, "ok\n");
        image.layer(pages).cmd(["sh", "-c", SERVE])
    } else {
        image.cmd(["sh"]).env([format!("REPOSITORY={repository}")])
    };
    match &recorded.user {
        Some(user) if user.parse::<u32>().is_err() => {
            let accounts = format!("{ACCOUNTS}{user}:x:1000:1000::/:/bin/sh\n");
            let accounts = Layer::new().file("etc/passwd", 0o644, accounts);
            image.layer(accounts).user(user)
        }
        Some(user) => image.user(user),
        None => image,
    }
}

/// The hosts of the registries of a scenario's images.
pub(crate) fn hosts(scenario: &Scenario) -> BTreeSet<String> {
    let images = recorded(scenario).into_keys();
    let hosts = images.map(|name| host_of(&name).to_owned());
    hosts.chain(HOSTS.map(str::to_owned)).collect()
}

/// Delays the registry once for each image that a scenario pulls from the slow registry.
pub(crate) fn slow_down_once(registry: &Registry, scenario: &Scenario) {
    let present = scenario.images_present();
    let mut names = on_host(&scenario.manifest, SLOW_HOST);
    names.retain(|name| !present.iter().any(|present| present == name));
    names.sort_unstable();
    names.dedup();
    for name in names {
        let (repository, tag) = repository_and_tag(name);
        let path = repository.strip_prefix(SLOW_HOST).unwrap_or(repository);
        let part = format!("{path}/manifests/{tag}");
        registry.fail(Fault::delay(SLOW).on(&part).times(1));
    }
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
    layer.directory("tmp", 0o1777).file("etc/passwd", 0o644, ACCOUNTS).file(
        "etc/group",
        0o644,
        "root:x:0:\nnobody:x:65534:\n",
    )
}
