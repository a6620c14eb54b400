//! How long a pull of some 200 MB in five layers takes, beside `skopeo copy` of the same image from the same registry.
//!
//!     cargo bench -p harness --bench pull
//!
//! skopeo only fetches and hashes; a runtime decompresses, hashes again and unpacks besides. Only the ratio means anything.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::process::Command;
use std::time::{Duration, Instant};

use harness::Runtime;
use harness::fixture_image::{ImageBuilder, Layer};
use harness::registry::Registry;

const ROUNDS: usize = 3;
const LAYERS: u64 = 5;
const FILES: u64 = 200;
/// Of each file, so much cannot be compressed, and so much can.
const NOISE: usize = 200 << 10;
const TEXT: usize = 100 << 10;

/// Bytes that cannot be compressed, and some that can.
fn content(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let mut bytes: Vec<u8> = noise.flatten().take(NOISE).collect();
    bytes.extend(
        b"the quick brown fox jumps over the lazy dog\n"
            .iter()
            .cycle()
            .take(TEXT),
    );
    bytes
}

fn image() -> ImageBuilder {
    (0..LAYERS).fold(ImageBuilder::new("example.com/big:1"), |image, n| {
        let layer = (0..FILES).fold(Layer::new(), |layer, i| {
            layer.file(
                &format!("l{n}/d{}/f{i}", i % 20),
                0o644,
                content(n * FILES + i),
            )
        });
        image.layer(layer)
    })
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

/// The time that skopeo takes, if it is here.
fn skopeo(host: &str) -> Option<Duration> {
    let into = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let status = Command::new("skopeo")
        .args(["copy", "--quiet", "--src-tls-verify=false"])
        .arg(format!("docker://{host}/big:1"))
        .arg(format!("dir:{}", into.path().join("it").display()))
        .status()
        .ok()?;
    status.success().then(|| began.elapsed())
}

#[tokio::main]
async fn main() {
    let registry = Registry::start().await.unwrap();
    registry.add(&image()).unwrap();
    let host = registry.host();
    let runtime = Runtime::with().start().await.unwrap();
    let name = format!("{host}/big:1");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let id = runtime.client.pull(&name).await.unwrap();
        ours.push(began.elapsed());
        runtime.client.remove_image(&id).await.unwrap();
        let host = host.clone();
        let copied = tokio::task::spawn_blocking(move || skopeo(&host))
            .await
            .unwrap();
        theirs.extend(copied);
    }
    let ours = median(ours);
    println!("crib, fetched and unpacked   {ours:6.2} s");
    if theirs.is_empty() {
        println!("skopeo is not installed");
    } else {
        let theirs = median(theirs);
        println!(
            "skopeo, fetched              {theirs:6.2} s   crib takes {:.2} times that",
            ours / theirs
        );
    }
}
