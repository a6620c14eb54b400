//! `crib registry` as other tools use it: skopeo pushes and pulls, over plain HTTP and over TLS with a token.

use std::process::Stdio;

use harness::fixture_image::{ImageBuilder, Layer};
use tokio::process::Command;

use super::command::{PATIENCE, Place, Running};

/// A registry that is running, and where.
async fn registry(place: &Place, args: &[&str]) -> (Running, String) {
    let mut all = vec!["registry"];
    all.extend(args);
    let mut running = place.start(&all);
    let line = running.line_with("listening on ").await;
    let url = line.strip_prefix("listening on ").unwrap();
    let host = url.split_once("://").unwrap().1.to_owned();
    (running, host)
}

/// An archive with one small image.
fn archive(place: &Place, name: &str) -> String {
    let path = place.path("image.tar");
    let layer = Layer::new().file("etc/motd", 0o644, "hello\n");
    let image = ImageBuilder::new(name).layer(layer).user("7");
    image.write_oci(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs skopeo; `None` where it is not installed.
async fn skopeo(args: &[&str]) -> Option<(bool, String)> {
    let mut command = Command::new("skopeo");
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    match output.expect("skopeo did not end") {
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            Some((
                output.status.success(),
                String::from_utf8_lossy(&said).into_owned(),
            ))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("cannot run skopeo: {error}"),
    }
}

/// Runs skopeo, which has to succeed; ends the test where it is not installed.
macro_rules! skopeo {
    ($name:literal, $($arg:expr),+ $(,)?) => {
        match skopeo(&[$(&$arg),+]).await {
            Some((true, said)) => said,
            Some((false, said)) => panic!("skopeo {:?}: {said}", [$(&$arg as &str),+]),
            None => harness::skip!($name, "there is no skopeo: apt-get install skopeo"),
        }
    };
}

#[tokio::test]
async fn skopeo_pushes_and_pulls() {
    let place = Place::new();
    let root = place.path("root");
    let root = root.to_str().unwrap();
    let archive = archive(&place, "quay.io/team/it:1");
    let (running, host) = registry(&place, &["--root", root, "--load", &archive]).await;
    let at = |name: &str| format!("docker://{host}/{name}");
    let copied = format!("dir:{}", place.path("copied").display());
    skopeo!(
        "skopeo_pushes_and_pulls",
        "copy",
        "--src-tls-verify=false",
        at("quay.io/team/it:1"),
        copied
    );
    for format in ["oci", "v2s2"] {
        let (name, format) = (format!("a/{format}:2"), format!("--format={format}"));
        skopeo!(
            "skopeo_pushes_and_pulls",
            "copy",
            "--dest-tls-verify=false",
            format,
            copied,
            at(&name)
        );
        let inspected = skopeo!(
            "skopeo_pushes_and_pulls",
            "inspect",
            "--tls-verify=false",
            "--config",
            at(&name)
        );
        let config: serde_json::Value = serde_json::from_str(&inspected).unwrap();
        assert_eq!(config["config"]["User"], "7");
    }
    running.stop().await;

    // What was pushed is there for the next one, which is told of nothing else.
    let (running, host) = registry(&place, &["--root", root]).await;
    let tags = skopeo!(
        "skopeo_pushes_and_pulls",
        "list-tags",
        "--tls-verify=false",
        format!("docker://{host}/a/v2s2")
    );
    assert!(tags.contains("\"2\""), "{tags}");
    running.stop().await;
    place.assert_clean();
}

#[tokio::test]
async fn printed_configuration_lets_library_of_crio_pull() {
    let place = Place::new();
    let archive = archive(&place, "quay.io/team/it:1");
    let (running, host) = registry(&place, &["--load", &archive]).await;
    let port = host.rsplit_once(':').unwrap().1;
    let args = ["check", "--print-config", "crio", "--registry-port", port];
    let printed = place.crib(&args).await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let image = format!("docker://{host}/quay.io/team/it:1");
    for (name, text, works) in [("empty", "", false), ("printed", &*printed.out, true)] {
        let file = place.file(name, text);
        let option = format!("--registries-conf={file}");
        let Some((pulled, said)) = skopeo(&[&option, "inspect", &image]).await else {
            harness::skip!(
                "printed_configuration_lets_library_of_crio_pull",
                "there is no skopeo: apt-get install skopeo"
            );
        };
        assert_eq!(pulled, works, "{name}: {said}");
    }
    running.stop().await;
}

#[tokio::test]
async fn skopeo_authenticates_with_token_over_tls() {
    let place = Place::new();
    let archive = archive(&place, "unnamed") + "=team/it:1";
    let certificates = place.path("certificates");
    std::fs::create_dir(&certificates).unwrap();
    let ca = certificates.join("ca.crt");
    let ready = place.path("ready");
    let (running, host) = registry(
        &place,
        &[
            "--load",
            &archive,
            "--tls",
            "--ca-file",
            ca.to_str().unwrap(),
            "--auth",
            "bearer:me:secret",
            "--ready-file",
            ready.to_str().unwrap(),
        ],
    )
    .await;
    assert_eq!(std::fs::read_to_string(&ready).unwrap().trim(), host);
    let certificates = certificates.to_str().unwrap();
    let image = format!("docker://{host}/team/it:1");
    skopeo!(
        "skopeo_authenticates_with_token_over_tls",
        "inspect",
        "--cert-dir",
        certificates,
        "--creds=me:secret",
        image
    );
    for wrong in ["--creds=me:wrong", "--no-creds"] {
        let (good, said) = skopeo(&["inspect", "--cert-dir", certificates, wrong, &image])
            .await
            .unwrap();
        assert!(!good && said.contains("unauthorized"), "{wrong}: {said}");
    }
    running.stop().await;
    place.assert_clean();
}

#[tokio::test]
async fn registry_reports_unusable_input() {
    let place = Place::new();
    let text = place.file("text", &"no archive\n".repeat(100));
    let missing = place.path("missing");
    let empty = place.path("empty");
    std::fs::create_dir(&empty).unwrap();
    let archive = archive(&place, "it:1") + "=UPPER:1";
    for (args, code, sentence) in [
        (["--load", &text], 2, "is not a complete tar archive"),
        (["--load", missing.to_str().unwrap()], 2, "No such file"),
        (["--load", empty.to_str().unwrap()], 2, "contains no image"),
        (["--load", &archive], 2, "is not a valid image name"),
        (
            ["--listen", "192.0.2.1:1"],
            3,
            "failed to listen on 192.0.2.1:1",
        ),
        (["--auth", "password"], 2, "write basic:USER:PASSWORD"),
    ] {
        let ended = place.crib(&["registry", args[0], args[1]]).await;
        assert_eq!(ended.code, Some(code), "{args:?}: {ended:?}");
        assert!(ended.err.contains(sentence), "{args:?}: {}", ended.err);
        assert_eq!(ended.out, "", "{args:?}");
    }
    place.assert_clean();
}

#[tokio::test]
async fn registry_listens_on_host_names_and_on_all_addresses() {
    for (listen, url) in [
        ("localhost:0", "http://127.0.0.1:"),
        (":0", "http://0.0.0.0:"),
    ] {
        let place = Place::new();
        let mut registry = place.start(&["registry", "--listen", listen]);
        let line = registry.line_with("listening on ").await;
        assert!(line.contains(url), "{listen}: {line}");
        registry.stop().await;
    }
}
