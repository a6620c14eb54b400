//! Mounts layers with the kernel's overlayfs, to check that it reads our whiteouts as intended.

use std::io::Write as _;
use std::process::Command;

use super::*;

/// The output of a shell script in its own mount namespace, with the layers mounted read-only on `$1`. `None`, with a message on
/// standard error, if this machine does not allow that.
fn in_overlay(pile: &Pile, test: &str, script: &str) -> Option<String> {
    let mount = pile.dir.path().join("mount");
    fs::create_dir_all(&mount).unwrap();
    let lower: Vec<&str> = pile.layers.iter().map(|path| path.to_str().unwrap()).collect();
    let user = if pile.style.prefix == "user.overlay." { ",userxattr" } else { "" };
    let options = format!("lowerdir={}{user}", lower.join(":"));
    let unshare = |arguments: &[&str]| {
        let own: &[&str] =
            if rustix::process::geteuid().is_root() { &["-m"] } else { &["-r", "-m"] };
        Command::new("unshare").args(own).args(arguments).output().unwrap()
    };
    let output = unshare(&["true"]);
    if !output.status.success() {
        return skip(test, &String::from_utf8_lossy(&output.stderr));
    }
    let plain = "mount -t overlay overlay -o \"$1\" \"$2\"";
    let empty = ["e1", "e2"].map(|name| pile.dir.path().join(name).display().to_string());
    for path in &empty {
        fs::create_dir_all(path).unwrap();
    }
    let trivial = format!("lowerdir={}:{}{user}", empty[0], empty[1]);
    let output = unshare(&["sh", "-c", plain, "sh", &trivial, mount.to_str().unwrap()]);
    if !output.status.success() {
        return skip(test, &String::from_utf8_lossy(&output.stderr));
    }
    let whole = format!("set -e; {plain}; cd \"$2\"; {script}");
    let output = unshare(&["sh", "-c", &whole, "sh", &options, mount.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

fn skip(test: &str, reason: &str) -> Option<String> {
    let _ = writeln!(
        std::io::LineWriter::new(std::io::stderr()),
        "skipped: {test}: needs Overlay: {}",
        reason.trim()
    );
    None
}

/// Three layers that hide, replace and restore names.
fn build(pile: &mut Pile) {
    let base = Tar::new()
        .file("a/gone", "")
        .file("a/stays", "1")
        .file("b/old", "")
        .file("c/d/old", "")
        .symlink("s", "a");
    pile.push(base).unwrap();
    let middle = Tar::new()
        .file("a/.wh.gone", "")
        .file("b/.wh..wh..opq", "")
        .file("b/new", "")
        .file("c/.wh.d", "")
        .file("s/through", "");
    pile.push(middle).unwrap();
    pile.push(Tar::new().file("c/d/new", "").file("a/gone/again", "")).unwrap();
}

const LIST: &str = "find . -mindepth 1 | sort | tr '\\n' ' '";
const SEEN: &str =
    "./a ./a/gone ./a/gone/again ./a/stays ./a/through ./b ./b/new ./c ./c/d ./c/d/new ./s ";

#[test]
fn overlay_mount_shows_layers() {
    let mut pile = Pile::new();
    build(&mut pile);
    if let Some(seen) = in_overlay(&pile, "overlay_mount_shows_layers", LIST) {
        assert_eq!(seen, SEEN);
    }
}

#[test]
fn overlay_mount_honours_xattr_whiteouts() {
    let test = "overlay_mount_honours_xattr_whiteouts";
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|n| n.parse::<u32>().unwrap_or(0));
    if (numbers.next(), numbers.next()) < (Some(6), Some(7)) {
        skip(test, &format!("Linux {} does not know them, 6.7 does", release.trim()));
        return;
    }
    let mut pile = Pile::new();
    pile.style = Style { prefix: "user.overlay.", devices: false, ..pile.style.clone() };
    build(&mut pile);
    let devices = Command::new("find")
        .arg(pile.dir.path().join("root"))
        .args(["-type", "c"])
        .output()
        .unwrap();
    assert_eq!(devices.stdout, b"", "whiteouts that are devices");
    if let Some(seen) = in_overlay(&pile, test, LIST) {
        assert_eq!(seen, SEEN);
    }
}

#[test]
fn unpack_omits_whiteout_markers() {
    let mut pile = Pile::new();
    build(&mut pile);
    let shown = Command::new("find")
        .arg(pile.dir.path().join("root"))
        .args(["-name", ".wh*"])
        .output()
        .unwrap();
    assert_eq!(shown.stdout, b"");
}

#[test]
fn copy_equals_overlay_mount() {
    let mut pile = Pile::new();
    build(&mut pile);
    let more = Tar::new()
        .pax(&[("SCHILY.xattr.user.colour", b"blue")])
        .member(EntryType::Regular, "x/setuid", "", b"#!", |h| h.set_mode(0o4711))
        .hard_link("x/hard", "x/setuid")
        .symlink("x/soft", "/etc/passwd")
        .member(EntryType::Directory, "y", "", b"", |h| h.set_mode(0o1555))
        .file("y/f", "")
        .member(EntryType::Fifo, "x/fifo", "", b"", |_| {})
        .member(EntryType::Fifo, "x/pipe", "", b"", |_| {})
        .device(EntryType::Char, "x/null", 1, 3)
        .pax(&[
            ("GNU.sparse.map", b"100000,4"),
            ("GNU.sparse.numblocks", b"1"),
            ("GNU.sparse.size", b"1000000"),
        ])
        .file("x/sparse", "data");
    pile.push(more).unwrap();
    pile.push(Tar::new().file("y/g", "").file("x/.wh.fifo", "")).unwrap();
    let into = pile.dir.path().join("root/copy");
    crate::flatten::copy(&pile.layers, &into, &pile.style).unwrap();
    let sparse = fs::metadata(into.join("x/sparse")).unwrap();
    assert_eq!(sparse.len(), 1_000_000);
    assert!(sparse.blocks() * 512 < 500_000, "{} blocks", sparse.blocks());
    assert_eq!(&fs::read(into.join("x/sparse")).unwrap()[100_000..100_004], b"data");
    // In a user namespace with one id, every owner appears as its root.
    let owner = if rustix::process::geteuid().is_root() { "%U:%G" } else { "" };
    let script = format!(
        "find . -not -type d -printf '%p %m {owner} %n %s %T@ %l\\n' | sort; find . -type d -printf '%p %m {owner}\\n' | sort"
    );
    let output = Command::new("sh").args(["-c", &script]).current_dir(&into).output().unwrap();
    let copied = String::from_utf8(output.stdout).unwrap();
    assert!(copied.contains("4711") && copied.contains("1555"), "{copied}");
    let mut value = [0u8; 8];
    let n = rustix::fs::getxattr(into.join("x/hard"), "user.colour", &mut value).unwrap();
    assert_eq!(&value[..n], b"blue");
    assert_eq!(
        fs::metadata(into.join("x/hard")).unwrap().ino(),
        fs::metadata(into.join("x/setuid")).unwrap().ino()
    );
    if let Some(shown) = in_overlay(&pile, "copy_equals_overlay_mount", &script) {
        assert_eq!(shown, copied);
    }
}
