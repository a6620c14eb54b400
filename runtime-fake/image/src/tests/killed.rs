//! SIGKILL at any instant: the state of the store when the next daemon opens it.

use std::process::{Command, Stdio};

use super::*;

/// Set in the process to be killed: the directory of its bench.
const VICTIM: &str = "CRIB_TEST_IMAGE_VICTIM";

fn open(dir: &Path) -> ImageStore {
    let options = ImageOptions {
        archives: vec![dir.join("archives")],
        in_user_namespace: in_user_namespace(),
        ..ImageOptions::new(dir.join("store"))
    };
    ImageStore::open(options).unwrap()
}

fn name(i: usize) -> String {
    format!("example.com/app:{}", i % 3)
}

/// Pulls and removes images until killed; reports its start and each round.
fn victim(dir: &Path) {
    let store = open(dir);
    for i in 0.. {
        store.pull(&name(i)).unwrap();
        store.hold(&format!("c{}", i % 2), &name(i)).unwrap();
        store.remove(&name(i + 1)).unwrap();
        fs::write(dir.join("round"), format!("{i}")).unwrap();
    }
}

#[test]
fn open_removes_garbage_of_killed_daemon() {
    if let Some(dir) = std::env::var_os(VICTIM) {
        return victim(Path::new(&dir));
    }
    let bench = Bench::new();
    let files =
        (0..40).fold(Tar::new(), |tar, i| tar.file(&format!("d{}/f{i}", i % 7), vec![i; 2000]));
    for i in 0..3u8 {
        let all = [files.clone().bytes(), Tar::new().file("own", [i]).file(".wh.d1", "").bytes()];
        bench.offer(&format!("{i}.tar.gz"), gzip(&oci(&name(usize::from(i)), &all, gzip).tar()));
    }
    let mut interrupted = 0;
    for round in 0..300u32 {
        if round >= 12 && interrupted >= 5 {
            break;
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::killed::open_removes_garbage_of_killed_daemon"])
            .env(VICTIM, bench.dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Each process is killed at another point of its work, some while opening the store.
        let wanted = bench.dir.path().join("round");
        let _ = fs::remove_file(&wanted);
        while round % 3 > 0 && !wanted.exists() {
            assert_eq!(child.try_wait().unwrap(), None, "the victim ended by itself");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(u64::from(round % 25) * 397));
        child.kill().unwrap();
        child.wait().unwrap();
        if bench.root().is_dir() {
            interrupted +=
                fs::read_dir(bench.root().join("tmp")).map_or(0, |entries| entries.count());
        }
        let store = open(bench.dir.path());
        for record in store.list() {
            let Rootfs::Layers { lower } = store.rootfs(&record.id.to_string()).unwrap() else {
                panic!()
            };
            assert!(lower[0].join("own").is_file(), "{record:?}");
            for i in 0..40 {
                let file = lower[1].join(format!("d{}/f{i}", i % 7));
                assert_eq!(fs::metadata(&file).unwrap().len(), 2000, "{}", file.display());
            }
        }
        assert_eq!(fs::read_dir(bench.root().join("tmp")).unwrap().count(), 0);
        // All images together have 1 shared layer and 3 of their own.
        assert!(fs::read_dir(bench.root().join("layers")).unwrap().count() <= 4);
    }
    assert!(interrupted >= 5, "hardly a process was killed in the middle of its work");
    let store = open(bench.dir.path());
    for i in 0..3 {
        store.pull(&name(i)).unwrap();
        store.remove(&name(i)).unwrap();
    }
    store.release_all_but(|_| false).unwrap();
    assert_eq!(bench.leftovers(), NOTHING);
}
