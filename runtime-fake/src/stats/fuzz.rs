//! Fuzz targets: the accounting files of control groups and processes.

use fuzz_target::{Target, bytes, two_texts};

use super::parse;

pub(crate) const TARGETS: &[Target] = &[
    Target::new("cgroup_files", cgroup_files, cgroup_seeds),
    Target::new("proc_files", proc_files, proc_seeds),
];

/// The number of devices does not exceed the number of lines.
fn cgroup_files(data: &[u8]) {
    let (first, second) = two_texts(data);
    for key in ["usage_usec", "oom_kill", ""] {
        let _ = parse::keyed(first, key);
    }
    assert!(parse::limit(first).is_none() || parse::limit(first) == parse::number(first));
    let _ = parse::pressure(first);
    let lines = first.lines().count();
    assert!(parse::io_stat(first).len() <= lines);
    assert!(parse::blkio(first, second).len() <= lines);
}

fn cgroup_seeds() -> Vec<Vec<u8>> {
    bytes(&[
        "usage_usec 5000\nuser_usec 17\nthrottled_usec 1\n",
        "9223372036854771712\n",
        "some avg10=0.00 avg60=1.50 avg300=99.99 total=12345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        "254:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n",
        "254:0 Read 4096\n254:0 Write 8192\n254:0 Total 12288\nTotal 12288\n\x00254:0 Read 1\n254:0 Write 2\n",
    ])
}

/// The loopback interface is skipped, and no sum overflows.
fn proc_files(data: &[u8]) {
    let (first, _) = two_texts(data);
    assert!(parse::net_dev(first).iter().all(|traffic| traffic.name != "lo"));
    let _ = parse::process_stat(first);
}

fn proc_seeds() -> Vec<Vec<u8>> {
    bytes(&[
        "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    lo:    1      2    0    0    0     0          0         0        1       2    0    0    0     0       0          0\n  eth0: 1000     10    0    1    0     0          0         0     2000      20    0    0    0     0       0          0\n",
        "12 (a b) c) S 1 12 12 0 -1 4194560 100 200 1 2 10 20 30 40 20 0 1 0 100 1000 100 18446744073709551615\n",
    ])
}
