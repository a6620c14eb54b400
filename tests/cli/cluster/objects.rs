//! Objects of the cluster that pods use: ConfigMaps, Secrets, Services, tokens. Also events.

use cluster::{Kind, Part};
use harness::fixture_image::{ImageBuilder, Layer};
use jiff::Timestamp;
use registry::{Auth, Registry};

use super::api_server::ApiServer;
use super::joined::{Joined, condition, pod, wait};
use crate::command::*;
use crate::nodes::agent_cgroups::remove_classes;

fn object(kind: &str, name: &str, data: Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
    });
    object.as_object_mut().unwrap().extend(data.as_object().unwrap().clone());
    object
}

fn config_map(name: &str, text: &str) -> Value {
    object("ConfigMap", name, json!({"data": {"color": text}}))
}

fn create(joined: &Joined, object: Value) {
    joined.server.store().create(object, Timestamp::now()).unwrap();
}

/// A pod with this volume, whose container runs a script.
fn with_volume(name: &str, script: &str, source: &str) -> String {
    pod(name, script)
        + "    volumeMounts: [{name: v, mountPath: /v}]\n"
        + &format!("  volumes: [{{name: v, {source}}}]\n")
}

#[tokio::test]
async fn pods_have_objects_of_the_cluster() {
    let joined = Joined::new(ApiServer::start()).await;
    create(&joined, config_map("settings", "blue"));
    create(&joined, object("Secret", "login", json!({"data": {"password": "czNjcmV0"}})));
    let ports =
        json!({"spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 443, "protocol": "TCP"}]}});
    create(&joined, object("Service", "kubernetes", ports));
    let agent = joined.agent(&[]);
    let script =
        "test $(cat /v/color) = blue && test $P = s3cret && test $KUBERNETES_SERVICE_PORT = 443";
    let manifest = with_volume("reads", script, "configMap: {name: settings}").replace(
        "    volumeMounts",
        "    env: [{name: P, valueFrom: {secretKeyRef: {name: login, key: password}}}]\n    volumeMounts",
    );
    joined.create_pod(&manifest);
    joined.wait_for_phase("reads", "Succeeded").await;
    // ConfigMaps are watched by name, only as long as a pod needs them.
    let lists = || joined.server.count("GET /api/v1/namespaces/default/configmaps");
    assert!(lists() >= 1);
    assert_eq!(joined.server.count("GET /api/v1/configmaps"), 0);
    joined.end(agent).await;
}

/// A container without KUBERNETES_SERVICE_HOST could not find the API server. Static pods start without Services.
#[tokio::test]
async fn containers_wait_until_services_are_listed() {
    let joined = Joined::new(ApiServer::start()).await;
    let ports = json!({"spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 443}]}});
    create(&joined, object("Service", "kubernetes", ports));
    joined.server.forbid(Some("/api/v1/services"));
    joined.place.file("static/own.yaml", &pod("own", "sleep 3600"));
    let manifests = joined.place.path("static");
    let agent = joined.agent(&["--manifests", manifests.to_str().unwrap()]);
    joined.create_pod(&pod("web", "test $KUBERNETES_SERVICE_HOST = 10.96.0.1"));
    let waiting = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].clone();
    let is_reported = |pod: &Value| waiting(pod)["reason"] == "CreateContainerConfigError";
    let web = joined.wait_for_pod("web", "waiting for Services", is_reported).await;
    assert_eq!(
        waiting(&web)["message"],
        "services have not yet been read at least once, cannot construct envvars"
    );
    // The static pod runs, and nothing else.
    joined.wait_for_running(1).await;
    joined.server.forbid(None);
    joined.wait_for_phase("web", "Succeeded").await;
    joined.end(agent).await;
}

#[tokio::test]
async fn pod_waits_for_an_object_and_sees_it_change() {
    let (joined, agent) = Joined::start().await;
    let script = "until test $(cat /v/color) = red; do sleep 0.1; done";
    joined.create_pod(&with_volume("waits", script, "configMap: {name: later}"));
    let reported = || {
        let events = cluster::Selection::of(Kind::of("v1", "Event"));
        let events = joined.server.store().list(&events).items;
        events.iter().map(|event| event.value["message"].clone()).collect()
    };
    let is_reported = |messages: &Value| messages.to_string().contains("later\\\" not found");
    wait("an event about the missing object", reported, is_reported).await;
    assert_eq!(joined.pod("waits")["status"]["phase"], "Pending");
    create(&joined, config_map("later", "blue"));
    joined.wait_for_phase("waits", "Running").await;
    let key = cluster::Key::new(Kind::of("v1", "ConfigMap"), "default", "later");
    let changed = joined.server.store().change(&key, Part::Main, |map| {
        map["data"]["color"] = json!("red");
        Ok(())
    });
    changed.unwrap();
    joined.wait_for_phase("waits", "Succeeded").await;
    joined.end(agent).await;
}

#[tokio::test]
async fn immutable_object_is_listed_once_and_not_watched() {
    let joined = Joined::new(ApiServer::start()).await;
    let mut settings = config_map("settings", "blue");
    settings["immutable"] = json!(true);
    create(&joined, settings);
    let agent = joined.agent(&[]);
    let source = "configMap: {name: settings}";
    joined.create_pod(&with_volume("stays", "sleep 3600", source));
    joined.wait_for_phase("stays", "Running").await;
    joined.create_pod(&with_volume("reads", "test $(cat /v/color) = blue", source));
    joined.wait_for_phase("reads", "Succeeded").await;
    assert_eq!(joined.server.count("GET /api/v1/namespaces/default/configmaps"), 1);
    joined.end(agent).await;
}

/// It is unknown whether the object exists, so even a pod with an optional reference waits.
#[tokio::test]
async fn forbidden_object_is_not_taken_for_a_missing_one() {
    let joined = Joined::new(ApiServer::start()).await;
    create(&joined, config_map("settings", "blue"));
    joined.server.forbid(Some("/api/v1/namespaces/default/configmaps"));
    let agent = joined.agent(&[]);
    let source = "configMap: {name: settings, optional: true}";
    joined.create_pod(&with_volume("careful", "test $(cat /v/color) = blue", source));
    let messages = || {
        let events = cluster::Selection::of(Kind::of("v1", "Event"));
        let events = joined.server.store().list(&events).items;
        events.iter().map(|event| event.value["message"].clone()).collect()
    };
    let is_reported = |messages: &Value| messages.to_string().contains("no relationship found");
    wait("an event about the refusal", messages, is_reported).await;
    joined.server.forbid(None);
    joined.wait_for_phase("careful", "Succeeded").await;
    joined.end(agent).await;
}

#[tokio::test]
async fn tokens_are_those_of_the_server() {
    let (joined, agent) = Joined::start().await;
    let source = "projected: {sources: [{serviceAccountToken: {path: token, audience: vault, expirationSeconds: 3600}}]}";
    let script =
        "cat /v/token; grep -q robot /v/token && grep -q caller /v/token && grep -q vault /v/token";
    let manifest = with_volume("caller", script, source)
        .replace("spec:\n", "spec:\n  serviceAccountName: robot\n");
    joined.create_pod(&manifest);
    joined.wait_for_phase("caller", "Succeeded").await;
    joined.end(agent).await;
}

/// A configuration with a credential provider in `bin`, which writes its request to a file and returns the registry's login.
fn credential_provider(joined: &Joined, host: &str) -> String {
    let place = &joined.place;
    let response = json!({
        "kind": "CredentialProviderResponse",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "cacheKeyType": "Registry",
        "auth": {host: {"username": "me", "password": "se:cret"}},
    });
    let response = place.file("response", &response.to_string());
    let request = place.path("request");
    let script = format!("cat >{}\ncat {response}\n", request.display());
    let script = place.file("script", &script);
    // A program that was just written cannot be executed while another test forks (ETXTBSY), so the program is the shell.
    std::fs::create_dir(place.path("bin")).unwrap();
    std::os::unix::fs::symlink("/bin/sh", place.path("bin/provider")).unwrap();
    let attributes = json!({
        "serviceAccountTokenAudience": "registry",
        "cacheType": "ServiceAccount",
        "requireServiceAccount": true,
        "requiredServiceAccountAnnotationKeys": ["role"],
    });
    let config = json!({
        "kind": "CredentialProviderConfig",
        "apiVersion": "kubelet.config.k8s.io/v1",
        "providers": [{
            "name": "provider",
            "matchImages": [host],
            "defaultCacheDuration": "1h",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "args": [script],
            "tokenAttributes": attributes,
        }],
    });
    place.file("providers.json", &config.to_string())
}

#[tokio::test]
async fn credential_provider_gets_a_token_of_the_pods_service_account() {
    let login = Auth::Basic { user: "me".to_owned(), password: "se:cret".to_owned() };
    let registry = Registry::with().auth(login).start().await.unwrap();
    let layer = Layer::new().file("etc/motd", 0o644, "hello\n");
    registry.add(&ImageBuilder::new("app:1").layer(layer)).unwrap();
    let host = registry.host().to_string();
    let joined = Joined::new(ApiServer::start()).await;
    let metadata =
        json!({"name": "robot", "namespace": "default", "annotations": {"role": "puller"}});
    create(&joined, object("ServiceAccount", "robot", json!({"metadata": metadata})));
    let config = credential_provider(&joined, &host);
    let bin = joined.place.path("bin").to_str().unwrap().to_owned();
    let flags = ["--image-credential-provider-config", &config];
    let programs = ["--image-credential-provider-bin-dir", &bin];
    let agent = joined.agent(&[flags, programs].concat());
    joined.create_pod(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: guest}}\nspec:\n  serviceAccountName: robot\n  \
         containers: [{{name: app, image: '{host}/app:1', imagePullPolicy: IfNotPresent, command: [/bin/none]}}]\n"
    ));
    // The credential record of the image names the service account, not the node.
    let records = || {
        let files = std::fs::read_dir(joined.place.path("root/image_manager/pulled"));
        let files = files.into_iter().flatten().flatten();
        let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
        texts.collect::<String>().into()
    };
    let account = joined.object(Kind::of("v1", "ServiceAccount"), "default", "robot");
    let uid = account["metadata"]["uid"].as_str().unwrap();
    let recorded = format!(
        r#""{host}/app":{{"kubernetesServiceAccounts":[{{"uid":"{uid}","namespace":"default","name":"robot"}}]}}"#
    );
    let is_recorded = |records: &Value| records.as_str().unwrap().contains(&recorded);
    wait("the record of the pull", records, is_recorded).await;
    let request = std::fs::read_to_string(joined.place.path("request")).unwrap();
    let request: Value = serde_json::from_str(&request).unwrap();
    let expected = json!({
        "kind": "CredentialProviderRequest",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "image": format!("{host}/app"),
        "serviceAccountToken": "robot \"guest\" [\"registry\"]",
        "serviceAccountAnnotations": {"role": "puller"},
    });
    assert_eq!(request, expected);
    joined.end(agent).await;
    registry.stop().await;
}

#[tokio::test]
async fn events_of_pods_and_of_the_node_are_written() {
    let joined = Joined::new(ApiServer::start()).await;
    let root = fixture::unique("crib-test");
    let cgroup = format!("--cgroup-root=/{root}");
    let agent = joined.agent(&["--cgroups-per-qos", &cgroup]);
    // If the agent may create cgroups.
    let needs = [Need::Root, Need::Cgroups];
    let enforced = needs.iter().all(|need| need.missing().is_none());
    let enforced = enforced.then_some("NodeAllocatableEnforced");
    let uid = joined.create_pod(&pod("web", "sleep 3600"));
    let is_ready = |pod: &Value| condition(pod, "Ready")["status"] == "True";
    joined.wait_for_pod("web", "ready", is_ready).await;
    let events = || {
        let events = cluster::Selection::of(Kind::of("v1", "Event"));
        let events = joined.server.store().list(&events).items;
        events.iter().map(|event| event.value.clone()).collect()
    };
    let reasons = |events: &Value| -> Vec<String> {
        let events = events.as_array().unwrap().iter();
        events.map(|event| event["reason"].as_str().unwrap().to_owned()).collect()
    };
    let has_all = |events: &Value| {
        let reasons = reasons(events);
        ["Starting", "Created", "Started"]
            .iter()
            .chain(&enforced)
            .all(|wanted| reasons.iter().any(|it| it == wanted))
    };
    let events = wait("the events", events, has_all).await;
    let events = events.as_array().unwrap();
    let started = events.iter().find(|event| event["reason"] == "Started").unwrap();
    assert_eq!(started["involvedObject"]["uid"], uid.as_str());
    assert_eq!(started["involvedObject"]["fieldPath"], "spec.containers{app}");
    let starting = events.iter().find(|event| event["reason"] == "Starting").unwrap();
    assert_eq!(starting["involvedObject"]["kind"], "Node");
    joined.end(agent).await;
    if enforced.is_some() {
        remove_classes(&root).await;
    }
}
