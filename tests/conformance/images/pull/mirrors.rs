//! Registry mirrors.

use registry::{Fault, Registry};

use super::{blobs_sent, image, pull};
use crate::support::*;

#[tokio::test]
async fn mirrors_are_tried_in_order() {
    let [first, second] = [Registry::start().await.unwrap(), Registry::start().await.unwrap()];
    let gone = Registry::start().await.unwrap();
    let dead = gone.url().to_owned();
    gone.stop().await;
    second.add(&image("app:1", 1)).unwrap();
    let runtime = Runtime::with()
        .argument(format!("--registry-mirror=example.com={dead}"))
        .argument(format!("--registry-mirror=example.com={}", first.url()))
        .argument(format!("--registry-mirror=example.com={}", second.url()))
        .start()
        .await
        .unwrap();
    let id = pull(&runtime, "example.com/app:1", None).await.unwrap();
    assert!(
        first
            .requests()
            .iter()
            .any(|seen| seen.path == "/v2/app/manifests/1" && seen.query == "ns=example.com")
    );
    assert_eq!(blobs_sent(&second), 3);
    // The image has the name of the original registry.
    let status = runtime.client.image(&id).await.unwrap().unwrap();
    assert_eq!(status.repo_tags, ["example.com/app:1"]);

    // If a mirror fails during the pull, the next one is tried.
    first.add(&image("app:2", 2)).unwrap();
    second.add(&image("app:2", 2)).unwrap();
    first.fail(Fault::status(404).on("/blobs/"));
    pull(&runtime, "example.com/app:2", None).await.unwrap();
}

#[tokio::test]
async fn mirror_rewrites_repository_names() {
    let mirror = Registry::start().await.unwrap();
    mirror.add(&image("docker.io/hub/official/app:1", 1)).unwrap();
    let config = format!(
        "registries:\n  docker.io:\n    mirrors: [{}/hub]\n    mirrors_only: true\n    rewrite: {{library/: official/}}\n",
        mirror.url()
    );
    let runtime = Runtime::with().config(&config).start().await.unwrap();
    let id = pull(&runtime, "app:1", None).await.unwrap();
    let status = runtime.client.image(&id).await.unwrap().unwrap();
    assert_eq!(status.repo_tags, ["docker.io/library/app:1"]);
    // With `mirrors_only` the registry itself gets no request.
    rejected(pull(&runtime, "app:2", None).await, Code::NotFound, &mirror.host());
}

#[tokio::test]
async fn wildcard_mirror_serves_every_registry() {
    let mirror = Registry::start().await.unwrap();
    mirror.add(&image("app:1", 1)).unwrap();
    let runtime = Runtime::with()
        .argument(format!("--registry-mirror=*={}", mirror.url()))
        .start()
        .await
        .unwrap();
    pull(&runtime, "example.com/app:1", None).await.unwrap();
    // The registry does not exist, so the error also contains the mirror's response.
    let error = pull(&runtime, "nowhere.invalid/app:2", None).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error:?}");
    for part in ["nowhere.invalid", &mirror.host(), "has no app:2"] {
        assert!(error.message().contains(part), "{part}: {error:?}");
    }
}
