//! Unpacks an archive, compressed or not, to files whose names do not come from the archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};
use std::path::{Component, Path, PathBuf};

use flate2::read::MultiGzDecoder;
use tar::EntryType;

/// Unpacks an archive; links are resolved within it.
pub(super) fn unpack(path: &Path, staging: &Path) -> io::Result<HashMap<String, PathBuf>> {
    let mut file = File::open(path)?;
    let mut magic = [0; 2];
    let length = file.read(&mut magic)?;
    file.rewind()?;
    let reader: Box<dyn Read> = if magic.get(..length) == Some(&[0x1f, 0x8b]) {
        Box::new(MultiGzDecoder::new(BufReader::new(file)))
    } else {
        Box::new(BufReader::new(file))
    };
    let mut archive = tar::Archive::new(reader);
    let (mut members, mut links) = (HashMap::new(), Vec::new());
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = normal(&entry.path()?);
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let place = staging.join(members.len().to_string());
                if members.contains_key(&name) {
                    let twice = format!("{name:?} appears twice");
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, twice));
                }
                io::copy(&mut entry, &mut File::create_new(&place)?)?;
                members.insert(name, place);
            }
            EntryType::Symlink => {
                let target = entry.link_name()?.unwrap_or_default().into_owned();
                let beside = Path::new(&name).parent().unwrap_or(Path::new(""));
                links.push((name.clone(), normal(&beside.join(target))));
            }
            EntryType::Link => {
                let target = entry.link_name()?.unwrap_or_default().into_owned();
                links.push((name, normal(&target)));
            }
            EntryType::Char
            | EntryType::Block
            | EntryType::Directory
            | EntryType::Fifo
            | EntryType::GNULongName
            | EntryType::GNULongLink
            | EntryType::XGlobalHeader
            | EntryType::XHeader
            | EntryType::__Nonexhaustive(_) => {}
        }
    }
    for (name, target) in links {
        if let Some(place) = members.get(&target).cloned() {
            members.insert(name, place);
        }
    }
    Ok(members)
}

/// A path within an archive without `.` and `..`.
pub(super) fn normal(path: &Path) -> String {
    let mut words: Vec<String> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(word) => words.push(word.to_string_lossy().into_owned()),
            Component::ParentDir => drop(words.pop()),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    words.join("/")
}
