//! `crib registry` with other tools: skopeo pushes and pulls, over plain HTTP and over TLS with a token.

use std::process::Stdio;

use harness::fixture_image::{ImageBuilder, Layer};
use tokio::process::Command;

use crate::command::*;

/// A running registry, and its address.
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

/// Runs skopeo, and returns whether it succeeded and its output.
async fn skopeo(args: &[&str]) -> (bool, String) {
    let mut command = Command::new("skopeo");
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(WAIT_LIMIT, command.output()).await;
    let output = output.expect("skopeo did not end").unwrap();
    let message = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&message).into_owned())
}

/// Runs skopeo, which must succeed.
macro_rules! skopeo {
    ($($arg:expr),+ $(,)?) => {{
        let (good, message) = skopeo(&[$(&$arg),+]).await;
        assert!(good, "skopeo {:?}: {message}", [$(&$arg as &str),+]);
        message
    }};
}

#[tokio::test]
async fn skopeo_pushes_and_pulls() {
    harness::needs!(Skopeo);
    let place = Place::new();
    let root = place.path("root");
    let root = root.to_str().unwrap();
    let archive = archive(&place, "quay.io/team/it:1");
    let (running, host) = registry(&place, &["--root", root, "--load", &archive]).await;
    let at = |name: &str| format!("docker://{host}/{name}");
    let copied = format!("dir:{}", place.path("copied").display());
    skopeo!("copy", "--src-tls-verify=false", at("quay.io/team/it:1"), copied);
    for format in ["oci", "v2s2"] {
        let (name, format) = (format!("a/{format}:2"), format!("--format={format}"));
        skopeo!("copy", "--dest-tls-verify=false", format, copied, at(&name));
        let inspected = skopeo!("inspect", "--tls-verify=false", "--config", at(&name));
        let config: Value = serde_json::from_str(&inspected).unwrap();
        assert_eq!(config["config"]["User"], "7");
    }
    running.stop().await;

    // The next registry serves the pushed images from the directory alone.
    let (running, host) = registry(&place, &["--root", root]).await;
    let tags = skopeo!("list-tags", "--tls-verify=false", format!("docker://{host}/a/v2s2"));
    assert!(tags.contains("\"2\""), "{tags}");
    running.stop().await;
}

#[tokio::test]
async fn printed_configuration_lets_library_of_crio_pull() {
    harness::needs!(Skopeo);
    let place = Place::unchecked();
    let archive = archive(&place, "quay.io/team/it:1");
    let (running, host) = registry(&place, &["--load", &archive]).await;
    let port = host.rsplit_once(':').unwrap().1;
    let args = ["check", "--print-config", "crio", "--registry-port", port];
    let printed = place.crib(&args).await.exits(0);
    let image = format!("docker://{host}/quay.io/team/it:1");
    for (name, text, works) in [("empty", "", false), ("printed", &*printed.out, true)] {
        let file = place.file(name, text);
        let option = format!("--registries-conf={file}");
        let (pulled, message) = skopeo(&[&option, "inspect", &image]).await;
        assert_eq!(pulled, works, "{name}: {message}");
    }
    running.stop().await;
}

#[tokio::test]
async fn skopeo_authenticates_with_token_over_tls() {
    harness::needs!(Skopeo);
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
    skopeo!("inspect", "--cert-dir", certificates, "--creds=me:secret", image);
    for wrong in ["--creds=me:wrong", "--no-creds"] {
        let (good, message) = skopeo(&["inspect", "--cert-dir", certificates, wrong, &image]).await;
        assert!(!good && message.contains("unauthorized"), "{wrong}: {message}");
    }
    running.stop().await;
}

#[tokio::test]
async fn ready_file_that_is_a_fifo_is_written_to_and_kept() {
    let place = Place::new();
    let ready = place.path("ready");
    nix::unistd::mkfifo(&ready, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut reader = tokio::net::unix::pipe::OpenOptions::new().open_receiver(&ready).unwrap();
    let (running, host) = registry(&place, &["--ready-file", ready.to_str().unwrap()]).await;
    let mut line = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut reader, &mut line).await.unwrap();
    assert_eq!(line, format!("{host}\n"));
    let kind = std::fs::symlink_metadata(&ready).unwrap().file_type();
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind), "{kind:?}");
    running.stop().await;
}

/// A layout whose image is in `levels` indexes, each of which refers to the next one 40 times.
async fn nested(place: &Place, levels: usize) -> String {
    let layout = place.path(&format!("nested-{levels}"));
    ImageBuilder::new("it:1").write_oci_layout(&layout).unwrap();
    let index = layout.join("index.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
    let media_type = "application/vnd.oci.image.index.v1+json";
    for _ in 0..levels {
        let entries = vec![document["manifests"][0].clone(); 40];
        let text =
            json!({"schemaVersion": 2, "mediaType": media_type, "manifests": entries}).to_string();
        let file = place.file("blob", &text);
        let sum = Command::new("sha256sum").arg(&file).output().await.unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap();
        let digest = sum.split(' ').next().unwrap();
        std::fs::rename(file, layout.join("blobs/sha256").join(digest)).unwrap();
        document["manifests"][0] = json!({
            "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": text.len()
        });
    }
    std::fs::write(index, document.to_string()).unwrap();
    layout.to_str().unwrap().to_owned()
}

/// Forty to the power of eight paths lead to the one image.
#[tokio::test]
async fn nested_indexes_do_not_delay_other_pulls() {
    let place = Place::new();
    let layout = nested(&place, 8).await;
    let (registry, host) = registry(&place, &["--load", &format!("{layout}=it:1")]).await;
    let mirror = format!("docker.io=http://{host}");
    let (runtime, endpoint) = place.runtime_with(&["--registry-mirror", &mirror]).await;
    let refused = "has more than the 4 nested indexes allowed";
    place.crib(&["-r", &endpoint, "pull", "it:1"]).await.exits(1).err_has(refused);
    let load = ["-r", &endpoint, "load", &format!("{layout}=it:1")];
    place.crib(&load).await.exits(1).err_has(refused);
    let deep = nested(&place, 9).await;
    let load = ["-r", &endpoint, "load", &format!("{deep}=it:1")];
    place.crib(&load).await.exits(2).err_has("more than 8 indexes are nested");
    // The registry serves other clients in the meantime.
    assert_eq!(place.crib(&["-r", &endpoint, "images", "-q"]).await.exits(0).out, "");
    runtime.stop().await;
    registry.stop().await;
}

#[tokio::test]
async fn registry_reports_unusable_input() {
    let place = Place::new();
    let text = place.file("text", &"no archive\n".repeat(100));
    let missing = place.path("missing");
    let empty = place.path("empty");
    std::fs::create_dir(&empty).unwrap();
    let archive = archive(&place, "it:1") + "=UPPER:1";
    let twice = place.path("twice.tar");
    let mut members = tar::Builder::new(std::fs::File::create(&twice).unwrap());
    for _ in 0..2 {
        let mut header = tar::Header::new_gnu();
        header.set_size(2);
        members.append_data(&mut header, "manifest.json", &b"[]"[..]).unwrap();
    }
    members.finish().unwrap();
    let fifo = place.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (args, code, sentence) in [
        (["--load", twice.to_str().unwrap()], 2, "is broken: \"manifest.json\" appears twice"),
        (["--load", &text], 2, "is not a complete tar archive"),
        (["--load", fifo.to_str().unwrap()], 2, "it is neither a file nor a directory"),
        (["--load", "/dev/zero"], 2, "it is neither a file nor a directory"),
        (["--load", missing.to_str().unwrap()], 2, "No such file"),
        (["--load", empty.to_str().unwrap()], 2, "contains no image"),
        (["--load", &archive], 2, "is not a valid image name"),
        (["--listen", "192.0.2.1:1"], 3, "failed to listen on 192.0.2.1:1"),
        (["--auth", "password"], 2, "expected basic:USER:PASSWORD"),
    ] {
        let ended = place.crib(&["registry", args[0], args[1]]).await;
        assert_eq!(ended.code, Some(code), "{args:?}: {ended:?}");
        assert!(ended.err.contains(sentence), "{args:?}: {}", ended.err);
        assert_eq!(ended.out, "", "{args:?}");
    }
}

/// The names of the temporary directories of registries.
fn registries(place: &Place) -> Vec<String> {
    let all = std::fs::read_dir(place.path("tmp")).unwrap();
    let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("crib-registry-")).collect()
}

/// The archive has a member of 1 TiB, which is a hole in its file.
#[tokio::test]
async fn signal_during_load_removes_temporary_directory() {
    let place = Place::new();
    let archive = place.path("long.tar");
    let mut header = tar::Header::new_gnu();
    header.set_path("whatever").unwrap();
    header.set_size(1 << 40);
    header.set_cksum();
    std::fs::write(&archive, header.as_bytes()).unwrap();
    std::fs::File::options().write(true).open(&archive).unwrap().set_len((1 << 40) + 512).unwrap();
    let archive = archive.to_str().unwrap();
    let (runtime, endpoint) = place.runtime().await;
    for (args, code) in [
        (vec!["registry", "--load", archive], 0),
        (vec!["-r", endpoint.as_str(), "load", archive], 130),
    ] {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let running = place.start(&args);
            let missing = || match registries(&place).is_empty() {
                true => vec!["the directory of its registry".to_owned()],
                false => Vec::new(),
            };
            eventually("it loads", missing).await;
            running.signal(signal);
            running.end().await.exits(code);
            assert_eq!(registries(&place), Vec::<String>::new(), "{args:?}");
        }
    }
    runtime.stop().await;
}

#[tokio::test]
async fn next_registry_removes_directory_of_killed_one() {
    let place = Place::new();
    let archive = archive(&place, "it:1");
    let (runtime, endpoint) = place.runtime().await;
    let (living, _) = registry(&place, &["--load", &archive]).await;
    let in_use = registries(&place);
    assert_eq!(in_use.len(), 1);
    for loads in [false, true] {
        let (killed, _) = registry(&place, &["--load", &archive]).await;
        killed.signal(Signal::SIGKILL);
        killed.end().await;
        assert_eq!(registries(&place).len(), 2);
        if loads {
            place.crib(&["-r", &endpoint, "load", &archive]).await.exits(0);
        } else {
            let (next, _) = registry(&place, &[]).await;
            next.stop().await;
        }
        assert_eq!(registries(&place), in_use, "loads: {loads}");
    }
    let images = place.path("tmp").join(&in_use[0]).join("images/index.json");
    assert!(images.exists(), "{}", images.display());
    living.stop().await;
    assert_eq!(registries(&place), Vec::<String>::new());
    runtime.stop().await;
}

#[tokio::test]
async fn registry_listens_on_host_names_and_on_all_addresses() {
    for (listen, url) in [("localhost:0", "http://127.0.0.1:"), (":0", "http://0.0.0.0:")] {
        let place = Place::unchecked();
        let mut registry = place.start(&["registry", "--listen", listen]);
        let line = registry.line_with("listening on ").await;
        assert!(line.contains(url), "{listen}: {line}");
        registry.stop().await;
    }
}
