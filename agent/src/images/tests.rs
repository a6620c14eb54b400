//! Pulls on a paused clock, with the scripted runtime.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{LocalObjectReference, Pod as ApiPod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rstest::rstest;
use tempfile::TempDir;

use super::*;
use crate::clock::TokioClock;
use crate::cluster::Standalone;
use crate::cri::fake::{Behaviour, FakeCri};
use crate::objects::{ObjectMap, ObjectStore};

struct Node {
    cri: FakeCri,
    clock: Arc<TokioClock>,
    root: TempDir,
    objects: ObjectMap,
    config: ImageConfig,
    measures: Measures,
}

impl Node {
    fn new() -> Self {
        let clock = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
        let root = tempfile::tempdir().unwrap();
        Self {
            cri: FakeCri::new(Arc::clone(&clock) as Arc<dyn Clock>),
            clock,
            objects: ObjectMap::default(),
            config: ImageConfig::new(root.path()),
            measures: Measures::default(),
            root,
        }
    }

    /// An absent image whose pull takes 10 s.
    fn image(&self, name: &str, error: Option<&str>) {
        let behaviour = Behaviour {
            present: false,
            pull: (Duration::from_secs(10), error.map(str::to_owned)),
            size: 5,
            ..Behaviour::forever()
        };
        self.cri.image(name, behaviour);
    }

    fn secret(&mut self, name: &str, registry: &str) {
        let config = format!("{{\"auths\":{{\"{registry}\":{{\"username\":\"{name}\"}}}}}}");
        self.objects.insert_secret(Secret {
            metadata: ObjectMeta {
                namespace: Some("ns".to_owned()),
                name: Some(name.to_owned()),
                uid: Some(format!("uid-of-{name}")),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/dockerconfigjson".to_owned()),
            data: Some([(".dockerconfigjson".to_owned(), ByteString(config.into()))].into()),
            ..Secret::default()
        });
    }

    /// Creates the owner of pulls, as after a restart of the agent.
    fn start(&self) -> Images {
        Images::new(
            Arc::new(self.cri.clone()),
            Arc::clone(&self.clock) as Arc<dyn Clock>,
            Arc::new(ObjectStore::new(self.objects.clone())),
            self.root.path().to_owned(),
            &self.config,
            self.measures.clone(),
            Arc::new(Standalone::default()),
        )
    }

    fn pulls(&self) -> Vec<String> {
        let calls = self.cri.calls().into_iter();
        calls.filter_map(|call| call.text.strip_prefix("PullImage ").map(str::to_owned)).collect()
    }

    fn records(&self, directory: &str) -> PathBuf {
        self.root.path().join("image_manager").join(directory)
    }

    fn count(&self, directory: &str) -> usize {
        let files = std::fs::read_dir(self.records(directory));
        files.map_or(0, Iterator::count)
    }
}

fn pod(uid: &str, secrets: &[&str]) -> Pod {
    let reference = |name: &&str| LocalObjectReference { name: (*name).to_owned() };
    Pod::new(ApiPod {
        metadata: ObjectMeta {
            namespace: Some("ns".to_owned()),
            name: Some("p".to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            image_pull_secrets: Some(secrets.iter().map(reference).collect()),
            ..PodSpec::default()
        }),
        ..ApiPod::default()
    })
}

/// The result, and the messages of the events.
async fn ensure(
    images: &Images,
    pod: &Pod,
    image: &str,
    cancel: &CancellationToken,
) -> (Result<ReadyImage, ImageError>, Vec<String>) {
    ensure_by(images, pod, image, PullPolicy::IfNotPresent, cancel).await
}

/// The same with a pull policy.
async fn ensure_by(
    images: &Images,
    pod: &Pod,
    image: &str,
    policy: PullPolicy,
    cancel: &CancellationToken,
) -> (Result<ReadyImage, ImageError>, Vec<String>) {
    let events = Mutex::new(Vec::new());
    let request = ImageRequest { pod, image, policy, sandbox: &SandboxSpec::default() };
    let report = |event: ImageEvent| lock(&events).push(event.message);
    let ensured = images.ensure(request, &report, cancel).await;
    (ensured, events.into_inner().unwrap())
}

async fn get(images: &Images, pod: &Pod, image: &str) -> (Result<ReadyImage, String>, String) {
    let (ensured, events) = ensure(images, pod, image, &CancellationToken::new()).await;
    let ensured = ensured.map_err(|error| match error {
        ImageError::Failed(error) => format!("{}: {}", error.reason, error.message),
        ImageError::Cancelled => "cancelled".to_owned(),
    });
    (ensured, events.last().cloned().unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn pulls_wait_for_each_other_unless_parallel() {
    for (limit, whole) in [(None, "20s"), (Some(2), "10s")] {
        let mut node = Node::new();
        node.config.max_parallel_image_pulls = limit;
        node.image("a:1", None);
        node.image("b:1", None);
        let images = node.start();
        let (p, q) = (pod("1", &[]), pod("2", &[]));
        let (_, (second, event)) = tokio::join!(get(&images, &p, "a:1"), get(&images, &q, "b:1"));
        let second = second.unwrap();
        assert_eq!(
            event,
            format!(
                "Successfully pulled image \"b:1\" in 10s ({whole} including waiting). Image size: 5 bytes."
            )
        );
        assert_eq!(format!("{}s", second.pull.unwrap().as_secs()), whole);
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_pulls_fail_and_back_off() {
    let mut node = Node::new();
    (node.config.registry_pull_qps, node.config.registry_burst) = (1, 1);
    node.config.max_parallel_image_pulls = Some(2);
    node.image("a:1", None);
    let images = node.start();
    let (p, q) = (pod("1", &[]), pod("2", &[]));
    let ((first, _), (second, _)) = tokio::join!(get(&images, &p, "a:1"), get(&images, &q, "a:1"));
    assert!(first.is_ok());
    assert_eq!(second, Err("ErrImagePull: pull QPS exceeded".to_owned()));
    assert_eq!(node.pulls(), ["a:1"]);
    assert_eq!(images.backoff(q.uid(), "a:1"), Duration::from_secs(10));
    assert_eq!(node.count("pulling"), 0);
}

#[tokio::test(start_paused = true)]
async fn image_of_updated_pod_does_not_wait_for_the_old_one() {
    let node = Node::new();
    node.image("broken:1", Some("no such image"));
    node.image("works:1", None);
    let images = node.start();
    let p = pod("1", &[]);
    let (failed, _) = get(&images, &p, "broken:1").await;
    assert_eq!(failed, Err("ErrImagePull: no such image".to_owned()));
    let (waits, event) = get(&images, &p, "broken:1").await;
    assert_eq!(
        waits,
        Err("ImagePullBackOff: Back-off pulling image \"broken:1\": ErrImagePull: no such image"
            .to_owned())
    );
    assert_eq!(event, "Back-off pulling image \"broken:1\"");
    assert!(get(&images, &p, "works:1").await.0.is_ok());
    assert_eq!(node.pulls(), ["broken:1", "works:1"]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_pull_leaves_neither_intent_nor_back_off() {
    let node = Node::new();
    node.image("a:1", None);
    let images = node.start();
    let (p, cancel) = (pod("1", &[]), CancellationToken::new());
    let (_, (ensured, _)) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(node.count("pulling"), 1);
            cancel.cancel();
        },
        ensure(&images, &p, "a:1", &cancel)
    );
    assert_eq!(ensured, Err(ImageError::Cancelled));
    assert_eq!(node.clock.now().as_second(), 5);
    assert_eq!((node.count("pulling"), node.count("pulled")), (0, 0));
    assert!(get(&images, &p, "a:1").await.0.is_ok());
}

#[tokio::test(start_paused = true)]
async fn credentials_of_secrets_and_node_are_tried_in_order() {
    let mut node = Node::new();
    node.image("r.io/a:1", Some("denied"));
    node.secret("host", "r.io");
    node.secret("path", "r.io/a");
    node.secret("other", "q.io");
    let of_node = r#"{"auths":{"r.io":{"username":"node"}}}"#;
    std::fs::write(node.root.path().join("config.json"), of_node).unwrap();
    let images = node.start();
    let p = pod("1", &["other", "host", "missing", "path", ""]);
    let (failed, _) = ensure(&images, &p, "r.io/a:1", &CancellationToken::new()).await;
    assert!(matches!(failed, Err(ImageError::Failed(error)) if error.message == "denied"));
    assert_eq!(node.pulls(), ["r.io/a:1 as path", "r.io/a:1 as host", "r.io/a:1 as node"]);
}

#[tokio::test(start_paused = true)]
async fn image_of_one_tenant_is_pulled_again_for_another_one_after_a_restart() {
    let mut node = Node::new();
    node.image("r.io/a:1", None);
    node.secret("one", "r.io");
    node.secret("two", "r.io");
    get(&node.start(), &pod("1", &["one"]), "r.io/a:1").await.0.unwrap();
    let images = node.start();
    get(&images, &pod("2", &["one"]), "r.io/a:1").await.0.unwrap();
    assert_eq!(node.pulls(), ["r.io/a:1 as one"]);
    get(&images, &pod("3", &["two"]), "r.io/a:1").await.0.unwrap();
    assert_eq!(node.pulls(), ["r.io/a:1 as one", "r.io/a:1 as two"]);
}

#[tokio::test(start_paused = true)]
async fn image_of_unfinished_pull_counts_as_pulled() {
    let node = Node::new();
    node.image("r.io/a:1", None);
    record_files::RecordFiles::new(node.root.path()).write_intent("r.io/a:1").unwrap();
    // Another client completed the pull while no agent ran.
    node.cri.image("r.io/a:1", Behaviour::forever());
    let images = node.start();
    let (ready, _) = get(&images, &pod("1", &[]), "r.io/a:1").await;
    assert!(ready.unwrap().pull.is_some(), "its credentials are unknown");
    assert_eq!((node.count("pulling"), node.count("pulled")), (0, 1));
    let (ready, _) = get(&images, &pod("1", &[]), "r.io/a:1").await;
    assert_eq!(ready.unwrap().pull, None);
}

#[tokio::test(start_paused = true)]
async fn damaged_record_is_replaced_by_a_pull() {
    let mut node = Node::new();
    node.config.credential_verification = CredentialVerification::NeverVerify;
    node.image("r.io/a:1", None);
    get(&node.start(), &pod("1", &[]), "r.io/a:1").await.0.unwrap();
    let file = node.records("pulled").join(record_files::file_name("r.io/a:1"));
    std::fs::write(&file, "{").unwrap();
    let images = node.start();
    get(&images, &pod("1", &[]), "r.io/a:1").await.0.unwrap();
    get(&images, &pod("1", &[]), "r.io/a:1").await.0.unwrap();
    assert_eq!(node.pulls().len(), 2);
    assert!(std::fs::read_to_string(file).unwrap().contains("nodePodsAccessible"));
}

#[tokio::test(start_paused = true)]
async fn unwritable_records_fail_the_pull() {
    let node = Node::new();
    node.image("r.io/a:1", None);
    std::fs::write(node.root.path().join("image_manager"), "").unwrap();
    let (failed, _) = get(&node.start(), &pod("1", &[]), "r.io/a:1").await;
    let failed = failed.unwrap_err();
    let begin = "failed to record image pull intent: ";
    let (reason, message) = failed.split_once(": Failed").unwrap();
    assert!(reason.starts_with(begin), "{failed}");
    assert_eq!(
        message,
        format!(" to record image pull intent for container image \"r.io/a:1\": {reason}")
    );
    assert_eq!(node.pulls(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn records_of_removed_images_are_pruned() {
    let node = Node::new();
    node.image("r.io/a:1", None);
    node.image("r.io/b:1", None);
    let images = node.start();
    for image in ["r.io/a:1", "r.io/b:1"] {
        get(&images, &pod("1", &[]), image).await.0.unwrap();
    }
    let listed = [Image { id: "r.io/a:1".to_owned(), ..Image::default() }];
    images.prune_records(&listed, Timestamp::UNIX_EPOCH).await;
    assert_eq!(node.count("pulled"), 2, "the record is younger than the listing");
    images.prune_records(&listed, Timestamp::MAX).await;
    assert_eq!(node.count("pulled"), 1);
}

/// Kubernetes 1.36, pkg/kubelet/images/image_manager.go EnsureImageExists: the labels of its metric.
#[rstest]
#[case::absent("absent:1", PullPolicy::IfNotPresent, Some(false), Some(true))]
#[case::present("present:1", PullPolicy::IfNotPresent, Some(true), Some(false))]
#[case::never("absent:1", PullPolicy::Never, Some(false), None)]
#[case::always("present:1", PullPolicy::Always, None, Some(true))]
#[case::other_secrets("r.io/a:1", PullPolicy::Never, Some(true), Some(true))]
#[case::no_name("Not An Image", PullPolicy::IfNotPresent, None, None)]
#[tokio::test(start_paused = true)]
async fn image_requests_are_counted(
    #[case] image: &str,
    #[case] policy: PullPolicy,
    #[case] present: Option<bool>,
    #[case] pull: Option<bool>,
) {
    let mut node = Node::new();
    node.image("absent:1", None);
    node.cri.image("present:1", Behaviour::forever());
    node.image("r.io/a:1", None);
    node.secret("one", "r.io");
    get(&node.start(), &pod("1", &["one"]), "r.io/a:1").await.0.unwrap();
    node.measures = Measures::default();
    let cancel = CancellationToken::new();
    let _ = ensure_by(&node.start(), &pod("2", &[]), image, policy, &cancel).await;
    let ensured = EnsuredImage { policy: policy.label(), present, pull };
    let counts = node.measures.now().counts;
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(Counted::ImageEnsured(ensured), 1)]);
}

#[tokio::test(start_paused = true)]
async fn error_of_a_pull_secret_is_the_reason() {
    let mut node = Node::new();
    node.secret("broken", "\"");
    node.image("a:1", None);
    let (failed, event) = get(&node.start(), &pod("1", &["broken"]), "a:1").await;
    let error = "error occurred while trying to unmarshal json";
    assert_eq!(failed, Err(format!("{error}: {error}")));
    assert_eq!(event, "", "the container's event has the error");
    assert!(node.pulls().is_empty());
}
