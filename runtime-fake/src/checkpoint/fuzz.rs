//! Fuzz target: checkpoint archives.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use std::{fs, path::Path};

use fuzz_target::Target;
use serde_json::Value;

use super::{Archive, CRIB, IMAGES, Remade, Writer};

pub(crate) const TARGETS: &[Target] =
    &[Target::new("checkpoint_archive", archive, seeds).slow(200)];

/// Extracted files are in the given directory, and none is longer than the archive.
fn archive(data: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.tar");
    fs::write(&path, data).unwrap();
    let Ok(archive) = Archive::open(&path) else {
        return;
    };
    let _ = archive.document::<Remade>(CRIB);
    let _ = archive.document::<Value>("config.dump");
    let to = directory.path().join("to");
    let _ = archive.extract(IMAGES, &to);
    assert!(fs::read_dir(directory.path()).unwrap().count() <= 2);
    for entry in fs::read_dir(&to).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.file_type().unwrap().is_file());
        assert!(entry.metadata().unwrap().len() <= data.len() as u64);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let images = directory.path().join(IMAGES);
    fs::create_dir(&images).unwrap();
    fs::write(images.join("core-1.img"), "image").unwrap();
    let place = directory.path().join("it.tar");
    write(&place, &images).unwrap();
    vec![fs::read(&place).unwrap()]
}

fn write(place: &Path, images: &Path) -> std::io::Result<()> {
    let mut writer = Writer::new(place)?;
    writer.add(images, IMAGES)?;
    writer.add_document(CRIB, &serde_json::json!({"version": 1}))?;
    writer.finish()
}
