//! Builds image archives for tests, from files named in the test, without network or registry.
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
use std::io;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

mod form;
mod layer;

use form::Form;
pub use layer::{Layer, Packing};

/// A builder for an image of this machine's architecture, for Linux.
#[derive(Debug, Clone)]
pub struct ImageBuilder {
    name: String,
    layers: Vec<Layer>,
    config: serde_json::Map<String, Value>,
    form: Form,
    /// The architecture, if it is another one.
    architecture: Option<String>,
    /// The same image for other architectures.
    others: Vec<ImageBuilder>,
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
            form: Form::default(),
            architecture: None,
            others: Vec::new(),
        }
    }

    /// Adds a layer on top.
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    /// Uses docker's media types in the OCI layout.
    pub fn of_docker(mut self) -> Self {
        self.form = Form::Docker;
        self
    }

    /// Makes it an image for Linux on another architecture, such as `s390x`.
    pub fn for_architecture(mut self, architecture: &str) -> Self {
        self.architecture = Some(architecture.to_owned());
        self
    }

    /// Puts an image for another architecture in front of this one. The name then refers to an index; docker archives do not
    /// support that.
    pub fn after(mut self, other: ImageBuilder) -> Self {
        self.others.push(other);
        self
    }

    fn set(mut self, key: &str, value: Value) -> Self {
        self.config.insert(key.to_owned(), value);
        self
    }

    /// The image's entrypoint.
    pub fn entrypoint<S: Into<String>>(self, words: impl IntoIterator<Item = S>) -> Self {
        self.set("Entrypoint", words.into_iter().map(Into::into).collect::<Vec<String>>().into())
    }

    /// The image's command.
    pub fn cmd<S: Into<String>>(self, words: impl IntoIterator<Item = S>) -> Self {
        self.set("Cmd", words.into_iter().map(Into::into).collect::<Vec<String>>().into())
    }

    /// The environment as `KEY=value`, replacing the default PATH.
    pub fn env<S: Into<String>>(self, entries: impl IntoIterator<Item = S>) -> Self {
        self.set("Env", entries.into_iter().map(Into::into).collect::<Vec<String>>().into())
    }

    /// `user`, `uid`, `user:group` or `uid:gid`.
    pub fn user(self, user: &str) -> Self {
        self.set("User", user.into())
    }

    /// The working directory.
    pub fn working_dir(self, path: &str) -> Self {
        self.set("WorkingDir", path.into())
    }

    /// The stop signal.
    pub fn stop_signal(self, name: &str) -> Self {
        self.set("StopSignal", name.into())
    }

    /// The paths of volumes.
    pub fn volumes<'a>(self, paths: impl IntoIterator<Item = &'a str>) -> Self {
        let paths: serde_json::Map<String, Value> =
            paths.into_iter().map(|path| (path.to_owned(), json!({}))).collect();
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
        fs::write(path, tar_of(&form::layout(self)?)?)
    }

    /// Writes an OCI layout to the directory `path`, which it creates.
    ///
    /// # Errors
    /// As [`ImageBuilder::write_docker`].
    pub fn write_oci_layout(&self, path: &Path) -> io::Result<()> {
        for (name, bytes) in form::layout(self)? {
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
        let diff_ids: Vec<String> =
            layers.iter().map(|layer| format!("sha256:{}", hex(layer))).collect();
        Ok(serde_json::to_vec(&json!({
            "architecture": self.architecture(),
            "os": "linux",
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }))?)
    }

    fn architecture(&self) -> &str {
        self.architecture.as_deref().unwrap_or(architecture())
    }
}

fn tar_of(members: &BTreeMap<String, Vec<u8>>) -> io::Result<Vec<u8>> {
    let files = members.iter().map(|(name, bytes)| (name.as_str(), bytes));
    files.fold(Layer::new(), |layer, (name, bytes)| layer.file(name, 0o644, bytes.clone())).tar()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// This machine's architecture, as named in image configurations.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use image::{ImageOptions, ImageStore, Rootfs};

    use super::*;

    /// An image store in `root`, and the directories of the image's unpacked layers.
    fn pulled(path: PathBuf, root: &Path) -> (ImageStore, Vec<PathBuf>) {
        let options = ImageOptions { archives: vec![path], ..ImageOptions::new(root) };
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
            entries: [Layer::new().file("var/y", 0o644, "y").entries, above.entries].concat(),
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
            let (store, lower) =
                pulled(dir.path().join(form), &dir.path().join(format!("store-{form}")));
            assert_eq!(fs::read_to_string(lower[1].join("etc/name")).unwrap(), "it", "{form}");
            assert_eq!(fs::read_link(lower[0].join("etc/link")).unwrap(), PathBuf::from("name"));
            assert_eq!(fs::read_to_string(lower[0].join("var/x")).unwrap(), "y");
            let record = store.status("example.com/it:1").unwrap();
            let seen = (record.config.user.as_str(), &record.config.volumes[..]);
            assert_eq!(seen, ("7:8", &["/data".to_owned()][..]));
            configs.push((record.id, record.config));
        }
        assert!(configs.windows(2).all(|pair| pair[0] == pair[1]), "{configs:?}");
    }

    #[test]
    fn host_program_includes_shared_libraries() {
        let dir = tempfile::tempdir().unwrap();
        let layer = Layer::new().host_program("/bin/sh").unwrap();
        let path = dir.path().join("it.tar");
        ImageBuilder::new("example.com/it:1").layer(layer).write_oci(&path).unwrap();
        let (_store, lower) = pulled(path, &dir.path().join("store"));
        let loader = |root: &Path| fs::read_dir(root).unwrap().count();
        assert!(lower[0].join("bin/sh").is_file());
        assert!(loader(&lower[0]) > 1, "no libraries beside bin");
    }
}
