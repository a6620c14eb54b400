//! Builds archives for tests, including malformed ones that no tool would write.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use tar::EntryType;

use crate::formats::digest::Digest;
use crate::formats::platform::architecture;

/// A tar stream under construction. Names are written without checks.
#[derive(Clone, Default)]
pub struct Tar(Vec<u8>);

impl Tar {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// A member of any kind; `change` can edit the header before its checksum is set.
    pub fn member(
        mut self,
        kind: EntryType,
        path: &str,
        link: &str,
        body: &[u8],
        change: impl FnOnce(&mut tar::Header),
    ) -> Self {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_mtime(1_000_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(body.len() as u64);
        for (code, text, limit) in
            [(EntryType::GNULongName, path, 100), (EntryType::GNULongLink, link, 100)]
        {
            if text.len() >= limit || text.contains('\0') {
                let mut long = tar::Header::new_gnu();
                long.set_entry_type(code);
                long.set_size(text.len() as u64 + 1);
                long.set_cksum();
                self.block(long.as_bytes());
                self.block(format!("{text}\0").as_bytes());
            }
        }
        let fields = header.as_old_mut();
        let path = &path.as_bytes()[..path.len().min(99)];
        let link = &link.as_bytes()[..link.len().min(99)];
        fields.name[..path.len()].copy_from_slice(path);
        fields.linkname[..link.len()].copy_from_slice(link);
        change(&mut header);
        header.set_cksum();
        self.block(header.as_bytes());
        self.block(body);
        self
    }

    fn block(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    /// A regular file.
    pub fn file(self, path: &str, body: impl AsRef<[u8]>) -> Self {
        self.member(EntryType::Regular, path, "", body.as_ref(), |_| {})
    }

    /// A directory.
    pub fn directory(self, path: &str) -> Self {
        self.member(EntryType::Directory, path, "", b"", |_| {})
    }

    /// A symbolic link.
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.member(EntryType::Symlink, path, target, b"", |_| {})
    }

    /// A hard link.
    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.member(EntryType::Link, path, target, b"", |_| {})
    }

    /// A device node.
    pub fn device(self, kind: EntryType, path: &str, major: u32, minor: u32) -> Self {
        self.member(kind, path, "", b"", |header| {
            header.set_device_major(major).unwrap();
            header.set_device_minor(minor).unwrap();
        })
    }

    /// PAX records for the next member.
    pub fn pax(mut self, records: &[(&str, &[u8])]) -> Self {
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_pax_extensions(records.iter().copied()).unwrap();
        let bytes = builder.into_inner().unwrap();
        self.0.extend(&bytes[..bytes.len() - 1024]);
        self
    }

    /// The stream with its end marker.
    pub fn bytes(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

/// Compresses the bytes.
pub fn gzip(data: &[u8]) -> Vec<u8> {
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    to.write_all(data).unwrap();
    to.finish().unwrap()
}

/// The blobs and documents of an archive, by name.
#[derive(Clone, Default)]
pub struct Members(pub BTreeMap<String, Vec<u8>>);

impl Members {
    /// Adds a blob under its digest and returns its descriptor.
    pub fn blob(&mut self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = Digest::of(bytes);
        self.0.insert(format!("blobs/sha256/{}", digest.hex()), bytes.to_vec());
        json!({"mediaType": media_type, "digest": digest.to_string(), "size": bytes.len()})
    }

    /// Adds a JSON document.
    pub fn document(&mut self, name: &str, value: &Value) {
        self.0.insert(name.to_owned(), serde_json::to_vec(value).unwrap());
    }

    /// All members as a tar stream.
    pub fn tar(&self) -> Vec<u8> {
        self.0.iter().fold(Tar::new(), |tar, (name, bytes)| tar.file(name, bytes)).bytes()
    }

    /// All members as files below `root`.
    pub fn write_directory(&self, root: &Path) {
        for (name, bytes) in &self.0 {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }
}

/// Media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an index.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of a configuration.
pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Media type of a layer.
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The configuration of an image with these layers (uncompressed).
pub fn config(layers: &[Vec<u8>]) -> Value {
    let diff_ids: Vec<String> = layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
    json!({
        "architecture": architecture(), "os": "linux",
        "config": {"Env": ["A=b"], "Entrypoint": ["/bin/x"], "Cmd": ["y"], "User": "1000:5"},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
}

/// Adds an image to an OCI layout; returns the descriptor of its manifest.
pub fn oci_image(members: &mut Members, layers: &[Vec<u8>], pack: fn(&[u8]) -> Vec<u8>) -> Value {
    let config = members.blob(CONFIG, &serde_json::to_vec(&config(layers)).unwrap());
    let layers: Vec<Value> = layers.iter().map(|layer| members.blob(LAYER, &pack(layer))).collect();
    let manifest =
        json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
    members.blob(MANIFEST, &serde_json::to_vec(&manifest).unwrap())
}

/// Names a descriptor with OCI's annotation.
pub fn named(mut descriptor: Value, name: &str) -> Value {
    descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    descriptor
}

/// Adds `index.json` over these descriptors.
pub fn index(members: &mut Members, manifests: &[Value]) {
    members.document(
        "index.json",
        &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}),
    );
    members.document("oci-layout", &json!({"imageLayoutVersion": "1.0.0"}));
}

/// An OCI layout with one image.
pub fn oci(name: &str, layers: &[Vec<u8>], pack: fn(&[u8]) -> Vec<u8>) -> Members {
    let mut members = Members::default();
    let manifest = oci_image(&mut members, layers, pack);
    index(&mut members, &[named(manifest, name)]);
    members
}

/// A docker archive with one image, as `docker save` wrote it for years.
pub fn docker(tags: &[&str], layers: &[Vec<u8>]) -> Members {
    let mut members = Members::default();
    let config = serde_json::to_vec(&config(layers)).unwrap();
    let config_name = format!("{}.json", Digest::of(&config).hex());
    members.0.insert(config_name.clone(), config);
    let mut names = Vec::new();
    for (i, layer) in layers.iter().enumerate() {
        names.push(format!("{i}/layer.tar"));
        members.0.insert(names[i].clone(), layer.clone());
    }
    members.document(
        "manifest.json",
        &json!([{"Config": config_name, "RepoTags": tags, "Layers": names}]),
    );
    members
}

/// Whether the tests run in a user namespace (in a rootless container, say).
pub fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    let numbers: Vec<&str> = map.split_whitespace().collect();
    numbers != ["0", "0", "4294967295"]
}

/// Returns the bytes unchanged.
pub fn plain(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}
