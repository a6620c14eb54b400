//! The table: each form, with the results of containerd, docker, and crib if it differs.

use super::*;

fn names() -> Vec<Row> {
    let tar = Tar::new;
    vec![
        all("absolute name (ko)", [tar().file("/a", "x")], Some("a=x")),
        all("root as / (kaniko)", [tar().directory("/").file("/a", "x")], Some("a=x")),
        all("root as ./", [tar().directory("./").file("./a", "x")], Some("a=x")),
        all("root without a name", [tar().directory("").file("a", "x")], Some("a=x")),
        all("several slashes", [tar().file("//a//b", "x")], Some("a/ a/b=x")),
        all("inner ..", [tar().file("a/../b", "x")], Some("b=x")),
        all(
            "inner .. after a link",
            [tar().directory("d/e").symlink("l", "d/e").file("l/../b", "x")],
            Some("b=x d/ d/e/ l->d/e"),
        ),
        all("root as a/..", [tar().directory("a/..").file("b", "x")], Some("b=x")),
        all("line break", [tar().file("a\nb", "x")], Some("a\\nb=x")),
        all(
            "bytes that are no text",
            [tar().pax(&[("path", b"\xff\x01")]).file("a", "x")],
            Some("\\xff\\x01=x"),
        ),
        all(
            "records without a value",
            [tar().pax(&[("path", b""), ("uid", b"")]).file("a", "x")],
            Some("a=x"),
        ),
        all("negative owner", [tar().pax(&[("uid", b"-2")]).file("a", "x")], Some("a=x")),
        all("component of 256 bytes", [tar().file(&"n".repeat(256), "x")], REFUSED),
        row("climbing name", [tar().file("../a", "x")], Some("a=x"), REFUSED)
            .but(REFUSED, "as docker: no builder writes it"),
        row("inner climbing name", [tar().file("a/../../b", "x")], Some("b=x"), REFUSED)
            .but(REFUSED, "as docker: no builder writes it"),
        all("NUL in a long name", [tar().file("a\0b", "x")], Some("a=x"))
            .but(REFUSED, "what is behind the NUL is there to mislead"),
        all("NUL in a record", [tar().pax(&[("path", b"a\0b")]).file("a", "x")], REFUSED),
    ]
}

fn links() -> Vec<Row> {
    let tar = Tar::new;
    vec![
        all("climbing symbolic link", [tar().symlink("l", "../../etc")], Some("l->../../etc")),
        all("absolute symbolic link", [tar().symlink("l", "/etc")], Some("l->/etc")),
        row(
            "name below a climbing link",
            [tar().symlink("l", "../../t").file("l/f", "x")],
            Some("l->../../t t/ t/f=x"),
            REFUSED,
        ),
        all(
            "name below an absolute link",
            [tar().symlink("l", "/t").file("l/f", "x")],
            Some("l->/t t/ t/f=x"),
        ),
        all(
            "name below a loop of links",
            [tar().symlink("a", "b").symlink("b", "a").file("a/f", "x")],
            REFUSED,
        ),
        all("symbolic link to nothing", [tar().symlink("l", "")], REFUSED),
        all(
            "absolute hard-link target",
            [tar().file("a", "x").hard_link("l", "/a")],
            Some("a=x#2 l=x#2"),
        ),
        all(
            "hard-link target with ./",
            [tar().file("a", "x").hard_link("l", "./a")],
            Some("a=x#2 l=x#2"),
        ),
        all(
            "hard-link target with inner ..",
            [tar().file("a", "x").hard_link("l", "d/../a")],
            Some("a=x#2 l=x#2"),
        ),
        all(
            "hard link through an absolute link",
            [tar().file("e/a", "x").symlink("d", "/e").hard_link("l", "d/a")],
            Some("d->/e e/ e/a=x#2 l=x#2"),
        ),
        all(
            "hard link to a symbolic link",
            [tar().symlink("a", "/etc/passwd").hard_link("l", "a")],
            Some("a->/etc/passwd#2 l->/etc/passwd#2"),
        ),
        all(
            "hard link to a FIFO",
            [tar().member(EntryType::Fifo, "a", "", b"", |_| {}).hard_link("l", "a")],
            Some("a|#2 l|#2"),
        ),
        all("hard link to nothing", [tar().hard_link("l", "a")], REFUSED),
        all(
            "hard link to a file of the host",
            [tar().symlink("d", "/etc").hard_link("l", "d/passwd")],
            REFUSED,
        ),
        all("hard link to a directory", [tar().directory("a").hard_link("l", "a")], REFUSED),
        all("hard link to itself", [tar().file("a", "x").hard_link("a", "./a")], REFUSED),
        row(
            "climbing hard-link target",
            [tar().file("a", "x").hard_link("l", "../a")],
            Some("a=x#2 l=x#2"),
            REFUSED,
        )
        .but(REFUSED, "as docker: no builder writes it"),
        row(
            "hard link to a file of a layer below",
            [tar().file("a", "x"), tar().hard_link("l", "a")],
            REFUSED,
            Some("a=x#2 l=x#2"),
        ),
    ]
}

fn nodes() -> Vec<Row> {
    let tar = Tar::new;
    let fifo = |tar: Tar, name| tar.member(EntryType::Fifo, name, "", b"", |_| {});
    vec![
        all("FIFO", [fifo(tar(), "p")], Some("p|")),
        all("character device", [tar().device(EntryType::Char, "null", 1, 3)], Some("null(c1:3)"))
            .without_nodes(Some("")),
        all("block device", [tar().device(EntryType::Block, "sda", 8, 0)], Some("sda(b8:0)"))
            .without_nodes(Some("")),
        all("block device 0:0", [tar().device(EntryType::Block, "z", 0, 0)], Some("z(b0:0)"))
            .without_nodes(Some("")),
        all(
            "device in place of a file",
            [tar().file("null", "x").device(EntryType::Char, "null", 1, 3)],
            Some("null(c1:3)"),
        )
        // As in containerd, which skips the device before it looks at the existing entry.
        .without_nodes(Some("null=x")),
        all(
            "hard link to a device",
            [tar().device(EntryType::Char, "a", 1, 3).hard_link("l", "a")],
            Some("a(c1:3)#2 l(c1:3)#2"),
        )
        // Both refuse it in a user namespace, where the device was skipped.
        .without_nodes(Some("")),
        all(
            "device number beyond Linux's",
            [tar().device(EntryType::Char, "a", 5000, 1)],
            Some("a(c904:1)"),
        )
        .but(REFUSED, "another device's number would be left of it")
        .without_nodes(Some("")),
    ]
}

fn changed_types() -> Vec<Row> {
    let tar = Tar::new;
    vec![
        all(
            "file, then directory",
            [tar().file("a", "x").directory("a").file("a/b", "y")],
            Some("a/ a/b=y"),
        ),
        all("directory, then file", [tar().file("a/b/c", "y").file("a", "x")], Some("a=x")),
        all(
            "symbolic link, then directory",
            [tar().directory("t").symlink("a", "t").directory("a").file("a/b", "y")],
            Some("a/ a/b=y t/"),
        ),
        all(
            "symbolic link, then file",
            [tar().file("t", "1").symlink("a", "t").file("a", "y")],
            Some("a=y t=1"),
        ),
        all(
            "directory, then symbolic link",
            [tar().file("a/b", "").symlink("a", "t")],
            Some("a->t"),
        ),
        all(
            "directory, then hard link",
            [tar().file("t", "x").file("a/b", "").hard_link("a", "t")],
            Some("a=x#2 t=x#2"),
        ),
        all(
            "FIFO, then file",
            [tar().member(EntryType::Fifo, "a", "", b"", |_| {}).file("a", "y")],
            Some("a=y"),
        ),
        all(
            "directory, file, directory",
            [tar().file("a/old", "1").file("a", "2").file("t", "").directory("a").file("a/b", "3")],
            Some("a/ a/b=3 t="),
        ),
        all("name below a file of its layer", [tar().file("a", "x").file("a/b", "y")], REFUSED),
        all(
            "directory over a file below",
            [tar().file("a", "x"), tar().directory("a").file("a/b", "y")],
            Some("a/ a/b=y"),
        ),
        row(
            "name below a file below",
            [tar().file("a", "x"), tar().file("a/b", "y")],
            Some("a/ a/b=y"),
            REFUSED,
        ),
        all(
            "file over a directory below",
            [tar().file("a/b", "x"), tar().file("a", "y")],
            Some("a=y"),
        ),
        all(
            "symbolic link over a directory below",
            [tar().file("a/b", "x"), tar().symlink("a", "t")],
            Some("a->t"),
        ),
        all(
            "directory over a symbolic link below",
            [tar().directory("t").symlink("a", "t"), tar().directory("a").file("a/b", "y")],
            Some("a/ a/b=y"),
        ),
        row(
            "name below a symbolic link below",
            [tar().directory("t").symlink("a", "t"), tar().file("a/b", "y")],
            Some("a/ a/b=y"),
            Some("a->t t/ t/b=y"),
        )
        .but(
            Some("t/ t/b=y"),
            "as docker, and as containerd without overlayfs: /bin stays a link to usr/bin",
        ),
    ]
}

const DATA: &[u8] = b"HEADETAILS";

fn sparse_files() -> Vec<Row> {
    let tar = Tar::new;
    let whole = Some("s=100005:HEADE..TAILS(holes)");
    let mut in_body = b"2\n0\n5\n100000\n5\n".to_vec();
    in_body.resize(512, 0);
    in_body.extend(DATA);
    let version_1_0: [(&str, &[u8]); 4] = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"s"),
        ("GNU.sparse.realsize", b"100005"),
    ];
    let version_0_1 = |map: &'static [u8]| -> [(&str, &[u8]); 4] {
        [
            ("GNU.sparse.size", b"100005"),
            ("GNU.sparse.numblocks", b"2"),
            ("GNU.sparse.name", b"s"),
            ("GNU.sparse.map", map),
        ]
    };
    let version_0_0: [(&str, &[u8]); 6] = [
        ("GNU.sparse.size", b"100005"),
        ("GNU.sparse.numblocks", b"2"),
        ("GNU.sparse.offset", b"0"),
        ("GNU.sparse.numbytes", b"5"),
        ("GNU.sparse.offset", b"100000"),
        ("GNU.sparse.numbytes", b"5"),
    ];
    let unknown: [(&str, &[u8]); 2] = [("GNU.sparse.major", b"2"), ("GNU.sparse.minor", b"0")];
    vec![
        all(
            "sparse file, PAX 1.0",
            [tar().pax(&version_1_0).file("GNUSparseFile.1/s", &in_body).file("t", "")],
            Some("s=100005:HEADE..TAILS(holes) t="),
        ),
        all(
            "sparse file, PAX 0.1",
            [tar().pax(&version_0_1(b"0,5,100000,5")).file("x", DATA)],
            whole,
        ),
        all("sparse file, PAX 0.0", [tar().pax(&version_0_0).file("s", DATA)], whole),
        all(
            "sparse file of no known version",
            [tar().pax(&unknown).file("x", DATA)],
            Some("x=HEADETAILS"),
        ),
        all(
            "sparse file whose parts overlap",
            [tar().pax(&version_0_1(b"0,5,3,5")).file("x", DATA)],
            REFUSED,
        ),
        all(
            "sparse file, GNU's old form",
            [tar().member(EntryType::GNUSparse, "s", "", DATA, |_| {})],
            REFUSED,
        ),
    ]
}

fn marks() -> Vec<Row> {
    let tar = Tar::new;
    let opaque = || tar().pax(&[("SCHILY.xattr.trusted.overlay.opaque", b"y")]).directory("a");
    vec![
        all("whiteout of nothing", [tar().file(".wh.", "")], REFUSED),
        row("whiteout of .", [tar().file("a/.wh..", "")], REFUSED, Some("")),
        all("whiteout of ..", [tar().file("a/.wh...", "")], REFUSED),
        all("name below a whiteout", [tar().file(".wh.a/b", "x")], Some(".wh.a/ .wh.a/b=x"))
            .but(REFUSED, "no container may see a name that hides others"),
        all("attribute of overlayfs", [opaque()], Some("a/"))
            .but(REFUSED, "docker sets it, containerd leaves it out: an attack"),
        all(
            "unknown type of member",
            [tar().member(EntryType::new(b'V'), "a", "", b"", |_| {})],
            REFUSED,
        ),
    ]
}

pub(super) fn rows() -> Vec<Row> {
    let tables = [names(), links(), nodes(), changed_types(), sparse_files(), marks()];
    tables.into_iter().flatten().collect()
}
