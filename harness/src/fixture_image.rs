//! Builds image archives for tests: from files named in the test, without network or registry.
//!
//! ```no_run
//! use harness::fixture_image::{ImageBuilder, Layer};
//!
//! # fn main() -> std::io::Result<()> {
//! let layer = Layer::new().file("etc/motd", 0o644, "hello\n").host_program("/bin/sh")?;
//! let image = ImageBuilder::new("example.com/motd:1").layer(layer).cmd(["/bin/sh", "-c", "cat /etc/motd"]);
//! image.write_docker("motd.tar".as_ref())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

/// One layer: files, in the order they were added. Paths are relative to the image's root.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    entries: Vec<Entry>,
    stream: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
struct Entry {
    kind: EntryType,
    path: String,
    link: String,
    body: Vec<u8>,
    mode: u32,
    owner: (u64, u64),
    /// Major and minor number of a device node.
    device: (u32, u32),
}

impl Layer {
    /// An empty layer.
    pub fn new() -> Self {
        Self::default()
    }

    /// A layer from a raw tar stream, which is not validated.
    pub fn of_stream(stream: Vec<u8>) -> Self {
        Self {
            stream: Some(stream),
            ..Self::default()
        }
    }

    fn entry(mut self, kind: EntryType, path: &str, mode: u32) -> Self {
        self.entries.push(Entry {
            kind,
            path: path.trim_start_matches('/').to_owned(),
            link: String::new(),
            body: Vec::new(),
            mode,
            owner: (0, 0),
            device: (0, 0),
        });
        self
    }

    fn change(mut self, change: impl FnOnce(&mut Entry)) -> Self {
        if let Some(entry) = self.entries.last_mut() {
            change(entry);
        }
        self
    }

    /// A file with its permission bits (0o4755 for a setuid one).
    pub fn file(self, path: &str, mode: u32, body: impl Into<Vec<u8>>) -> Self {
        self.entry(EntryType::Regular, path, mode)
            .change(|entry| entry.body = body.into())
    }

    /// A directory with its permission bits.
    pub fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, path, mode)
    }

    /// A symbolic link.
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, path, 0o777)
            .change(|entry| entry.link = target.to_owned())
    }

    /// A FIFO, or a device node with its major and minor number.
    pub fn node(self, path: &str, kind: EntryType, device: (u32, u32)) -> Self {
        self.entry(kind, path, 0o666)
            .change(|entry| entry.device = device)
    }

    /// Another name for an earlier file of this layer.
    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Link, path, 0o644)
            .change(|entry| entry.link = target.to_owned())
    }

    /// Sets the owner and group of the entry added last.
    pub fn owned_by(self, uid: u64, gid: u64) -> Self {
        self.change(|entry| entry.owner = (uid, gid))
    }

    /// Hides `path` of the layers below.
    pub fn whiteout(self, path: &str) -> Self {
        let (directory, name) = path.rsplit_once('/').map_or(("", path), |(d, n)| (d, n));
        let separator = if directory.is_empty() { "" } else { "/" };
        self.file(&format!("{directory}{separator}.wh.{name}"), 0o644, "")
    }

    /// Hides the contents of the directory `path` in the layers below.
    pub fn opaque(self, path: &str) -> Self {
        self.file(&format!("{path}/.wh..wh..opq"), 0o644, "")
    }

    /// A program of this machine, under the same absolute path, with the libraries that `ldd` lists.
    ///
    /// # Errors
    /// The program or a library cannot be read, or `ldd` cannot be run.
    pub fn host_program(mut self, path: &str) -> io::Result<Self> {
        let output = Command::new("ldd").arg(path).output()?;
        // `ldd` fails for a static program, which needs no libraries.
        let listing = String::from_utf8_lossy(&output.stdout);
        let libraries = listing
            .lines()
            .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
        for file in libraries.chain([path]) {
            let name = file.trim_start_matches('/');
            if !self.entries.iter().any(|entry| entry.path == name) {
                self = self.file(name, 0o755, fs::read(file)?);
            }
        }
        Ok(self)
    }

    /// The layer as a tar stream; equal for equal entries.
    ///
    /// # Errors
    /// A path does not fit in a tar file.
    pub fn tar(&self) -> io::Result<Vec<u8>> {
        if let Some(stream) = &self.stream {
            return Ok(stream.clone());
        }
        let mut tar = tar::Builder::new(Vec::new());
        for entry in &self.entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(entry.kind);
            header.set_mode(entry.mode);
            header.set_uid(entry.owner.0);
            header.set_gid(entry.owner.1);
            header.set_mtime(1_600_000_000);
            header.set_size(entry.body.len() as u64);
            if entry.kind == EntryType::Char {
                header.set_device_major(entry.device.0)?;
                header.set_device_minor(entry.device.1)?;
            }
            match entry.kind {
                EntryType::Link | EntryType::Symlink => {
                    tar.append_link(&mut header, &entry.path, &entry.link)?
                }
                EntryType::Regular
                | EntryType::Char
                | EntryType::Block
                | EntryType::Directory
                | EntryType::Fifo
                | EntryType::Continuous
                | EntryType::GNULongName
                | EntryType::GNULongLink
                | EntryType::GNUSparse
                | EntryType::XGlobalHeader
                | EntryType::XHeader
                | EntryType::__Nonexhaustive(_) => {
                    tar.append_data(&mut header, &entry.path, &entry.body[..])?
                }
            }
        }
        tar.into_inner()
    }
}

/// A builder of an image for linux on this machine's architecture.
#[derive(Debug, Clone)]
pub struct ImageBuilder {
    name: String,
    layers: Vec<Layer>,
    config: serde_json::Map<String, Value>,
}

impl ImageBuilder {
    /// An image without layers; `name` is its name for PullImage.
    pub fn new(name: &str) -> Self {
        let config = serde_json::Map::from_iter([(
            "Env".to_owned(),
            json!(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]),
        )]);
        Self {
            name: name.to_owned(),
            layers: Vec::new(),
            config,
        }
    }

    /// Adds a layer on top.
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    fn set(mut self, key: &str, value: Value) -> Self {
        self.config.insert(key.to_owned(), value);
        self
    }

    /// The image's entrypoint.
    pub fn entrypoint<S: Into<String>>(self, words: impl IntoIterator<Item = S>) -> Self {
        self.set(
            "Entrypoint",
            words
                .into_iter()
                .map(Into::into)
                .collect::<Vec<String>>()
                .into(),
        )
    }

    /// The image's command.
    pub fn cmd<S: Into<String>>(self, words: impl IntoIterator<Item = S>) -> Self {
        self.set(
            "Cmd",
            words
                .into_iter()
                .map(Into::into)
                .collect::<Vec<String>>()
                .into(),
        )
    }

    /// The environment, in place of a default PATH: `KEY=value`.
    pub fn env<S: Into<String>>(self, entries: impl IntoIterator<Item = S>) -> Self {
        self.set(
            "Env",
            entries
                .into_iter()
                .map(Into::into)
                .collect::<Vec<String>>()
                .into(),
        )
    }

    /// `user`, `uid`, `user:group` or `uid:gid`.
    pub fn user(self, user: &str) -> Self {
        self.set("User", user.into())
    }

    /// The working directory of processes.
    pub fn working_dir(self, path: &str) -> Self {
        self.set("WorkingDir", path.into())
    }

    /// The stop signal.
    pub fn stop_signal(self, name: &str) -> Self {
        self.set("StopSignal", name.into())
    }

    /// The paths of volumes.
    pub fn volumes<'a>(self, paths: impl IntoIterator<Item = &'a str>) -> Self {
        let paths: serde_json::Map<String, Value> = paths
            .into_iter()
            .map(|path| (path.to_owned(), json!({})))
            .collect();
        self.set("Volumes", paths.into())
    }

    /// Writes a docker archive (`manifest.json`, uncompressed layers) to the file `path`.
    ///
    /// # Errors
    /// The file cannot be written, or a path in a layer does not fit in a tar file.
    pub fn write_docker(&self, path: &Path) -> io::Result<()> {
        let layers = self.layer_tars()?;
        let config = self.config_document(&layers)?;
        let config_name = format!("{}.json", hex(&config));
        let mut members = BTreeMap::from([(config_name.clone(), config)]);
        let mut names = Vec::new();
        for (i, layer) in layers.into_iter().enumerate() {
            let name = format!("{i}/layer.tar");
            members.insert(name.clone(), layer);
            names.push(name);
        }
        let manifest = json!([{"Config": config_name, "RepoTags": [self.name], "Layers": names}]);
        members.insert("manifest.json".to_owned(), serde_json::to_vec(&manifest)?);
        fs::write(path, tar_of(&members)?)
    }

    /// Writes an OCI archive (a layout with gzip-compressed layers, in a tar file) to the file `path`.
    ///
    /// # Errors
    /// As [`ImageBuilder::write_docker`].
    pub fn write_oci(&self, path: &Path) -> io::Result<()> {
        fs::write(path, tar_of(&self.layout()?)?)
    }

    /// Writes an OCI layout to the directory `path`, which it creates.
    ///
    /// # Errors
    /// As [`ImageBuilder::write_docker`].
    pub fn write_oci_layout(&self, path: &Path) -> io::Result<()> {
        for (name, bytes) in self.layout()? {
            let file = path.join(name);
            if let Some(directory) = file.parent() {
                fs::create_dir_all(directory)?;
            }
            fs::write(file, bytes)?;
        }
        Ok(())
    }

    fn layer_tars(&self) -> io::Result<Vec<Vec<u8>>> {
        self.layers.iter().map(Layer::tar).collect()
    }

    fn config_document(&self, layers: &[Vec<u8>]) -> io::Result<Vec<u8>> {
        let diff_ids: Vec<String> = layers
            .iter()
            .map(|layer| format!("sha256:{}", hex(layer)))
            .collect();
        Ok(serde_json::to_vec(&json!({
            "architecture": architecture(),
            "os": "linux",
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }))?)
    }

    fn layout(&self) -> io::Result<BTreeMap<String, Vec<u8>>> {
        let mut members = BTreeMap::new();
        let mut blob = |kind: &str, bytes: Vec<u8>| {
            let digest = hex(&bytes);
            let media_type = format!("application/vnd.oci.image.{kind}");
            let descriptor = json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len()});
            members.insert(format!("blobs/sha256/{digest}"), bytes);
            descriptor
        };
        let layers = self.layer_tars()?;
        let config = blob("config.v1+json", self.config_document(&layers)?);
        let mut descriptors = Vec::new();
        for layer in &layers {
            let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
            packer.write_all(layer)?;
            descriptors.push(blob("layer.v1.tar+gzip", packer.finish()?));
        }
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": descriptors,
        });
        let mut manifest = blob("manifest.v1+json", serde_json::to_vec(&manifest)?);
        manifest["annotations"] = json!({"org.opencontainers.image.ref.name": self.name});
        let index = json!({"schemaVersion": 2, "manifests": [manifest]});
        members.insert("index.json".to_owned(), serde_json::to_vec(&index)?);
        members.insert(
            "oci-layout".to_owned(),
            br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(),
        );
        Ok(members)
    }
}

fn tar_of(members: &BTreeMap<String, Vec<u8>>) -> io::Result<Vec<u8>> {
    let files = members.iter().map(|(name, bytes)| (name.as_str(), bytes));
    files
        .fold(Layer::new(), |layer, (name, bytes)| {
            layer.file(name, 0o644, bytes.clone())
        })
        .tar()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// This machine's architecture in image configurations.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::PathBuf;

    use image::{ImageOptions, ImageStore, Rootfs};

    use super::*;

    /// A store in `root` with the runtime's unpacked layers of the image at `path`.
    fn pulled(path: PathBuf, root: &Path) -> (ImageStore, Vec<PathBuf>) {
        let options = ImageOptions {
            archives: vec![path],
            ..ImageOptions::new(root)
        };
        let store = ImageStore::open(options).unwrap();
        store.pull("example.com/it:1").unwrap();
        let Rootfs::Layers { lower } = store.rootfs("example.com/it:1").unwrap() else {
            panic!("no layers")
        };
        (store, lower)
    }

    #[test]
    fn image_formats_are_equivalent_to_the_runtime() {
        let dir = tempfile::tempdir().unwrap();
        let below = Layer::new()
            .directory("etc", 0o755)
            .file("etc/old", 0o600, "old")
            .file("etc/name", 0o644, "it");
        let above = Layer::new()
            .whiteout("etc/old")
            .symlink("etc/link", "name")
            .opaque("var")
            .hard_link("var/x", "var/y");
        let above = Layer {
            entries: [
                Layer::new().file("var/y", 0o644, "y").entries,
                above.entries,
            ]
            .concat(),
            ..Layer::default()
        };
        let image = ImageBuilder::new("example.com/it:1")
            .layer(below)
            .layer(above)
            .entrypoint(["/bin/it"])
            .user("7:8")
            .volumes(["/data"]);
        image.write_docker(&dir.path().join("docker.tar")).unwrap();
        image.write_oci(&dir.path().join("oci.tar")).unwrap();
        image.write_oci_layout(&dir.path().join("layout")).unwrap();
        let mut configs = Vec::new();
        for form in ["docker.tar", "oci.tar", "layout"] {
            let (store, lower) = pulled(
                dir.path().join(form),
                &dir.path().join(format!("store-{form}")),
            );
            assert_eq!(
                fs::read_to_string(lower[1].join("etc/name")).unwrap(),
                "it",
                "{form}"
            );
            assert_eq!(
                fs::read_link(lower[0].join("etc/link")).unwrap(),
                PathBuf::from("name")
            );
            assert_eq!(fs::read_to_string(lower[0].join("var/x")).unwrap(), "y");
            let record = store.status("example.com/it:1").unwrap();
            assert_eq!(
                (record.config.user.as_str(), &record.config.volumes[..]),
                ("7:8", &["/data".to_owned()][..])
            );
            configs.push((record.id, record.config));
        }
        assert!(
            configs.windows(2).all(|pair| pair[0] == pair[1]),
            "{configs:?}"
        );
    }

    #[test]
    fn host_program_includes_shared_libraries() {
        let dir = tempfile::tempdir().unwrap();
        let layer = Layer::new().host_program("/bin/sh").unwrap();
        let path = dir.path().join("it.tar");
        ImageBuilder::new("example.com/it:1")
            .layer(layer)
            .write_oci(&path)
            .unwrap();
        let (_store, lower) = pulled(path, &dir.path().join("store"));
        let loader = |root: &Path| fs::read_dir(root).unwrap().count();
        assert!(lower[0].join("bin/sh").is_file());
        assert!(loader(&lower[0]) > 1, "no libraries beside bin");
    }
}
