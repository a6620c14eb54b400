//! image-refs, image-credentials, image-backoff, image-pull-sequences: names, credentials, pulls and their records.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::clock::{Clock, TokioClock, after};
use agent::cluster::Standalone;
use agent::images::keyring::{CredentialSource, Keyring};
use agent::images::{
    Allowlist, CredentialVerification, ImageConfig, ImageError, ImageEvent, ImageRequest, Images,
    PullPolicy, reference,
};
use agent::objects::{ObjectMap, ObjectStore};
use agent::pod_spec::spec::SandboxSpec;
use agent::reporting::measures::Measures;
use api::pod::Pod;
use image_reference::Reference;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::judge::Set;
use crate::pods::{self, texts};
use crate::read::Case;
use crate::read::{list, same, text};

mod registry;

use registry::Registry;

pub(crate) const REFERENCES: Set =
    Set::new("image-refs", "the image that a name refers to", judge_reference);

pub(crate) const CREDENTIALS: Set =
    Set::new("image-credentials", "the credentials tried for an image", judge_credentials);

pub(crate) const BACKOFF: Set =
    Set::new("image-backoff", "the back-off of a failed pull", judge_backoff);

pub(crate) const SEQUENCES: Set = Set::new(
    "image-pull-sequences",
    "which pods may use an image that is already present, and which images the agent then pulls",
    judge_sequence,
);

fn judge_reference(case: &Case) -> Result<(), String> {
    let image = text(&case.input["image"]);
    let ours = match (Reference::with_any_port(image), reference::with_default_tag(image)) {
        (Ok(parsed), Ok(cri_image)) => {
            let mut ours = json!({"repository": parsed.repository, "cri_image": cri_image});
            if let Some(tag) = parsed.tag {
                ours["tag"] = json!(tag);
            }
            if let Some(digest) = parsed.digest {
                ours["digest"] = json!(digest);
            }
            ours
        }
        (_, Err(message)) => json!({
            "error": message.split_once("\": ").map(|_| error_of(&message)),
            "reason": "InvalidImageName", "status_message": message,
        }),
        (Err(error), Ok(_)) => return Err(format!("{error} for one parser only")),
    };
    same("reference", &ours, &case.expected)
}

/// The parser's part of a message.
fn error_of(message: &str) -> String {
    let at = message.find("couldn't parse").unwrap_or_default();
    message[at..].to_owned()
}

fn secret(of: &Value) -> Secret {
    let mut secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": of["name"], "namespace": of["namespace"], "uid": of["uid"]},
        "type": of["type"],
    }))
    .unwrap();
    let data = of["stringData"].as_object().into_iter().flatten();
    secret.data =
        Some(data.map(|(key, value)| (key.clone(), ByteString(text(value).into()))).collect());
    secret
}

fn judge_credentials(case: &Case) -> Result<(), String> {
    let secrets: Vec<Secret> = list(&case.input["secrets"]).iter().map(secret).collect();
    let repository = Reference::with_any_port(text(&case.input["image"])).unwrap().repository;
    match Keyring::of_secrets(&secrets) {
        Ok(keyring) => {
            let found = keyring.lookup(&repository).into_iter().map(|credential| {
                let secret = match credential.source {
                    Some(CredentialSource::Secret(secret)) => Some(secret.name),
                    Some(CredentialSource::ServiceAccount(_)) | None => None,
                };
                json!({"username": credential.username, "password": credential.password, "secret": secret})
            });
            same("credentials", &found.collect(), &case.expected["credentials"])
        }
        Err(error) if case.expected.get("error").is_none() => Err(error.to_string()),
        // The text is that of Go's JSON parser.
        Err(_) => Ok(()),
    }
}

/// The agent's part of a case, which can be restarted and reports events.
struct Node {
    registry: Arc<Registry>,
    clock: Arc<TokioClock>,
    root: tempfile::TempDir,
    config: ImageConfig,
    images: Images,
    /// The pull secrets of all namespaces.
    objects: Arc<ObjectStore>,
    events: Mutex<Vec<Value>>,
}

impl Node {
    fn new(verification: CredentialVerification, secrets: &[Value]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let clock = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
        let registry = Arc::new(Registry::default());
        let mut config = ImageConfig::new(root.path());
        config.credential_verification = verification;
        // Time stands still in many cases.
        config.registry_pull_qps = 0;
        let objects = Arc::default();
        let images = images(&registry, &clock, root.path(), &config, &objects);
        let node =
            Self { registry, clock, root, config, images, objects, events: Mutex::default() };
        secrets.iter().for_each(|secret| node.set_secret(secret));
        node
    }

    fn set_secret(&self, new: &Value) {
        let mut objects = ObjectMap::clone(&self.objects.current());
        objects.insert_secret(secret(new));
        self.objects.set(objects);
    }

    /// Restarts the agent with the records on disk.
    fn restart(&mut self) {
        let root = self.root.path();
        self.images = images(&self.registry, &self.clock, root, &self.config, &self.objects);
    }

    /// The records and intents on disk, without times.
    fn documents(&self) -> (Value, Value) {
        let read = |name: &str| {
            let directory = self.root.path().join("image_manager").join(name);
            let files = std::fs::read_dir(directory).into_iter().flatten();
            let mut documents: Vec<Value> = files
                .map(|file| {
                    let text = std::fs::read(file.unwrap().path()).unwrap();
                    let mut document: Map<String, Value> = serde_json::from_slice(&text).unwrap();
                    document.retain(|key, _| {
                        !["kind", "apiVersion", "lastUpdatedTime"].contains(&key.as_str())
                    });
                    document.into()
                })
                .collect();
            documents.sort_by_key(|document| document["imageRef"].as_str().map(str::to_owned));
            Value::from(documents)
        };
        (read("pulled"), read("pulling"))
    }

    /// The result of a step, with the events in `events`.
    async fn ensure(&self, pod: &Pod, image: &str, policy: &str) -> Map<String, Value> {
        let report = |event: ImageEvent| {
            let kind = if event.warning { "Warning" } else { "Normal" };
            self.events
                .lock()
                .unwrap()
                .push(json!({"type": kind, "reason": event.reason, "message": event.message}));
        };
        let request = ImageRequest {
            pod,
            image,
            policy: PullPolicy::of(Some(policy)),
            sandbox: &SandboxSpec::default(),
        };
        let ensured = self.images.ensure(request, &report, &CancellationToken::new()).await;
        let (mut ours, mut pulled) = (Map::new(), None);
        match ensured {
            Ok(ready) => {
                ours.insert("imageRef".to_owned(), json!(ready.reference));
                pulled = Some(ready.pull.is_some());
            }
            Err(ImageError::Failed(error)) => {
                ours.insert("reason".to_owned(), json!(error.reason));
                ours.insert("message".to_owned(), json!(error.message));
            }
            Err(ImageError::Cancelled) => panic!("nothing cancels"),
        }
        let events = std::mem::take(&mut *self.events.lock().unwrap());
        if pulled == Some(false) {
            // A kubelet returns the event's message too.
            ours.insert("message".to_owned(), events[0]["message"].clone());
        }
        if !events.is_empty() {
            ours.insert("events".to_owned(), events.into());
        }
        ours
    }
}

fn images(
    registry: &Arc<Registry>,
    clock: &Arc<TokioClock>,
    root: &Path,
    config: &ImageConfig,
    objects: &Arc<ObjectStore>,
) -> Images {
    Images::new(
        Arc::clone(registry) as Arc<dyn agent::cri::Cri>,
        Arc::clone(clock) as Arc<dyn Clock>,
        Arc::clone(objects),
        root.to_owned(),
        config,
        Measures::default(),
        Arc::new(Standalone::default()),
    )
}

/// Runs on a clock that stands still while the agent works.
fn paused<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(work)
}

fn judge_backoff(case: &Case) -> Result<(), String> {
    paused(async {
        let node = Node::new(CredentialVerification::NeverVerify, &[]);
        let seconds = |value: &Value| Duration::from_secs_f64(value.as_f64().unwrap());
        for (index, (step, expected)) in
            list(&case.input["steps"]).iter().zip(list(&case.expected)).enumerate()
        {
            let at = after(Timestamp::UNIX_EPOCH, seconds(&step["at"]));
            node.clock.sleep_until(at).await;
            let uid = text(&step["podUid"]);
            let image = text(&step["image"]);
            let pod = pod(&json!({"name": "a", "namespace": "b", "uid": uid}), &[]);
            node.registry.script(step);
            let mut ours = node.ensure(&pod, image, text(&step["policy"])).await;
            let pulled = node.registry.take_pulls();
            ours.insert("pullCalled".to_owned(), json!(!pulled.is_empty()));
            ours.extend(
                pulled.first().map(|pull| ("pulledImage".to_owned(), pull["image"].clone())),
            );
            let backoff = node.images.backoff(pod.uid(), image).as_secs();
            ours.insert("backoffSeconds".to_owned(), json!(backoff));
            let mut expected = expected.clone();
            let finished = (seconds(&expected["finishedAt"]).as_secs_f64() * 1000.0).round() as i64;
            same(
                &format!("step {index} finishedAt"),
                &json!(node.clock.now().as_millisecond()),
                &json!(finished),
            )?;
            expected.as_object_mut().unwrap().remove("finishedAt");
            same(&format!("step {index}"), &ours.into(), &expected)?;
        }
        Ok(())
    })
}

fn pod(metadata: &Value, pull_secrets: &[String]) -> Pod {
    let secrets: Vec<Value> = pull_secrets.iter().map(|name| json!({"name": name})).collect();
    pods::pod(
        &json!({"metadata": metadata, "spec": {"containers": [], "imagePullSecrets": secrets}}),
    )
}

fn verification(input: &Value) -> CredentialVerification {
    match text(&input["policy"]) {
        "NeverVerify" => CredentialVerification::NeverVerify,
        "AlwaysVerify" => CredentialVerification::AlwaysVerify,
        "NeverVerifyAllowlistedImages" => {
            let patterns = texts(&input["allowlist"]);
            let list = Allowlist::new(patterns.iter().map(String::as_str)).unwrap();
            CredentialVerification::NeverVerifyAllowlistedImages(list)
        }
        _ => CredentialVerification::NeverVerifyPreloadedImages,
    }
}

fn judge_sequence(case: &Case) -> Result<(), String> {
    paused(async {
        let input = &case.input;
        let mut node = Node::new(verification(input), list(&input["secrets"]));
        node.registry.replace(&input["registry"]);
        for (name, id) in input["local"].as_object().into_iter().flatten() {
            node.registry.preload(name, text(id));
        }
        for (index, (step, expected)) in
            list(&input["steps"]).iter().zip(list(&case.expected["steps"])).enumerate()
        {
            let name = text(&step["criImage"]);
            match text(&step["op"]) {
                "ensure" => {
                    let of = pod(&step["pod"], &texts(&step["imagePullSecrets"]));
                    let policy = text(&step["imagePullPolicy"]);
                    let mut ours = node.ensure(&of, text(&step["image"]), policy).await;
                    let pulls = node.registry.take_pulls();
                    if !pulls.is_empty() {
                        ours.insert("pulls".to_owned(), pulls.into());
                    }
                    let ours = normalized(ours.into());
                    same(&format!("step {index}"), &ours, expected)?;
                }
                "advance" => {
                    let wait = Duration::from_secs_f64(step["seconds"].as_f64().unwrap());
                    node.clock.sleep_until(after(node.clock.now(), wait)).await;
                }
                "restart" => node.restart(),
                "remove-image" => node.registry.remove(name),
                "preload" => node.registry.preload(name, text(&step["ref"])),
                "registry" => node.registry.set(name, &step["entry"]),
                "inspect-error" => node.registry.fail_inspection(name, text(&step["errorMessage"])),
                "update-secret" | "recreate-secret" => {
                    node.set_secret(&step["secret"]);
                    if step.get("registry").is_some() {
                        node.registry.replace(&step["registry"]);
                    }
                }
                other => panic!("step {other}"),
            }
        }
        let (pulled, intents) = node.documents();
        same("pulledRecords", &pulled, &case.expected["pulledRecords"])?;
        let expected = list(&case.expected["pullIntents"]);
        same("pullIntents", &intents, &expected.to_vec().into())
    })
}

/// Replaces durations in events by `<d>`. The cases' runtime fails inspections without a gRPC status, which a gRPC client cannot
/// see.
fn normalized(mut ours: Value) -> Value {
    let plain = |text: &str| text.replace("rpc error: code = Unknown desc = ", "");
    for event in ours["events"].as_array_mut().into_iter().flatten() {
        let message = text(&event["message"]);
        event["message"] = match message.strip_prefix("Successfully pulled image ") {
            Some(rest) => {
                let (image, rest) = rest.split_once(" in ").unwrap();
                let (_, rest) = rest.split_once(" including waiting)").unwrap();
                json!(format!(
                    "Successfully pulled image {image} in <d> (<d> including waiting){rest}"
                ))
            }
            None => json!(plain(message)),
        };
    }
    if let Some(message) = ours.get("message").map(|message| plain(text(message))) {
        ours["message"] = json!(message);
    }
    ours
}
