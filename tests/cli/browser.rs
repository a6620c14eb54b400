//! A headless Chromium, driven over the DevTools protocol: opens a page, runs scripts in it, and collects its errors.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::command::*;

/// The time limit of any single wait: a cold start reads 300 MB while all other tests run.
const WAIT_LIMIT: Duration = Duration::from_secs(240);

/// Chromium with one page.
pub(crate) struct Browser {
    child: Child,
    socket: WebSocketStream<TcpStream>,
    session: Value,
    calls: u64,
    /// Exceptions of scripts, and the browser's log, for example of refused resources and scripts.
    errors: Vec<String>,
    /// Whether the page has finished loading since it was opened.
    loaded: bool,
}

impl Browser {
    /// Starts Chromium, with its files in the place.
    pub(crate) async fn start(place: &Place) -> Self {
        let profile = format!("--user-data-dir={}", place.path("browser").display());
        let args = [
            "--headless",
            // Its sandbox does not work as root, nor if user namespaces are forbidden.
            "--no-sandbox",
            "--disable-gpu",
            // /dev/shm may be small.
            "--disable-dev-shm-usage",
            "--disable-breakpad",
            "--disable-background-networking",
            "--remote-debugging-port=0",
            &profile,
            "about:blank",
        ];
        let mut child = Command::new("chromium")
            .args(args)
            .env("HOME", place.path(""))
            .env("TMPDIR", place.path(""))
            .env("XDG_RUNTIME_DIR", place.path(""))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut seen = Vec::new();
        let address = tokio::time::timeout(WAIT_LIMIT, async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some(address) = line.strip_prefix("DevTools listening on ") {
                    return address.to_owned();
                }
                seen.push(line);
            }
            panic!("chromium ended: {seen:#?}");
        });
        let address = address.await.expect("chromium serves DevTools");
        // The pipe must not fill up.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let host = address.split('/').nth(2).unwrap();
        let stream = TcpStream::connect(host).await.unwrap();
        let (socket, _) = client_async(&address, stream).await.unwrap();
        let mut browser = Self {
            child,
            socket,
            session: Value::Null,
            calls: 0,
            errors: Vec::new(),
            loaded: false,
        };
        let target = json!({"url": "about:blank"});
        let target = browser.call("Target.createTarget", target).await;
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", target).await;
        browser.session = attached["sessionId"].clone();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({})).await;
        }
        browser
    }

    /// Calls a method of the protocol.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": params});
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        let message = Message::text(message.to_string());
        self.socket.send(message).await.unwrap();
        loop {
            let answer = self.next().await;
            if answer["id"] == self.calls {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// The next message; events are recorded.
    async fn next(&mut self) -> Value {
        let message = tokio::time::timeout(WAIT_LIMIT, self.socket.next()).await;
        let message = message.expect("chromium answers").unwrap().unwrap();
        let message: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
        match message["method"].as_str() {
            Some("Page.loadEventFired") => self.loaded = true,
            Some("Runtime.exceptionThrown") => self.errors.push(message["params"].to_string()),
            Some("Log.entryAdded") => self.errors.push(message["params"]["entry"].to_string()),
            _ => {}
        }
        message
    }

    /// Opens a file, and waits until it is loaded.
    pub(crate) async fn open(&mut self, file: &Path, fragment: &str) {
        // The blank page in between makes Chromium load the page again even if only the fragment differs.
        for url in ["about:blank".to_owned(), format!("file://{}{fragment}", file.display())] {
            self.loaded = false;
            self.call("Page.navigate", json!({"url": url})).await;
            while !self.loaded {
                self.next().await;
            }
        }
    }

    /// The value of an expression in the page.
    pub(crate) async fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", params).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Presses and releases a key.
    pub(crate) async fn press(&mut self, key: &str, code: u32, text: &str) {
        for kind in ["keyDown", "keyUp"] {
            let mut params =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" {
                params["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", params).await;
        }
    }

    /// Closes Chromium, and returns the collected errors.
    pub(crate) async fn close(mut self) -> Vec<String> {
        // The connection may end before the response.
        self.calls += 1;
        let message = json!({"id": self.calls, "method": "Browser.close"});
        self.socket.send(Message::text(message.to_string())).await.unwrap();
        let ended = tokio::time::timeout(WAIT_LIMIT, self.child.wait()).await;
        ended.expect("chromium ends").unwrap();
        self.errors
    }
}
