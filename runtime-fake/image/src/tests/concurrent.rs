//! Concurrent callers.

use super::*;

#[test]
fn concurrent_pulls_import_once() {
    let bench = Bench::new();
    let shared = layers();
    for i in 0..3 {
        let mut own = shared.clone();
        own.push(Tar::new().file("own", [i]).bytes());
        bench.offer(&format!("{i}.tar"), oci(&format!("example.com/app:{i}"), &own, gzip).tar());
    }
    let store = bench.open();
    let layer_inodes = || -> Vec<u64> {
        let entries = fs::read_dir(bench.root().join("layers")).unwrap();
        let mut inodes: Vec<u64> = entries.map(|e| e.unwrap().metadata().unwrap().ino()).collect();
        inodes.sort_unstable();
        inodes
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..12)
            .map(|i| {
                let store = &store;
                scope.spawn(move || store.pull(&format!("example.com/app:{}", i % 3)).unwrap())
            })
            .collect();
        let ids: BTreeSet<ImageId> = all.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(ids.len(), 3);
    });
    assert_eq!((store.list().len(), layer_inodes().len()), (3, 5));
    assert_eq!(fs::read_dir(bench.root().join("tmp")).unwrap().count(), 0);
    let before = layer_inodes();
    store.pull("example.com/app:1").unwrap();
    assert_eq!(layer_inodes(), before);
}

#[test]
fn concurrent_pulls_and_removals_leave_whole_images() {
    let bench = Bench::new();
    for i in 0..2 {
        let own = vec![layers()[0].clone(), Tar::new().file("own", [i]).bytes()];
        bench.offer(&format!("{i}.tar"), oci(&format!("example.com/app:{i}"), &own, gzip).tar());
    }
    let store = bench.open();
    std::thread::scope(|scope| {
        for i in 0..4 {
            let store = &store;
            scope.spawn(move || {
                let name = format!("example.com/app:{}", i % 2);
                for _ in 0..20 {
                    if i < 2 {
                        store.pull(&name).unwrap();
                    } else {
                        store.remove(&name).unwrap();
                    }
                }
            });
        }
    });
    for record in store.list() {
        let Rootfs::Layers { lower } = store.rootfs(&record.id.to_string()).unwrap() else {
            panic!()
        };
        assert!(lower.iter().all(|path| path.is_dir()), "{lower:?}");
        store.remove(&record.id.to_string()).unwrap();
    }
    assert_eq!(bench.leftovers(), NOTHING);
}
