//! ◆ Parses mount tables (proc_pid_mountinfo(5)).

/// A line of `/proc/PID/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount<'a> {
    /// The mount ID.
    pub id: &'a str,
    /// The directory of the file system that is mounted.
    pub root: String,
    /// The mount point.
    pub at: String,
    /// The options of the mount.
    pub options: &'a str,
    /// The optional fields, such as `shared:1` or `master:2`.
    pub propagation: Vec<&'a str>,
    /// The type of the file system.
    pub kind: &'a str,
    /// The source of the file system: a device, or any text.
    pub source: String,
    /// The options of the file system.
    pub super_options: &'a str,
}

/// Parses the mounts of a table; malformed lines are skipped.
pub fn mounts(table: &str) -> impl Iterator<Item = Mount<'_>> {
    table.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ');
        let mut system = system.split(' ');
        Some(Mount {
            id: mount.next()?,
            root: unescaped(mount.nth(2)?),
            at: unescaped(mount.next()?),
            options: mount.next()?,
            propagation: mount.collect(),
            kind: system.next()?,
            source: system.next().map(unescaped).unwrap_or_default(),
            super_options: system.next().unwrap_or_default(),
        })
    })
}

/// The kernel writes spaces, tabs, newlines and backslashes as a backslash and three octal digits.
fn unescaped(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|c| u8::from_str_radix(c, 8).ok());
        match code {
            Some(code) => {
                out.push(char::from(code));
                out += &part[3..];
            }
            None => {
                out.push('\\');
                out += part;
            }
        }
    }
    out
}
