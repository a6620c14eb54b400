//! The forms of layers that other builders write: how containerd and docker unpack each, and how crib does.
//!
//! The results of the others were observed: containerd's with `archive.Apply` of containerd 2.1 with its
//! whiteouts of overlayfs, docker's with `chrootarchive.ApplyLayer` of moby/go-archive 0.3, both as root. In a
//! user namespace both skip device nodes.

mod table;

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use super::*;
use table::rows;

/// The result of a form: a [`listing`], or `None` if the layer is refused.
type Seen = Option<&'static str>;

const REFUSED: Seen = None;

struct Row {
    form: &'static str,
    /// Lowest first; the listing shows the topmost one.
    layers: Vec<Tar>,
    containerd: Seen,
    docker: Seen,
    crib: Seen,
    /// The result where device nodes cannot be created, if it differs.
    crib_without_nodes: Seen,
}

/// A form that crib unpacks like containerd.
fn row<const N: usize>(
    form: &'static str,
    layers: [Tar; N],
    containerd: Seen,
    docker: Seen,
) -> Row {
    Row {
        form,
        layers: layers.into(),
        containerd,
        docker,
        crib: containerd,
        crib_without_nodes: containerd,
    }
}

impl Row {
    /// Adds crib's result for a form that it unpacks differently from containerd.
    fn but(self, crib: Seen, reason: &str) -> Self {
        assert_ne!(crib, self.containerd, "{}: {reason}", self.form);
        Self { crib, crib_without_nodes: crib, ..self }
    }

    fn without_nodes(self, crib: Seen) -> Self {
        Self { crib_without_nodes: crib, ..self }
    }
}

/// A form with the same result in all three.
fn all<const N: usize>(form: &'static str, layers: [Tar; N], seen: Seen) -> Row {
    row(form, layers, seen, seen)
}

/// The contents of a directory, one word each, sorted by name: `d/`, `f=content`, `l->target`, `p|`, `n(c1:3)`,
/// with `#2` for two names.
fn listing(root: &std::path::Path) -> String {
    let mut words = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes();
            let stat = fs::symlink_metadata(&path).unwrap();
            let mut word = name.escape_ascii().to_string();
            let (device, kind) = (stat.rdev(), stat.file_type());
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            if kind.is_dir() {
                word.push('/');
                open.push(path);
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                write!(word, "->{}", target.display()).unwrap();
            } else if kind.is_fifo() {
                word.push('|');
            } else if kind.is_char_device() {
                write!(word, "(c{major}:{minor})").unwrap();
            } else if kind.is_block_device() {
                write!(word, "(b{major}:{minor})").unwrap();
            } else {
                write!(word, "={}", content(&path, &stat)).unwrap();
            }
            if !stat.is_dir() && stat.nlink() > 1 {
                write!(word, "#{}", stat.nlink()).unwrap();
            }
            words.push(word);
        }
    }
    words.sort();
    words.join(" ")
}

fn content(path: &std::path::Path, stat: &fs::Metadata) -> String {
    let text = String::from_utf8(fs::read(path).unwrap()).unwrap();
    if text.len() < 20 {
        return text;
    }
    let (first, rest) = text.split_at(5);
    let (middle, last) = rest.split_at(rest.len() - 5);
    assert!(middle.bytes().all(|byte| byte == 0));
    let holes = if stat.blocks() * 512 < stat.len() { "(holes)" } else { "" };
    format!("{}:{first}..{last}{holes}", stat.len())
}

fn check(nodes: bool) {
    let mut wrong = String::new();
    for row in rows() {
        let mut pile = Pile::new();
        pile.style.nodes &= nodes;
        let want = if pile.style.nodes { row.crib } else { row.crib_without_nodes };
        let mut last = Ok(PathBuf::new());
        for layer in row.layers {
            last = pile.push(layer);
        }
        let got = match &last {
            Ok(root) => Some(listing(root)),
            // A failure of the machine is not a refusal.
            Err(ContentError::Io { source, .. }) => Some(format!("trouble: {source}")),
            Err(_) => None,
        };
        if got.as_deref() != want {
            let form = row.form;
            writeln!(wrong, "{form}: {got:?} ({last:?}), expected {want:?}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn unpack_handles_every_form_of_the_table() {
    check(true);
}

#[test]
fn unpack_handles_every_form_without_device_nodes() {
    check(false);
}

#[test]
fn unpack_rejects_forms_with_stated_reason() {
    let refused: Vec<&str> = rows()
        .iter()
        .filter(|row| row.crib.is_none() && row.containerd.is_some() && row.docker.is_some())
        .map(|row| row.form)
        .collect();
    assert_eq!(
        refused,
        [
            "NUL in a long name",
            "device number beyond Linux's",
            "name below a whiteout",
            "attribute of overlayfs",
        ]
    );
    // crib refuses every form that both others refuse.
    for row in rows() {
        if row.containerd.is_none() && row.docker.is_none() {
            assert_eq!(row.crib, None, "{}", row.form);
        }
    }
}
