//! ◆ Resolves a process's user in the container's own `/etc/passwd` and `/etc/group`. Pure.

use crate::contract::plan::{UserIds, UserPlan};
use crate::kernel::failure::{Failure, FailureKind};

struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

fn entries(passwd: &str) -> impl Iterator<Item = Entry<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let (_, uid, gid) =
            (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Entry { name, uid, gid, home: fields.nth(1).unwrap_or("/") })
    })
}

fn groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let gid = fields.nth(1)?.parse().ok()?;
        Some((name, gid, fields.next().unwrap_or("")))
    })
}

/// The highest id of a process: beyond it, programs and system
/// calls may see -1, "no change" (Kubernetes has the same limit).
const MAX_ID: u32 = i32::MAX as u32;

/// Resolves `plan`. A number need not be in the files, a name must. The home of a user without an entry is `/`.
pub(crate) fn resolve(plan: &UserPlan, passwd: &str, group: &str) -> Result<UserIds, Failure> {
    let user = if plan.user.is_empty() { "0" } else { &plan.user };
    let entry = match user.parse::<u32>() {
        Ok(uid) => entries(passwd).find(|e| e.uid == uid).ok_or(uid),
        Err(_) => Ok(entries(passwd).find(|e| e.name == user).ok_or_else(|| {
            Failure::new(FailureKind::Invalid, format!("no user {user:?} in the container's /etc/passwd: name one that is there, or a number"))
        })?),
    };
    let (uid, own_gid, name, home) = match &entry {
        Ok(e) => (e.uid, e.gid, Some(e.name), if e.home.is_empty() { "/" } else { e.home }),
        Err(uid) => (*uid, 0, None, "/"),
    };
    let gid = match plan.group.as_deref() {
        None | Some("") => own_gid,
        Some(wanted) => match wanted.parse() {
            Ok(gid) => gid,
            Err(_) => groups(group).find(|(name, ..)| *name == wanted).map(|(_, gid, _)| gid).ok_or_else(|| {
                Failure::new(FailureKind::Invalid, format!("no group {wanted:?} in the container's /etc/group: name one that is there, or a number"))
            })?,
        },
    };
    let mut all = vec![gid];
    if plan.merge_groups
        && let Some(name) = name
    {
        all.extend(
            groups(group)
                .filter(|(.., members)| members.split(',').any(|m| m == name))
                .map(|(_, gid, _)| gid),
        );
    }
    all.extend(&plan.additional_gids);
    if let Some(id) = [uid].iter().chain(&all).find(|id| **id > MAX_ID) {
        return Err(Failure::new(
            FailureKind::Invalid,
            format!("id {id} is out of range: the highest one is {MAX_ID}"),
        ));
    }
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|gid| seen.insert(*gid));
    Ok(UserIds { uid, gid, additional_gids: all, home: home.to_owned() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\nwww:x:33:34:www:/var/www:/bin/sh\nhomeless:x:40:40:::\nevil:x:4294967295:0::/:\n";
    const GROUP: &str = "root:x:0:\nweb:x:34:\nextra:x:50:other,www\nmore:x:51:www\n";

    fn plan(user: &str, group: Option<&str>, groups: &[u32], merge_groups: bool) -> UserPlan {
        UserPlan {
            user: user.into(),
            group: group.map(Into::into),
            additional_gids: groups.into(),
            merge_groups,
        }
    }

    #[rstest]
    #[case::default(plan("", None, &[], true), 0, 0, &[0], "/root")]
    #[case::by_name(plan("www", None, &[], true), 33, 34, &[34, 50, 51], "/var/www")]
    #[case::by_number(plan("33", None, &[], true), 33, 34, &[34, 50, 51], "/var/www")]
    #[case::strict(plan("www", None, &[7], false), 33, 34, &[34, 7], "/var/www")]
    #[case::unknown_number(plan("1234", None, &[5], true), 1234, 0, &[0, 5], "/")]
    #[case::other_group(plan("www", Some("extra"), &[], false), 33, 50, &[50], "/var/www")]
    #[case::group_number(plan("www", Some("99"), &[99, 50], true), 33, 99, &[99, 50, 51], "/var/www")]
    #[case::no_home(plan("homeless", None, &[], true), 40, 40, &[40], "/")]
    fn user_resolves_to_ids_groups_and_home(
        #[case] plan: UserPlan,
        #[case] uid: u32,
        #[case] gid: u32,
        #[case] groups: &[u32],
        #[case] home: &str,
    ) {
        let resolved = resolve(&plan, PASSWD, GROUP).unwrap();
        assert_eq!(
            resolved,
            UserIds { uid, gid, additional_gids: groups.into(), home: home.into() }
        );
    }

    #[rstest]
    #[case(plan("nobody", None, &[], true), "no user \"nobody\"")]
    #[case(plan("www", Some("nogroup"), &[], true), "no group \"nogroup\"")]
    #[case::minus_one(plan("4294967295", None, &[], true), "id 4294967295 is out of range")]
    #[case::too_high(plan("2147483648", None, &[], true), "id 2147483648 is out of range")]
    #[case::group(plan("0", Some("4294967295"), &[], true), "is out of range")]
    #[case::further(plan("0", None, &[4294967295], true), "is out of range")]
    #[case::in_the_image(plan("evil", None, &[], true), "is out of range")]
    fn unknown_users_and_invalid_ids_are_refused(#[case] plan: UserPlan, #[case] expected: &str) {
        assert!(resolve(&plan, PASSWD, GROUP).unwrap_err().message.contains(expected));
    }
}
