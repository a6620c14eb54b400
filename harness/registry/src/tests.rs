//! Tests of the registry with raw requests over a connection, so that no client library hides the bytes.
use harness::fixture_image::Layer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

/// A response as received.
struct TestResponse {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl TestResponse {
    fn header(&self, name: &str) -> &str {
        let start = format!("{name}: ");
        let line = self.head.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_default()
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn code(&self) -> String {
        self.json()["errors"][0]["code"].as_str().unwrap().to_owned()
    }
}

/// Sends one request; `headers` end with `\r\n` each.
async fn send(registry: &Registry, line: &str, headers: &str, body: &[u8]) -> TestResponse {
    let mut stream = TcpStream::connect(registry.address()).await.unwrap();
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let mut all = Vec::new();
    // If the connection is cut, the bytes received before are kept.
    let _ = stream.read_to_end(&mut all).await;
    let end = all.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.map_or(all.len(), |end| end + 4);
    let head = String::from_utf8(all[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).map_or(0, |code| code.parse().unwrap());
    let body = all[end..].to_vec();
    TestResponse { status, head, body }
}

async fn get(registry: &Registry, path: &str) -> TestResponse {
    send(registry, &format!("GET {path}"), "", b"").await
}

fn image(name: &str) -> ImageBuilder {
    ImageBuilder::new(name).layer(Layer::new().file("etc/motd", 0o644, "hello\n"))
}

#[tokio::test]
async fn image_is_found_by_tag_digest_and_namespace() {
    let registry = Registry::start().await.unwrap();
    assert_eq!(get(&registry, "/v2/").await.status, 200);
    let one = registry.add(&image("gcr.io/team/it:1")).unwrap();
    let other = registry.add(&image("quay.io/team/it:1").user("7")).unwrap();
    for (path, found) in [
        ("/v2/gcr.io/team/it/manifests/1".to_owned(), Some(&one)),
        ("/v2/team/it/manifests/1?ns=gcr.io".to_owned(), Some(&one)),
        ("/v2/team/it/manifests/1?ns=quay.io".to_owned(), Some(&other)),
        (format!("/v2/team/it/manifests/{other}"), Some(&other)),
        ("/v2/team/it/manifests/1".to_owned(), None),
        ("/v2/team/it/manifests/1?ns=ghcr.io".to_owned(), None),
    ] {
        let response = get(&registry, &path).await;
        assert_eq!(response.status, if found.is_some() { 200 } else { 404 }, "{path}");
        if let Some(digest) = found {
            assert_eq!(response.header("docker-content-digest"), digest.as_str());
            assert_eq!(response.header("content-type"), document::OCI_MANIFEST);
            let head = send(&registry, &format!("HEAD {path}"), "", b"").await;
            assert_eq!((head.status, head.body.len()), (200, 0));
            assert_eq!(head.header("content-length"), response.body.len().to_string());
        }
    }
    let list = get(&registry, "/v2/team/it/tags/list?ns=gcr.io").await.json();
    assert_eq!(list["tags"], serde_json::json!(["1"]));
    let docker = "accept: application/vnd.docker.distribution.manifest.v2+json\r\n";
    let response = send(&registry, "GET /v2/gcr.io/team/it/manifests/1", docker, b"").await;
    assert_eq!((response.status, response.code().as_str()), (404, "MANIFEST_UNKNOWN"));
    assert_eq!(registry.requests().last().unwrap().status, 404);
}

#[tokio::test]
async fn tag_listing_is_paginated() {
    let registry = Registry::start().await.unwrap();
    for tag in ["a", "b", "c"] {
        registry.add(&image(&format!("example.com/it:{tag}"))).unwrap();
    }
    let (mut path, mut all) = ("/v2/it/tags/list?n=2".to_owned(), Vec::new());
    loop {
        let response = get(&registry, &path).await;
        all.push(response.json()["tags"].clone());
        let link = response.header("link").to_owned();
        let Some(next) = link.strip_prefix('<').and_then(|link| link.split_once('>')) else {
            break;
        };
        next.0.clone_into(&mut path);
    }
    assert_eq!(serde_json::json!(all), serde_json::json!([["a", "b"], ["c"]]));
}

#[tokio::test]
async fn blob_supports_range_requests() {
    let registry = Registry::start().await.unwrap();
    let digest = registry.add_blob(b"0123456789").unwrap();
    let path = format!("GET /v2/any/blobs/{digest}");
    for (range, status, body, shown) in [
        ("", 200, "0123456789", ""),
        ("range: bytes=7-\r\n", 206, "789", "bytes 7-9/10"),
        ("range: bytes=0-1\r\n", 206, "01", "bytes 0-1/10"),
    ] {
        let response = send(&registry, &path, range, b"").await;
        assert_eq!((response.status, &response.body[..]), (status, body.as_bytes()));
        assert_eq!(response.header("content-range"), shown);
    }
    let response = send(&registry, &path, "range: bytes=10-\r\n", b"").await;
    assert_eq!((response.status, response.header("content-range")), (416, "bytes */10"));
    let gone = get(&registry, &format!("/v2/any/blobs/sha256:{}", "0".repeat(64))).await;
    assert_eq!((gone.status, gone.code().as_str()), (404, "BLOB_UNKNOWN"));
}

#[tokio::test]
async fn blob_upload_supports_chunks_single_request_and_mount() {
    let registry = Registry::start().await.unwrap();
    let whole = store::digest_of(b"0123456789");
    let begun = send(&registry, "POST /v2/a/b/blobs/uploads/", "", b"").await;
    assert_eq!(begun.status, 202);
    let place = begun.header("location").to_owned();
    let patch = format!("PATCH {place}");
    let sent = send(&registry, &patch, "content-range: 0-3\r\n", b"0123").await;
    assert_eq!((sent.status, sent.header("range")), (202, "0-3"));
    let wrong = send(&registry, &patch, "content-range: 6-7\r\n", b"67").await;
    assert_eq!((wrong.status, wrong.header("range")), (416, "0-3"));
    let status = get(&registry, &place).await;
    assert_eq!((status.status, status.header("range")), (204, "0-3"));
    let put = format!("PUT {place}?digest={whole}");
    let done = send(&registry, &put, "", b"456789").await;
    assert_eq!(done.status, 201, "{}", String::from_utf8_lossy(&done.body));
    let there = get(&registry, done.header("location")).await;
    assert_eq!(there.body, b"0123456789");
    assert_eq!(get(&registry, &place).await.code(), "BLOB_UPLOAD_UNKNOWN");

    let mount = format!("POST /v2/c/blobs/uploads/?mount={whole}&from=a/b");
    assert_eq!(send(&registry, &mount, "", b"").await.status, 201);
    let once = store::digest_of(b"once");
    let post = format!("POST /v2/c/blobs/uploads/?digest={once}");
    assert_eq!(send(&registry, &post, "", b"once").await.status, 201);
    let lie = send(&registry, &post, "", b"other").await;
    assert_eq!((lie.status, lie.code().as_str()), (400, "DIGEST_INVALID"));
    let long = "sha512:".to_owned() + &"0".repeat(128);
    let post = format!("POST /v2/c/blobs/uploads/?digest={long}");
    assert_eq!(send(&registry, &post, "", b"x").await.code(), "DIGEST_INVALID");

    let begun = send(&registry, "POST /v2/a/blobs/uploads/", "", b"").await;
    let place = begun.header("location").to_owned();
    let ended = send(&registry, &format!("DELETE {place}"), "", b"").await;
    assert_eq!((ended.status, get(&registry, &place).await.status), (204, 404));
    let uploads = registry.server.store.root().join("uploads");
    assert_eq!(std::fs::read_dir(uploads).unwrap().count(), 0);
}

#[tokio::test]
async fn interrupted_upload_resumes_at_offset() {
    let registry = Registry::start().await.unwrap();
    let begun = send(&registry, "POST /v2/a/blobs/uploads/", "", b"").await;
    let place = begun.header("location").to_owned();
    let mut stream = TcpStream::connect(registry.address()).await.unwrap();
    let head = format!("PATCH {place} HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n01234");
    stream.write_all(head.as_bytes()).await.unwrap();
    drop(stream);
    harness::eventually(harness::WAIT_LIMIT, "the upload is free again", async || {
        let response = get(&registry, &place).await;
        match (response.status, response.header("range")) {
            (204, "0-4") => Ok(()),
            (status, range) => Err(format!("{status} {range}")),
        }
    })
    .await;
    let put = format!("PUT {place}?digest={}", store::digest_of(b"0123456789"));
    assert_eq!(send(&registry, &put, "", b"56789").await.status, 201);
}

#[tokio::test]
async fn manifest_upload_requires_blobs_and_matching_digest() {
    let registry = Registry::start().await.unwrap();
    let kind = format!("content-type: {}\r\n", document::OCI_MANIFEST);
    let put = async |path: &str, body: &str| {
        send(&registry, &format!("PUT /v2/a/manifests/{path}"), &kind, body.as_bytes()).await
    };
    let config = registry.add_blob(b"{}").unwrap();
    let manifest = |config: &Digest, subject: &str| {
        format!(
            r#"{{"config":{{"mediaType":"k","digest":"{config}","size":2}},"layers":[]{subject}}}"#
        )
    };
    let lost = store::digest_of(b"lost");
    assert_eq!(put("1", &manifest(&lost, "")).await.code(), "MANIFEST_BLOB_UNKNOWN");
    assert_eq!(put("1", "nonsense").await.code(), "MANIFEST_INVALID");
    let good = manifest(&config, "");
    let digest = store::digest_of(good.as_bytes());
    assert_eq!(put(lost.as_str(), &good).await.code(), "DIGEST_INVALID");
    let made = put("1", &good).await;
    assert_eq!((made.status, made.header("docker-content-digest")), (201, digest.as_str()));
    assert_eq!(put("1", &" ".repeat(5 << 20)).await.status, 413);

    let about = format!(r#","subject":{{"digest":"{digest}","mediaType":"m","size":1}}"#);
    let referrer = put("2", &manifest(&config, &about)).await;
    assert_eq!(referrer.header("oci-subject"), digest.as_str());
    let path = format!("/v2/a/referrers/{digest}");
    let all = get(&registry, &path).await.json();
    assert_eq!(all["manifests"][0]["artifactType"], "k");
    let none = get(&registry, &(path + "?artifactType=other")).await;
    assert_eq!(none.json()["manifests"], serde_json::json!([]));
    assert_eq!(none.header("oci-filters-applied"), "artifactType");

    let delete = format!("DELETE /v2/a/manifests/{digest}");
    assert_eq!(send(&registry, &delete, "", b"").await.status, 202);
    assert_eq!(send(&registry, &delete, "", b"").await.status, 404);
    assert_eq!(get(&registry, "/v2/a/manifests/1").await.code(), "MANIFEST_UNKNOWN");
}

#[tokio::test]
async fn faults_are_visible_to_clients() {
    let registry = Registry::start().await.unwrap();
    let digest = registry.add_blob(&[7; 1000]).unwrap();
    let path = format!("/v2/a/blobs/{digest}");
    registry.fail(Fault::status(429).retry_after(3).times(1));
    let response = get(&registry, &path).await;
    assert_eq!((response.status, response.header("retry-after")), (429, "3"));
    assert_eq!(response.code(), "TOOMANYREQUESTS");
    registry.fail(Fault::disconnect().times(1));
    assert_eq!(get(&registry, &path).await.status, 0);
    registry.fail(Fault::cut(400).times(1));
    let response = get(&registry, &path).await;
    assert_eq!((response.status, response.body.len()), (200, 400));
    assert_eq!(response.header("content-length"), "1000");
    registry.fail(Fault::corrupt().times(1));
    let response = get(&registry, &path).await;
    assert_eq!((response.body.len(), &response.body[..2]), (1000, &[6, 7][..]));
    registry.fail(Fault::shorten(10).times(1));
    let response = get(&registry, &path).await;
    assert_eq!((response.header("content-length"), response.body.len()), ("990", 990));
    registry.fail(Fault::redirect("http://127.0.0.1:1/x/").on("/blobs/").times(1));
    let response = get(&registry, &path).await;
    assert_eq!(response.status, 307);
    assert_eq!(response.header("location"), format!("http://127.0.0.1:1/x{path}"));
    registry.fail(Fault::slow(5000).times(1));
    assert_eq!(get(&registry, &path).await.body, [7; 1000]);
    registry.fail(Fault::stall(10));
    let stalled =
        tokio::time::timeout(std::time::Duration::from_millis(200), get(&registry, &path));
    assert!(stalled.await.is_err());
    registry.recover();
    assert_eq!(get(&registry, &path).await.body, [7; 1000]);
    let statuses: Vec<u16> = registry.requests().iter().map(|request| request.status).collect();
    assert_eq!(statuses, [429, 0, 200, 200, 200, 307, 200, 200, 200]);
}

#[tokio::test]
async fn registry_reloads_its_directory_after_restart() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::with().root(dir.path()).start().await.unwrap();
    let digest = registry.add(&image("example.com/it:1")).unwrap();
    registry.add_manifest("example.com/list:1", "application/vnd.x+json", b"{}").unwrap();
    registry.stop().await;
    let registry = Registry::with().root(dir.path()).start().await.unwrap();
    let response = get(&registry, "/v2/it/manifests/1").await;
    assert_eq!(response.header("docker-content-digest"), digest.as_str());
    let response = get(&registry, "/v2/example.com/list/manifests/1").await;
    assert_eq!(response.header("content-type"), "application/vnd.x+json");
}

#[tokio::test]
async fn archives_and_layouts_are_loaded_by_annotated_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::create_dir(path("all")).unwrap();
    image("busybox").write_docker(&path("all/docker.tar")).unwrap();
    image("gcr.io/a/oci:1").write_oci(&path("all/oci.tar")).unwrap();
    image("gcr.io/a/layout:1").write_oci_layout(&path("all/layout")).unwrap();
    image("it").write_oci_layout(&path("unnamed")).unwrap();
    let registry = Registry::start().await.unwrap();
    let names = registry.load(&path("all"), None).unwrap();
    let expected = ["docker.io/library/busybox:latest", "gcr.io/a/layout:1", "gcr.io/a/oci:1"];
    assert_eq!(names, expected);
    let response = get(&registry, "/v2/busybox/manifests/latest").await;
    assert_eq!(response.header("content-type"), document::DOCKER_MANIFEST);
    let layer = response.json()["layers"][0].clone();
    assert_eq!(layer["mediaType"], "application/vnd.docker.image.rootfs.diff.tar");
    let blob =
        get(&registry, &format!("/v2/busybox/blobs/{}", layer["digest"].as_str().unwrap())).await;
    assert_eq!(blob.body.len() as u64, layer["size"].as_u64().unwrap());

    let error = registry.load(&path("unnamed"), None).unwrap_err().to_string();
    assert!(error.contains("has no name: give it one"), "{error}");
    assert_eq!(registry.load(&path("unnamed"), Some("quay.io/b:2")).unwrap(), ["quay.io/b:2"]);
    assert_eq!(get(&registry, "/v2/b/manifests/2?ns=quay.io").await.status, 200);
    let error = registry.load(&path("unnamed"), Some("A:1")).unwrap_err().to_string();
    assert!(error.contains("is not a valid image name"), "{error}");

    let blobs = path("unnamed/blobs/sha256");
    for entry in std::fs::read_dir(&blobs).unwrap() {
        let file = entry.unwrap().path();
        if !std::fs::read(&file).unwrap().starts_with(b"{") {
            std::fs::write(file, "damaged").unwrap();
        }
    }
    let fresh = Registry::start().await.unwrap();
    let error = fresh.load(&path("unnamed"), Some("b:2")).unwrap_err().to_string();
    assert!(error.contains("has another digest"), "{error}");
    std::fs::write(path("text"), "no archive, but long enough to be read".repeat(99)).unwrap();
    let error = fresh.load(&path("text"), Some("b:2")).unwrap_err().to_string();
    assert!(error.contains("is not a complete tar archive"), "{error}");
    let error = fresh.load(&blobs, None).unwrap_err().to_string();
    assert!(error.contains("contains no image"), "{error}");
}

/// Wraps the image of a layout in `levels` indexes, each of which refers to the next one 40 times.
fn nest(layout: &std::path::Path, levels: usize) {
    let index = layout.join("index.json");
    let mut document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
    let media_type = "application/vnd.oci.image.index.v1+json";
    for _ in 0..levels {
        let entry = document["manifests"][0].clone();
        let nested = serde_json::json!({
            "schemaVersion": 2, "mediaType": media_type, "manifests": vec![entry; 40]
        });
        let bytes = serde_json::to_vec(&nested).unwrap();
        let digest = store::digest_of(&bytes);
        let (_, hex) = digest.as_str().split_once(':').unwrap();
        std::fs::write(layout.join("blobs/sha256").join(hex), &bytes).unwrap();
        document["manifests"][0] = serde_json::json!({
            "mediaType": media_type, "digest": digest.as_str(), "size": bytes.len()
        });
    }
    std::fs::write(index, serde_json::to_vec(&document).unwrap()).unwrap();
}

#[tokio::test]
async fn nested_indexes_are_loaded_once_and_to_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start().await.unwrap();
    for (levels, loaded) in [(8, true), (9, false)] {
        let layout = dir.path().join(levels.to_string());
        image("it").write_oci_layout(&layout).unwrap();
        nest(&layout, levels);
        match registry.load(&layout, Some("it:1")) {
            Ok(names) => assert!(loaded && names == ["docker.io/library/it:1"], "{names:?}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!loaded && error.contains("more than 8 indexes are nested"), "{error}");
            }
        }
    }
}

/// All documents are different, so remembering the stored ones does not bound the load.
#[tokio::test]
async fn wide_index_is_loaded_to_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start().await.unwrap();
    image("it").write_oci_layout(dir.path()).unwrap();
    let file = dir.path().join("index.json");
    let mut document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let put = |value: &serde_json::Value| {
        let bytes = serde_json::to_vec(value).unwrap();
        let digest = store::digest_of(&bytes);
        let (_, hex) = digest.as_str().split_once(':').unwrap();
        std::fs::write(dir.path().join("blobs/sha256").join(hex), &bytes).unwrap();
        let media_type = "application/vnd.oci.image.index.v1+json";
        serde_json::json!({"mediaType": media_type, "digest": digest.as_str(), "size": bytes.len()})
    };
    let all: Vec<serde_json::Value> = (0..1000)
        .map(|number| {
            put(&serde_json::json!({"schemaVersion": 2, "annotations": {"n": number.to_string()}}))
        })
        .collect();
    for (count, loaded) in [(999, true), (1000, false)] {
        document["manifests"][0] =
            put(&serde_json::json!({"schemaVersion": 2, "manifests": all[..count]}));
        std::fs::write(&file, serde_json::to_vec(&document).unwrap()).unwrap();
        match registry.load(dir.path(), Some("it:1")) {
            Ok(_) => assert!(loaded, "{count}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!loaded && error.contains("more than 1000 manifests"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn invalid_requests_return_specified_error_codes() {
    let registry = Registry::start().await.unwrap();
    for (line, status, code) in [
        ("GET /v1/search", 404, "UNSUPPORTED"),
        ("GET /v2/UPPER/tags/list", 400, "NAME_INVALID"),
        ("GET /v2/a/../../etc/manifests/x", 400, "NAME_INVALID"),
        ("GET /v2/a/manifests/sha256:1", 400, "TAG_INVALID"),
        ("GET /v2/a/blobs/sha256:../../index.json", 404, "UNSUPPORTED"),
        ("GET /v2/a/tags/list", 404, "NAME_UNKNOWN"),
        ("PUT /v2/_catalog", 405, "UNSUPPORTED"),
        ("PATCH /v2/a/blobs/uploads/../../x", 404, "UNSUPPORTED"),
        ("PATCH /v2/a/blobs/uploads/x", 404, "BLOB_UPLOAD_UNKNOWN"),
    ] {
        let response = send(&registry, line, "", b"").await;
        assert_eq!((response.status, response.code().as_str()), (status, code), "{line}");
    }
}

#[tokio::test]
async fn names_of_an_archive_are_loaded_to_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start().await.unwrap();
    image("it").write_oci_layout(dir.path()).unwrap();
    let image = |count: usize| {
        let tags: Vec<String> = (0..count).map(|number| format!("it:{number}")).collect();
        serde_json::json!({"Config": "config", "RepoTags": tags, "Layers": []})
    };
    let load = |manifest: &serde_json::Value, name: Option<&str>| {
        std::fs::write(dir.path().join("manifest.json"), manifest.to_string()).unwrap();
        registry.load(dir.path(), name).map_err(|error| error.to_string())
    };
    assert_eq!(load(&serde_json::json!([image(3)]), None).map(|names| names.len()), Ok(3));
    let error = load(&serde_json::json!([image(10_001)]), None).unwrap_err();
    assert!(error.ends_with("is broken: it has more than 10000 names"), "{error}");
    // One given name stands for all entries.
    assert_eq!(
        load(&serde_json::json!([image(10_001)]), Some("a:1")).map(|names| names.len()),
        Ok(1)
    );

    // A docker archive with several images.
    let (file, several) =
        (dir.path().join("a.tar"), serde_json::json!([image(5_000), image(5_001)]));
    let bytes = several.to_string().into_bytes();
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    let mut builder = tar::Builder::new(std::fs::File::create(&file).unwrap());
    builder.append_data(&mut header, "manifest.json", &bytes[..]).unwrap();
    builder.finish().unwrap();
    let error = registry.load(&file, None).unwrap_err().to_string();
    assert!(error.ends_with("is broken: it has more than 10000 names"), "{error}");
}

/// An archive with a member of this name and size, whose content is a hole in the file.
fn with_hole(path: &Path, name: &str, size: u64) {
    let mut header = tar::Header::new_gnu();
    header.set_path(name).unwrap();
    header.set_size(size);
    header.set_cksum();
    std::fs::write(path, header.as_bytes()).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_len(512 + size.next_multiple_of(512) + 1024).unwrap();
}

/// Compresses the file at `path`.
fn compressed(path: &Path) -> PathBuf {
    let to = path.with_extension("gz");
    let file = std::fs::File::create(&to).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    io::copy(&mut std::fs::File::open(path).unwrap(), &mut encoder).unwrap();
    encoder.finish().unwrap();
    to
}

#[tokio::test]
async fn documents_are_read_up_to_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start().await.unwrap();
    let refused = |path: &Path, problem: &str| {
        let error = registry.load(path, Some("it:1")).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    };
    for name in ["index.json", "manifest.json"] {
        let archive = dir.path().join("archive.tar");
        with_hole(&archive, name, (4 << 20) + 1);
        refused(&archive, &format!("{name} has more than 4 MiB"));
        refused(&compressed(&archive), &format!("{name} has more than 4 MiB"));
    }
    let layout = dir.path().join("layout");
    image("it").write_oci_layout(&layout).unwrap();
    let index = std::fs::read(layout.join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let digest = index["manifests"][0]["digest"].as_str().unwrap().replace(':', "/");
    for name in [format!("blobs/{digest}"), "index.json".to_owned()] {
        let file = std::fs::File::options().write(true).open(layout.join(&name)).unwrap();
        file.set_len(5 << 30).unwrap();
        refused(&layout, &format!("{name} has more than 4 MiB"));
    }
}

#[tokio::test]
async fn archives_are_unpacked_up_to_limits() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start().await.unwrap();
    let file = dir.path().join("archive.tar");
    let refused = |path: &Path, problem: &str| {
        let error = registry.load(path, Some("it:1")).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
        // Only the index and the store's own directories are left.
        let left = std::fs::read_dir(registry.server.store.root()).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["blobs", "index.json", "oci-layout", "uploads"]);
    };
    let mut many = tar::Builder::new(std::fs::File::create(&file).unwrap());
    for number in 0..=100_000 {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        many.append_data(&mut header, number.to_string(), io::empty()).unwrap();
    }
    many.finish().unwrap();
    refused(&compressed(&file), "it has more than 100000 members");

    let mut long = tar::Builder::new(std::fs::File::create(&file).unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    long.append_data(&mut header, "x".repeat(2 << 20), io::empty()).unwrap();
    long.finish().unwrap();
    refused(&file, "a header is too long");

    // The declared size is enough: the content need not exist.
    with_hole(&file, "whatever", 2 << 30);
    std::fs::File::options().write(true).open(&file).unwrap().set_len(1024).unwrap();
    refused(&compressed(&file), "it unpacks to more than 1024 MiB");
}

#[tokio::test]
async fn stop_ends_load_and_removes_directory() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("archive.tar");
    with_hole(&archive, "whatever", 1 << 40);
    let registry = Registry::start().await.unwrap();
    let root = registry.server.store.root().to_owned();
    let load = registry.load_interruptibly(&archive, None);
    assert!(tokio::time::timeout(std::time::Duration::ZERO, load).await.is_err());
    tokio::time::timeout(harness::WAIT_LIMIT, registry.stop()).await.unwrap();
    assert!(!root.exists());
}
