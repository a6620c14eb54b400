//! The usage of a layer in which an entry replaces another.

use super::*;

#[test]
fn usage_excludes_replaced_trees() {
    let count = |tar: Tar| {
        let bytes = tar.bytes();
        let pile = Pile::new();
        let into = pile.dir.path().join("root");
        fs::create_dir(&into).unwrap();
        let reader = TarReader::new(Sequential(&bytes[..]), "the layer", 1 << 20);
        let budget = Budget::new(&pile.limits);
        let none: [PathBuf; 0] = [];
        let usage = unpack(reader, &into, &none, &pile.style, &budget).unwrap();
        (usage.file_bytes, usage.inodes)
    };
    let tree = Tar::new().file("a/b/c", "12345").symlink("a/l", "b").directory("a/d");
    assert_eq!(count(tree.clone()), (5, 5));
    assert_eq!(count(tree.clone().file("a", "123")), (3, 1));
    assert_eq!(count(tree.symlink("a", "b").directory("a")), (0, 1));
    assert_eq!(count(Tar::new().file("a", "12345").file("a", "1")), (1, 1));
}
