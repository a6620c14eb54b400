//! A hanging plugin does not delay the daemon's shutdown.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use serde_json::json;

use super::Plugins;
use crate::support::*;

/// ADD blocks until the test writes to the FIFO `gate`, if it exists.
const HANGING: &str = r#"#!/bin/sh
here=$(dirname "$0")
cat > /dev/null
if [ "$CNI_COMMAND" = ADD ]; then
    echo called >> "$here/added"
    if [ -p "$here/gate" ]; then cat "$here/gate" > /dev/null; fi
    echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.9.8.7/24"}]}'
fi
"#;

#[tokio::test]
async fn sigterm_ends_daemon_while_plugin_hangs() {
    harness::needs!(Namespaces);
    let plugins = Plugins::new();
    let path = plugins.path("hanging");
    fs::write(&path, HANGING).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    plugins.configure(
        "10-hanging.conflist",
        &json!({"cniVersion": "1.1.0", "name": "hanging", "plugins": [{"type": "hanging"}]}),
    );
    let gate = plugins.path("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let mut runtime = plugins.options().durable().start().await.unwrap();
    let run = tokio::spawn({
        let (client, config) = (runtime.client.clone(), runtime.sandbox("p"));
        async move { client.run_pod(config).await }
    });
    eventually(PATIENCE, "the plugin to be called", async || match plugins.lines("added").len() {
        0 => Err("not called"),
        _ => Ok(()),
    })
    .await;
    let began = Instant::now();
    assert!(runtime.stop().await.unwrap().success());
    let bound = Duration::from_secs(10 + 5);
    assert!(began.elapsed() < bound, "{:?}", began.elapsed());
    run.await.unwrap().unwrap_err();
    // Unblocks the plugin. Opened for reading and writing, so that the open does not block.
    drop(fs::File::options().read(true).write(true).open(&gate).unwrap());
    fs::remove_file(&gate).unwrap();
}
