//! The sources of static pods in a kubelet's configuration file.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::command::*;
use crate::nodes::agent_flags::{free_port, pod, wait_until_shown};

/// Responds to requests that have the header `X-Token: right` with a manifest.
async fn serve(listener: TcpListener, manifest: Arc<Mutex<String>>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let manifest = manifest.lock().unwrap().clone();
        // A client that disconnects does not affect others.
        let _ = answer(stream, &manifest).await;
    }
}

async fn answer(stream: TcpStream, manifest: &str) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut line, mut allowed) = (String::new(), false);
    while stream.read_line(&mut line).await? > 2 {
        allowed |= line.to_ascii_lowercase().trim() == "x-token: right";
        line.clear();
    }
    let (status, body) = if allowed { ("200 OK", manifest) } else { ("403 Forbidden", "") };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await
}

struct Agent {
    agent: Running,
    port: u16,
}

impl Agent {
    fn start(place: &Place, endpoint: &str, more: &[&str]) -> Self {
        let (port, root) = (free_port(), place.path("agent"));
        let (number, root) = (port.to_string(), root.to_str().unwrap().to_owned());
        let flags = ["agent", "--runtime-endpoint", endpoint, "--root-dir", &root];
        let flags = [&flags[..], &["--node-name", "n", "--read-only-port", &number]].concat();
        let agent = place.start(&[&flags[..], more].concat());
        Self { agent, port }
    }

    async fn shows(&self, expected: &[&str]) {
        wait_until_shown(self.port, expected).await;
    }
}

/// When the target of a link changes, there is no event in the directory of the link.
#[tokio::test]
async fn configuration_file_sets_static_pod_path_and_interval() {
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    let served = Arc::new(Mutex::new(pod("served", "", "")));
    let server = tokio::spawn(serve(listener, Arc::clone(&served)));

    std::fs::create_dir(place.path("pods")).unwrap();
    place.file("elsewhere.yaml", &pod("first", "", ""));
    std::os::unix::fs::symlink("../elsewhere.yaml", place.path("pods/no-suffix")).unwrap();
    let config = place.file(
        "kubelet.yaml",
        &format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPath: {}\n\
             staticPodURL: {url}\nstaticPodURLHeader: {{X-Token: [right]}}\nfileCheckFrequency: 200ms\n\
             httpCheckFrequency: 200ms\n",
            place.path("pods").display()
        ),
    );
    let agent = Agent::start(&place, &endpoint, &["--config", &config]);
    agent.shows(&["first-n Running ", "served-n Running "]).await;
    place.file("elsewhere.yaml", &pod("second", "", ""));
    agent.shows(&["second-n Running ", "served-n Running "]).await;
    *served.lock().unwrap() = pod("other", "", "");
    agent.shows(&["other-n Running ", "second-n Running "]).await;
    agent.agent.signal(Signal::SIGTERM);
    let ended = agent.agent.end().await.exits(0);
    assert!(!ended.err.contains("have no effect"), "{ended:?}");

    // A flag takes precedence, and its manifests are crib's own.
    place.file("own/flag.yaml", &pod("flag", "", ""));
    let own = place.path("own");
    let flags = ["--config", &config, "--manifests", own.to_str().unwrap()];
    let agent = Agent::start(&place, &endpoint, &flags);
    agent.shows(&["flag Running ", "other-n Running "]).await;
    agent.agent.signal(Signal::SIGTERM);
    assert_eq!(agent.agent.end().await.code, Some(0));
    server.abort();
    runtime.stop().await;
}

#[tokio::test]
async fn agent_without_manifests_names_the_flag() {
    let place = Place::unchecked();
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let lines = [
        ("maxPods: 1", "no source of pods: set --manifests"),
        ("staticPodPath: /nowhere", "/nowhere does not exist: set staticPodPath of --config"),
        ("staticPodURL: 'ftp://x'", "staticPodURL of --config: \"ftp://x\" is not an http"),
    ];
    let headers = place.file("headers", "X-Token: right\n");
    let no_url = ["--manifest-url-headers", &headers];
    let lines = lines.map(|(line, words)| (line, &[][..], words));
    let headers_alone = "--manifest-url-headers needs --manifest-url";
    let lines = lines.into_iter().chain([("maxPods: 1", &no_url[..], headers_alone)]);
    for (line, more, words) in lines {
        let config = place.file("kubelet.yaml", &format!("{head}{line}\n"));
        let root = place.path("agent").to_str().unwrap().to_owned();
        let flags = ["agent", "--runtime-endpoint", "unix:///nowhere", "--root-dir"];
        let ended = place.crib(&[&flags[..], &[&root, "--config", &config], more].concat()).await;
        assert_eq!(ended.code, Some(2), "{line}: {ended:?}");
        assert!(ended.err.contains(words), "{line}: {ended:?}");
    }
}
