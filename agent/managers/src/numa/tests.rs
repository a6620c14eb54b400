//! Machines of several forms, as directory trees.
#![allow(clippy::unwrap_used)]

use rstest::rstest;

use super::*;

#[path = "../../tests/node/machine.rs"]
mod fixture;

pub(crate) use fixture::machine;

#[test]
fn nodes_have_cores_memory_and_distances() {
    let root = machine(2, 2, 2, 2);
    let nodes = read(root.path());
    let core = |threads: [usize; 2]| Core { socket: 1, threads: threads.to_vec(), cache: None };
    let second = Node {
        id: 1,
        memory: 1 << 30,
        huge_pages: Map::from([(2 << 20, 4)]),
        cores: vec![core([2, 6]), core([3, 7])],
        distances: vec![21, 10],
    };
    assert_eq!((nodes.len(), &nodes[1]), (2, &second));
}

#[rstest]
#[case::shared_by_all(4, &[None, None, None, None])]
#[case::shared_by_two(2, &[Some(0), Some(0), Some(1), Some(1)])]
fn caches_that_some_cores_share_are_found(
    #[case] per_cache: usize,
    #[case] caches: &[Option<usize>],
) {
    let root = machine(1, 4, 2, per_cache);
    let nodes = read(root.path());
    let found: Vec<Option<usize>> = nodes[0].cores.iter().map(|core| core.cache).collect();
    assert_eq!(found, caches);
}

#[test]
fn processors_that_are_offline_do_not_count() {
    let root = machine(1, 2, 2, 2);
    fs::write(root.path().join("sys/devices/system/cpu/online"), "0-2\n").unwrap();
    let nodes = read(root.path());
    let threads: Vec<&[usize]> =
        nodes[0].cores.iter().map(|core| core.threads.as_slice()).collect();
    assert_eq!(threads, [&[0, 2][..], &[1]]);
}

#[test]
fn machine_without_memory_nodes_has_its_sockets() {
    let root = machine(2, 2, 1, 2);
    fs::rename(root.path().join("sys/devices/system/node"), root.path().join("gone")).unwrap();
    let nodes = read(root.path());
    let ids: Vec<usize> = nodes.iter().map(|node| node.id).collect();
    assert_eq!((ids, nodes[1].cores.len()), (vec![0, 1], 2));
}

#[test]
fn own_machine_has_processors() {
    let nodes = read(Path::new("/"));
    assert!(nodes.iter().any(|node| !node.cores.is_empty()), "{nodes:?}");
}
