//! Measures pulls, and `skopeo copy` and `tar -xzf` for the same image from the same registry.
//!
//!     cargo bench --bench pull [-- ROUNDS]
//!
//! A runtime downloads, decompresses, verifies the digests of compressed and decompressed layers, and unpacks. skopeo downloads and
//! verifies; tar decompresses and unpacks. Their sum is the time of the same work with the usual tools, one after the other. On a
//! shared machine, only ratios within one run are meaningful.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::Runtime;
use harness::fixture_image::{ImageBuilder, Layer};
use registry::Registry;

const ROUNDS: usize = 5;
const LAYERS: u64 = 5;

/// The contents of an image.
struct Shape {
    name: &'static str,
    /// The number of files in each layer.
    files: u64,
    /// The incompressible bytes of each file, and the compressible ones.
    noise: usize,
    text: usize,
}

const SHAPES: [Shape; 2] = [
    Shape { name: "large", files: 200, noise: 200 << 10, text: 100 << 10 },
    Shape { name: "small", files: 4000, noise: 2 << 10, text: 4 << 10 },
];

impl Shape {
    /// The content of a file.
    fn content(&self, seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let noise = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        let mut bytes: Vec<u8> = noise.flatten().take(self.noise).collect();
        let text = b"the quick brown fox jumps over the lazy dog\n";
        bytes.extend(text.iter().cycle().take(self.text));
        bytes
    }

    fn image(&self) -> ImageBuilder {
        let name = format!("example.com/{}:1", self.name);
        (0..LAYERS).fold(ImageBuilder::new(&name), |image, n| {
            let layer = (0..self.files).fold(Layer::new(), |layer, i| {
                let path = format!("usr/l{n}/a{}/b{}/f{i}", i / 500, i / 50);
                layer.file(&path, 0o644, self.content(n * self.files + i))
            });
            image.layer(layer)
        })
    }
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

/// The duration of a command, if it is installed.
fn time(command: &mut Command) -> Option<Duration> {
    let began = Instant::now();
    let status = command.status().ok()?;
    status.success().then(|| began.elapsed())
}

/// The durations of skopeo and tar, if they are installed, and the number of downloaded bytes.
fn others(host: &str, name: &str) -> Option<(Duration, Duration, u64)> {
    let into = tempfile::tempdir().unwrap();
    let (fetched, unpacked) = (into.path().join("it"), into.path().join("fs"));
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["copy", "--quiet", "--src-tls-verify=false"]);
    skopeo.arg(format!("docker://{host}/{name}:1"));
    let fetching = time(skopeo.arg(format!("dir:{}", fetched.display())))?;
    let (mut unpacking, mut bytes) = (Duration::ZERO, 0);
    for (i, layer) in layers(&fetched).iter().enumerate() {
        let directory = unpacked.join(i.to_string());
        fs::create_dir_all(&directory).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(layer).arg("-C").arg(directory);
        unpacking += time(&mut tar)?;
        bytes += fs::metadata(layer).unwrap().len();
    }
    Some((fetching, unpacking, bytes))
}

/// The layers that skopeo downloaded.
fn layers(directory: &Path) -> Vec<std::path::PathBuf> {
    let manifest = fs::read(directory.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let digest = |layer: &serde_json::Value| layer["digest"].as_str().unwrap()[7..].to_owned();
    let layers = manifest["layers"].as_array().unwrap().iter().map(digest);
    layers.map(|name| directory.join(name)).collect()
}

#[tokio::main]
async fn main() {
    // Cargo passes --bench.
    let rounds = std::env::args().find_map(|a| a.parse().ok());
    let rounds = rounds.unwrap_or(ROUNDS);
    let registry = Registry::start().await.unwrap();
    let runtime = Runtime::with().start().await.unwrap();
    let host = registry.host();
    for shape in &SHAPES {
        registry.add(&shape.image()).unwrap();
        let name = format!("{host}/{}:1", shape.name);
        let (mut ours, mut fetching, mut unpacking, mut size) = (vec![], vec![], vec![], 0);
        for _ in 0..rounds {
            let began = Instant::now();
            let id = runtime.client.pull(&name).await.unwrap();
            ours.push(began.elapsed());
            runtime.client.remove_image(&id).await.unwrap();
            let host = host.clone();
            let others = tokio::task::spawn_blocking(move || others(&host, shape.name));
            if let Some((fetched, unpacked, bytes)) = others.await.unwrap() {
                fetching.push(fetched);
                unpacking.push(unpacked);
                size = bytes;
            }
        }
        let unpacked = LAYERS * shape.files * (shape.noise + shape.text) as u64;
        println!(
            "{LAYERS} layers, {} files, {} MB compressed, {} MB unpacked; median of {rounds}",
            LAYERS * shape.files,
            size / 1_000_000,
            unpacked / 1_000_000
        );
        let ours = median(&mut ours);
        println!("  crib                  {ours:6.2} s");
        if fetching.is_empty() {
            println!("  skopeo or tar is not installed");
            continue;
        }
        let (fetching, unpacking) = (median(&mut fetching), median(&mut unpacking));
        println!("  skopeo copy           {fetching:6.2} s");
        println!("  tar -xzf              {unpacking:6.2} s");
        let both = fetching + unpacking;
        println!(
            "  crib is {:.2} times skopeo and tar, {:.2} times skopeo alone",
            ours / both,
            ours / fetching
        );
    }
}
