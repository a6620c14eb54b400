//! Fuzz target: an image's `/etc/passwd` and `/etc/group`.

use fuzz_target::{Target, bytes, two_texts};

use crate::contract::plan::UserPlan;
use crate::setup::user;

pub(super) const TARGETS: &[Target] = &[Target::new("accounts", accounts, seeds)];

/// A lookup by name and a lookup by the resulting ids agree, and no id exceeds the highest one that a process may have.
/// A numeric user needs no entry in the files.
fn accounts(data: &[u8]) {
    const MAX_ID: u32 = i32::MAX as u32;
    let (passwd, group) = two_texts(data);
    let plan = |user: &str, group: Option<&str>| UserPlan {
        user: user.to_owned(),
        group: group.map(str::to_owned),
        additional_gids: vec![7],
        merge_groups: true,
    };
    let name = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let first = (passwd.lines().next().map(name), group.lines().next().map(name));
    if let (Some(user), group_name) = first
        && let Ok(found) = user::resolve(&plan(&user, group_name.as_deref()), passwd, group)
    {
        let ids = [found.uid, found.gid];
        for id in ids.into_iter().chain(found.additional_gids.iter().copied()) {
            assert!(id <= MAX_ID, "{id} of {found:?}");
        }
        assert!(found.additional_gids.contains(&7), "{found:?}");
        let (uid, gid) = (found.uid.to_string(), found.gid.to_string());
        // Another user with the same uid may be in other groups.
        let mut numbers = plan(&uid, Some(&gid));
        numbers.merge_groups = false;
        let again = user::resolve(&numbers, passwd, group).unwrap();
        assert_eq!((again.uid, again.gid), (found.uid, found.gid));
    }
    // Without merging: a group in the file may have an id that no process can have.
    let mut number = plan("1000", Some("2000"));
    number.merge_groups = false;
    let found = user::resolve(&number, passwd, group).unwrap();
    assert_eq!((found.uid, found.gid), (1000, 2000));
}

fn seeds() -> Vec<Vec<u8>> {
    bytes(&[
        "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1000::/home/web:/bin/sh\n\x00root:x:0:\nwheel:x:10:root,web\n",
        "a:x:7:8::\na:x:9:10:::\n\0a:x:9:a,a\nb:x:3:\n",
        "x:::\n:x:2147483647:4294967295::\n\0:x:2147483648:\n",
    ])
}
