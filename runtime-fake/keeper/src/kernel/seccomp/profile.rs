//! Parses profiles: the OCI runtime specification's `LinuxSeccomp` with the additions of Docker and Podman (`archMap`,
//! `includes`, `excludes`, `errno`) ◆

use serde::{Deserialize, Deserializer};

use crate::kernel::capability;
use crate::kernel::seccomp::{
    machine::{Arch, named},
    rules::{Action, Comparison, Condition, Rule, Rules},
};

/// The properties of machine, kernel and container that rules depend on.
#[derive(Debug, Clone, Copy)]
pub struct HostContext<'a> {
    /// The machine's native interface.
    pub native: Arch,
    /// The kernel's version.
    pub kernel: (u32, u32),
    /// The capabilities in the container's bounding set, by number.
    pub capabilities: &'a [u8],
}

/// Why a profile is rejected, completing "the seccomp profile …".
type Reason = String;

const LOG_FLAG: u32 = 2;
const SPEC_ALLOW: u32 = 4;
const EPERM: u32 = 1;

/// Error names, which Podman's profiles use in addition to numbers.
const ERRNO: [(&str, u32); 8] = [
    ("EPERM", 1),
    ("ENOENT", 2),
    ("EIO", 5),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EINVAL", 22),
    ("ENOSYS", 38),
];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    default_action: String,
    default_errno_ret: Option<u32>,
    default_errno: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    architectures: Vec<String>,
    #[serde(default, deserialize_with = "or_null")]
    arch_map: Vec<Family>,
    flags: Option<Vec<String>>,
    listener_path: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    syscalls: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Family {
    architecture: String,
    #[serde(default, deserialize_with = "or_null")]
    sub_architectures: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default, deserialize_with = "or_null")]
    names: Vec<String>,
    /// The only name, in profiles from before 2017.
    #[serde(default, deserialize_with = "or_null")]
    name: String,
    action: String,
    errno_ret: Option<u32>,
    errno: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    args: Vec<Argument>,
    #[serde(default, deserialize_with = "or_null")]
    includes: Conditions,
    #[serde(default, deserialize_with = "or_null")]
    excludes: Conditions,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Argument {
    index: u32,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Conditions {
    #[serde(default, deserialize_with = "or_null")]
    caps: Vec<String>,
    #[serde(default, deserialize_with = "or_null")]
    arches: Vec<String>,
    #[serde(default, deserialize_with = "or_null")]
    min_kernel: String,
}

/// Go writes an empty list as `null`.
fn or_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// Parses a profile and resolves it.
pub(super) fn read(text: &str, host: HostContext<'_>) -> Result<Rules, Reason> {
    let document: Document =
        serde_json::from_str(text).map_err(|error| format!("is not one: {error}"))?;
    if document.listener_path.is_some_and(|path| !path.is_empty()) {
        return Err("wants a listener: there is none, take listenerPath out".to_owned());
    }
    let mut rules = Rules {
        default: action(
            &document.default_action,
            number(document.default_errno_ret, document.default_errno.as_deref())?,
        )?,
        arches: arches(&document.architectures, &document.arch_map, host.native)?,
        rules: Vec::new(),
        flags: flags(document.flags.as_deref())?,
    };
    for entry in &document.syscalls {
        if applies(entry, host)? {
            add(entry, &mut rules.rules)?;
        }
    }
    Ok(rules)
}

fn number(given: Option<u32>, name: Option<&str>) -> Result<Option<u32>, Reason> {
    match (given, name) {
        (Some(number), _) => Ok(Some(number)),
        (None, None | Some("")) => Ok(None),
        (None, Some(name)) => {
            let known = ERRNO.iter().find(|(known, _)| *known == name);
            known
                .map(|(_, number)| Some(*number))
                .ok_or_else(|| format!("names the error {name:?}: write its number, as errnoRet"))
        }
    }
}

fn action(name: &str, errno: Option<u32>) -> Result<Action, Reason> {
    let number = || {
        u16::try_from(errno.unwrap_or(EPERM)).map_err(|_| {
            format!("has errnoRet {}, which is no error's number", errno.unwrap_or(EPERM))
        })
    };
    Ok(match name {
        "SCMP_ACT_ALLOW" => Action::ALLOW,
        "SCMP_ACT_LOG" => Action::LOG,
        "SCMP_ACT_TRAP" => Action::TRAP,
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Action::KILL_THREAD,
        "SCMP_ACT_KILL_PROCESS" => Action::KILL_PROCESS,
        "SCMP_ACT_ERRNO" => Action::errno(number()?),
        "SCMP_ACT_TRACE" => Action::trace(number()?),
        "SCMP_ACT_NOTIFY" => {
            return Err("asks for SCMP_ACT_NOTIFY: there is no listener to notify".to_owned());
        }
        _ => return Err(format!("has the unknown action {name:?}")),
    })
}

fn arches(list: &[String], map: &[Family], native: Arch) -> Result<Vec<Arch>, Reason> {
    if !list.is_empty() && !map.is_empty() {
        return Err("has both architectures and archMap: one of them is enough".to_owned());
    }
    let known =
        |name: &String| named(name).map_err(|()| format!("has the unknown architecture {name:?}"));
    let mut wanted = list.iter().map(known).collect::<Result<Vec<_>, _>>()?;
    for family in map {
        let others = family.sub_architectures.iter().map(known);
        let others = others.collect::<Result<Vec<_>, _>>()?;
        if known(&family.architecture)? == Some(native) {
            wanted.extend(others);
        }
    }
    // The native interface is always filtered (as in libseccomp).
    let family = native.family().iter().copied();
    Ok(family.filter(|arch| *arch == native || wanted.contains(&Some(*arch))).collect())
}

fn flags(names: Option<&[String]>) -> Result<u32, Reason> {
    // Without the field, programs keep the processor's speculation, as in runc.
    let Some(names) = names else {
        return Ok(SPEC_ALLOW);
    };
    names.iter().try_fold(0, |flags, name| {
        Ok(flags
            | match name.as_str() {
                // The process has one thread, so there is nothing to synchronise.
                "SECCOMP_FILTER_FLAG_TSYNC" => 0,
                "SECCOMP_FILTER_FLAG_LOG" => LOG_FLAG,
                "SECCOMP_FILTER_FLAG_SPEC_ALLOW" => SPEC_ALLOW,
                _ => return Err(format!("has the unknown flag {name:?}")),
            })
    })
}

/// Whether a rule applies to this container (Docker's `includes` and `excludes`).
fn applies(entry: &Entry, host: HostContext<'_>) -> Result<bool, Reason> {
    let has = |name: &String| -> Result<bool, Reason> {
        let number = capability::number(name)
            .ok_or_else(|| format!("names the unknown capability {name:?}"))?;
        Ok(host.capabilities.contains(&number))
    };
    let here = |name: &String| name == host.native.go_name();
    let (includes, excludes) = (&entry.includes, &entry.excludes);
    for name in &excludes.caps {
        if has(name)? {
            return Ok(false);
        }
    }
    for name in &includes.caps {
        if !has(name)? {
            return Ok(false);
        }
    }
    if excludes.arches.iter().any(here)
        || !(includes.arches.is_empty() || includes.arches.iter().any(here))
    {
        return Ok(false);
    }
    Ok((excludes.min_kernel.is_empty() || host.kernel < version(&excludes.min_kernel)?)
        && host.kernel >= version(&includes.min_kernel)?)
}

/// Parses a version such as `4.8`; an empty one is older than all others.
fn version(text: &str) -> Result<(u32, u32), Reason> {
    if text.is_empty() {
        return Ok((0, 0));
    }
    text.split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .ok_or_else(|| format!("has the kernel version {text:?}: it is to be like 4.8"))
}

fn add(entry: &Entry, rules: &mut Vec<Rule>) -> Result<(), Reason> {
    let action = action(&entry.action, number(entry.errno_ret, entry.errno.as_deref())?)?;
    let conditions = entry.args.iter().map(condition).collect::<Result<Vec<_>, _>>()?;
    // Several conditions on one argument are alternatives (as in runc, for Docker's old profiles).
    let repeated = conditions
        .iter()
        .enumerate()
        .any(|(at, one)| conditions.iter().take(at).any(|other| other.argument == one.argument));
    let alternatives = if repeated {
        conditions.into_iter().map(|one| vec![one]).collect()
    } else {
        vec![conditions]
    };
    if entry.names.is_empty() && entry.name.is_empty() {
        return Err("has a rule without names".to_owned());
    }
    let names = entry.names.iter().chain([&entry.name]);
    for name in names.filter(|name| !name.is_empty()) {
        rules.extend(alternatives.iter().map(|conditions| Rule {
            name: name.clone(),
            action,
            conditions: conditions.clone(),
        }));
    }
    Ok(())
}

fn condition(argument: &Argument) -> Result<Condition, Reason> {
    let Some(index) = u8::try_from(argument.index).ok().filter(|index| *index < 6) else {
        return Err(format!(
            "has a condition on argument {}: a call has six, from 0",
            argument.index
        ));
    };
    let (comparison, value) = match argument.op.as_str() {
        "SCMP_CMP_NE" => (Comparison::NotEqual, argument.value),
        "SCMP_CMP_LT" => (Comparison::Less, argument.value),
        "SCMP_CMP_LE" => (Comparison::LessOrEqual, argument.value),
        "SCMP_CMP_EQ" => (Comparison::Equal, argument.value),
        "SCMP_CMP_GE" => (Comparison::GreaterOrEqual, argument.value),
        "SCMP_CMP_GT" => (Comparison::Greater, argument.value),
        "SCMP_CMP_MASKED_EQ" => {
            (Comparison::MaskedEqual { mask: argument.value }, argument.value_two)
        }
        op => return Err(format!("has the unknown comparison {op:?}")),
    };
    Ok(Condition { argument: index, comparison, value })
}

#[cfg(test)]
mod tests;
