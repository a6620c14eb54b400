//! The fuzz targets of this package: the targets of `launch` and `checkpoint`, and of the modules with their own `fuzz`.
#![allow(unreachable_pub, reason = "public for the program in tests/fuzz, private in a test")]
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use std::fs;
use std::path::Path;

use fuzz_target::{Target, bytes, text};
use serde_json::Value;

use crate::checkpoint::{Archive, CRIB, CheckpointRecord, IMAGES, Writer};
use crate::launch::selinux::{Label, Policy};

/// Every target of this package.
#[must_use]
pub fn targets() -> Vec<Target> {
    [
        crate::cdi::fuzz::TARGETS,
        CHECKPOINT,
        LAUNCH,
        crate::services::fuzz::TARGETS,
        crate::stats::fuzz::TARGETS,
        crate::streaming::fuzz::TARGETS,
    ]
    .concat()
}

#[test]
fn fuzz_targets_pass_on_corpus_and_mutations() {
    fuzz_target::check(&targets());
}

const LAUNCH: &[Target] = &[Target::new("selinux_contexts", selinux, contexts)];

/// A parsed label displays as its input.
fn selinux(data: &[u8]) {
    let text = text(data);
    let _ = Policy::read(text);
    for line in text.lines() {
        if let Some(label) = Label::parse(line) {
            assert_eq!(label.to_string(), line);
        }
    }
}

fn contexts() -> Vec<Vec<u8>> {
    bytes(&[
        "process = \"system_u:system_r:container_t:s0\"\nfile = \"system_u:object_r:container_file_t:s0\"\n",
        "system_u:system_r:container_t:s0:c1,c2\n",
    ])
}

const CHECKPOINT: &[Target] =
    &[Target::new("checkpoint_archive", archive, archive_seeds).slow(200)];

/// Extracted files are in the given directory, and none is longer than the archive.
fn archive(data: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.tar");
    fs::write(&path, data).unwrap();
    let Ok(archive) = Archive::open(&path) else {
        return;
    };
    let _ = archive.document::<CheckpointRecord>(CRIB);
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

fn archive_seeds() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let images = directory.path().join(IMAGES);
    fs::create_dir(&images).unwrap();
    fs::write(images.join("core-1.img"), "image").unwrap();
    let place = directory.path().join("it.tar");
    write_archive(&place, &images).unwrap();
    vec![fs::read(&place).unwrap()]
}

fn write_archive(place: &Path, images: &Path) -> std::io::Result<()> {
    let mut writer = Writer::new(place)?;
    writer.add(images, IMAGES)?;
    writer.add_document(CRIB, &serde_json::json!({"version": 1}))?;
    writer.finish()
}
