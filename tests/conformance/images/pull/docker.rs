//! Pulls from the distribution project's registry (Debian's `docker-registry`).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::process::Process;

use super::{image, pull};
use crate::support::*;

/// A `docker-registry` on a free port, killed on drop.
struct Server {
    process: Process,
    host: String,
    _place: TempDir,
}

impl Server {
    /// `None` if the program is not installed.
    async fn start() -> Self {
        let program = ["/usr/bin/docker-registry", "/usr/local/bin/docker-registry"]
            .into_iter()
            .find(|path| Path::new(path).is_file())
            .unwrap();
        let place = tempfile::tempdir().unwrap();
        // The program cannot report a port that the kernel chose, so pick a free one.
        let port = harness::ports::free().unwrap();
        let host = format!("127.0.0.1:{port}");
        let config = place.path().join("config.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"{host}\"}}\n",
            place.path().join("data").display()
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new(program);
        command.arg("serve").arg(config).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::spawn(&mut command).unwrap();
        let server = Self { process, host, _place: place };
        eventually(WAIT_LIMIT, "docker-registry to listen", || async {
            tokio::net::TcpStream::connect(&server.host).await.map(|_| ())
        })
        .await;
        server
    }

    /// Pushes an image, each blob in a single request.
    async fn push(&self, image: &ImageBuilder, repository: &str, tag: &str) {
        let layout = tempfile::tempdir().unwrap();
        image.write_oci_layout(layout.path()).unwrap();
        let index: serde_json::Value =
            serde_json::from_slice(&fs::read(layout.path().join("index.json")).unwrap()).unwrap();
        let manifest = index["manifests"][0]["digest"].as_str().unwrap().to_owned();
        let blobs = layout.path().join("blobs/sha256");
        for entry in fs::read_dir(&blobs).unwrap() {
            let entry = entry.unwrap();
            let digest = format!("sha256:{}", entry.file_name().to_str().unwrap());
            if digest == manifest {
                continue;
            }
            let location =
                self.send("POST", &format!("/v2/{repository}/blobs/uploads/"), "", &[]).await;
            let location = location
                .lines()
                .find_map(|line| line.strip_prefix("Location: "))
                .unwrap()
                .trim()
                .to_owned();
            let path = location.split_once(&self.host).map_or(location.as_str(), |(_, path)| path);
            let separator = if path.contains('?') { '&' } else { '?' };
            let path = format!("{path}{separator}digest={digest}");
            let answer = self
                .send("PUT", &path, "application/octet-stream", &fs::read(entry.path()).unwrap())
                .await;
            assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        }
        let bytes = fs::read(blobs.join(manifest.trim_start_matches("sha256:"))).unwrap();
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let answer =
            self.send("PUT", &format!("/v2/{repository}/manifests/{tag}"), kind, &bytes).await;
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }

    /// Sends one request, and returns its response.
    async fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(&self.host).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.signal(Signal::SIGKILL);
        self.process.wait_blocking(WAIT_LIMIT);
    }
}

#[tokio::test]
async fn pull_works_from_docker_registry() {
    harness::needs!(DockerRegistry);
    let server = Server::start().await;
    let runtime = Runtime::with().start().await.unwrap();
    let app = image("app:1", 1);
    server.push(&app, "team/app", "1").await;
    let id = pull(&runtime, &format!("{}/team/app:1", server.host), None).await.unwrap();
    let status = runtime.client.image(&id).await.unwrap().unwrap();
    assert_eq!(status.repo_tags, [format!("{}/team/app:1", server.host)]);
    let by_digest = status.repo_digests[0].clone();
    runtime.client.remove_image(&id).await.unwrap();
    assert_eq!(pull(&runtime, &by_digest, None).await.unwrap(), id);
    let seen = code(pull(&runtime, &format!("{}/team/app:2", server.host), None).await);
    assert_eq!(seen, Code::NotFound);
}
