//! `crib agent` and `crib run` pull from a registry that requires a password; the agent does not let other tenants use the pulled
//! image.

use harness::fixture_image::{ImageBuilder, Layer};
use registry::{Auth, Registry};

use crate::command::*;

/// A pod of the registry's image.
fn pod(name: &str, image: &str, secrets: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  imagePullSecrets: [{secrets}]\n  \
         containers: [{{name: main, image: '{image}', imagePullPolicy: IfNotPresent, command: [/bin/none]}}]\n"
    )
}

/// A registry with the image app:1, only for the user `me`, and a docker configuration with the login.
async fn private_registry() -> (Registry, String) {
    let registry = Registry::with()
        .auth(Auth::Basic { user: "me".to_owned(), password: "se:cret".to_owned() })
        .start()
        .await
        .unwrap();
    let layer = Layer::new().file("etc/motd", 0o644, "hello\n");
    registry.add(&ImageBuilder::new("app:1").layer(layer)).unwrap();
    let config = format!(
        "{{\"auths\": {{\"{}\": {{\"username\": \"me\", \"password\": \"se:cret\"}}}}}}",
        registry.host()
    );
    (registry, config)
}

#[tokio::test]
async fn run_pulls_with_dockers_configuration() {
    let (registry, config) = private_registry().await;
    let image = format!("{}/app:1", registry.host());
    let place = Place::unchecked();
    let manifest = pod("one", &image, "").replace("spec:\n", "spec:\n  restartPolicy: Never\n");
    let manifest = place.file("one.yaml", &manifest);
    let logins = place.file("logins.json", &config);
    let pulled = place.crib(&["run", "--pull-secrets", &logins, &manifest]).await;
    // The image has no program, so the container fails to start.
    pulled.err_has("StartError");
    assert!(!pulled.err.contains("ErrImagePull"), "{pulled:?}");

    let mut without = place.start(&["run", &manifest]);
    without.err_line_with("ErrImagePull").await;
    without.interrupt().await.exits(130);
    let missing = place.crib(&["run", "--pull-secrets", "/nowhere", &manifest]).await.exits(2);
    missing.err_begins("crib: failed to read --pull-secrets /nowhere: ");
    place.assert_clean();
    registry.stop().await;
}

#[tokio::test]
async fn agent_pulls_with_pull_secrets_and_records_them() {
    let (registry, config) = private_registry().await;
    let image = format!("{}/app:1", registry.host());

    let place = Place::unchecked();
    let secrets = place.file(
        "secrets.yaml",
        &format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: login}}\ntype: kubernetes.io/dockerconfigjson\n\
             stringData: {{.dockerconfigjson: '{config}'}}\n"
        ),
    );
    place.file("manifests/one.yaml", &pod("one", &image, "{name: login}"));
    let (runtime, endpoint) = place.runtime().await;
    let more = ["--pull-secrets", &secrets, "--log-level", "debug"];
    let agent = Running::start(place.agent(&endpoint, "manifests", &more));
    let records = || {
        let files = std::fs::read_dir(place.path("agent/image_manager/pulled"));
        let files = files.into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect::<String>()
    };
    eventually("the record of the pull", || {
        let found = records();
        if found.contains("\"name\":\"login\"") && !found.contains("se:cret") {
            vec![]
        } else {
            vec![found]
        }
    })
    .await;

    // The image is present now, but another pod has no secret for it.
    let pulls = || registry.requests().len();
    let before = pulls();
    place.file("manifests/two.yaml", &pod("two", &image, ""));
    eventually("a pull without the secret", || {
        if pulls() > before { vec![] } else { vec![format!("{before} requests")] }
    })
    .await;
    agent.signal(Signal::SIGTERM);
    let ended = agent.end().await.exits(0);
    assert!(!ended.err.contains("se:cret"), "a password in the log");
    runtime.stop().await;
    registry.stop().await;
}
