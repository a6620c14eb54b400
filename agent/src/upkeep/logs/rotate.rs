//! Removes and compresses the rotated files of a log.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::plan::{self, COMPRESSED, UNFINISHED};

/// Makes room for one more rotated file of `log`.
pub(super) fn make_room(log: &Path, max_files: usize) -> io::Result<()> {
    let (Some(directory), Some(name)) =
        (log.parent(), log.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(());
    };
    let prefix = format!("{name}.");
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        if let Ok(name) = entry?.file_name().into_string()
            && name.starts_with(&prefix)
        {
            names.push(name);
        }
    }
    let plan = plan::make_room(names, max_files);
    for name in plan.remove {
        fs::remove_file(directory.join(name))?;
    }
    for name in plan.compress {
        compress(directory, &name)?;
    }
    Ok(())
}

/// Replaces a file by `NAME.gz` with the same mode. It is written under another name, so that `NAME.gz` is always whole.
fn compress(directory: &Path, name: &str) -> io::Result<()> {
    let (from, unfinished) = (directory.join(name), directory.join(format!("{name}{UNFINISHED}")));
    let mut log = OpenOptions::new().read(true).open(&from)?;
    let written = write_compressed(&mut log, &unfinished);
    if written.is_err() {
        // What is left is removed by the next rotation if not now.
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    fs::rename(&unfinished, directory.join(format!("{name}{COMPRESSED}")))?;
    fs::remove_file(from)
}

fn write_compressed(log: &mut File, to: &Path) -> io::Result<()> {
    let out = OpenOptions::new().write(true).create(true).truncate(true).open(to)?;
    out.set_permissions(log.metadata()?.permissions())?;
    let mut encoder = GzEncoder::new(out, Compression::default());
    io::copy(log, &mut encoder)?;
    encoder.finish()?;
    Ok(())
}
