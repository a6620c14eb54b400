//! A record in a file: a JSON object with the version of its form.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use file_tree::is_transient;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// The version of the records that this runtime writes. Records without one are of the time before there were versions,
/// and have the same form.
const VERSION: u32 = 1;

/// What is at a record's place.
#[derive(Debug)]
pub(super) enum Loaded<T> {
    Record(T),
    Absent,
    /// Something that cannot be understood: why, and what of it is JSON.
    Damaged {
        why: String,
        rest: Value,
    },
}

#[derive(Serialize)]
struct Document<'a, T> {
    version: u32,
    #[serde(flatten)]
    record: &'a T,
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    version: Option<Value>,
}

/// Reads the record at `path`. An error says that the system cannot read files now, and nothing about the record.
pub(super) fn load<T: DeserializeOwned>(path: &Path) -> io::Result<Loaded<T>> {
    match read(path) {
        Ok(bytes) => Ok(understand(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Loaded::Absent),
        Err(error) if is_transient(&error) => Err(error),
        Err(error) => Ok(Loaded::Damaged {
            why: format!("cannot be read: {}", keeper::failure::plain(&error)),
            rest: Value::Null,
        }),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Whatever is there instead of a file is not waited for.
    let mut file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn understand<T: DeserializeOwned>(bytes: &[u8]) -> Loaded<T> {
    let damaged = |why: String, rest| Loaded::Damaged { why, rest };
    if bytes.is_empty() {
        return damaged("is empty".to_owned(), Value::Null);
    }
    let value: Value = match serde_json::from_slice(bytes) {
        Ok(value) => value,
        Err(error) => return damaged(format!("is not whole: {error}"), Value::Null),
    };
    let version = Head::deserialize(&value).ok().and_then(|head| head.version);
    let known = match &version {
        None => true,
        Some(version) => version.as_u64().is_some_and(|v| v <= u64::from(VERSION)),
    };
    if let (false, Some(version)) = (known, version) {
        let why = format!(
            "has the version {version}, and this runtime knows versions up to {VERSION}: use a newer one"
        );
        return damaged(why, value);
    }
    match T::deserialize(&value) {
        Ok(record) => Loaded::Record(record),
        Err(error) => damaged(format!("cannot be understood: {error}"), value),
    }
}

/// Writes a record: whoever reads finds the old one or the new one.
pub(super) fn save(path: &Path, record: &impl Serialize) -> io::Result<()> {
    let temporary = path.with_extension("json.tmp");
    // Environments hold secrets.
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&temporary)?;
    let document = Document {
        version: VERSION,
        record,
    };
    file.write_all(&serde_json::to_vec(&document)?)?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Record {
        name: String,
    }

    #[rstest]
    #[case::empty("", "is empty")]
    #[case::cut(r#"{"name": "a"#, "is not whole")]
    #[case::other_bytes("\u{0}\u{0}", "is not whole")]
    #[case::newer(r#"{"version": 2, "name": "a"}"#, "has the version 2")]
    #[case::odd(r#"{"version": "x", "name": "a"}"#, "has the version")]
    #[case::a_field_missing(r#"{"version": 1}"#, "cannot be understood")]
    #[case::no_object("7", "cannot be understood")]
    fn damaged_records_say_why(#[case] text: &str, #[case] expected: &str) {
        let Loaded::Damaged { why, .. } = understand::<Record>(text.as_bytes()) else {
            panic!("{text:?} is understood");
        };
        assert!(why.contains(expected), "{why}");
    }

    #[rstest]
    #[case::before_there_were_versions(json!({"name": "a"}))]
    #[case::of_this_runtime(json!({"version": 1, "name": "a"}))]
    #[case::with_more(json!({"version": 1, "name": "a", "later": 2}))]
    fn known_versions_are_understood(#[case] value: Value) {
        let Loaded::Record(record) = understand::<Record>(value.to_string().as_bytes()) else {
            panic!("{value} is not understood");
        };
        assert_eq!(record.name, "a");
    }

    #[test]
    fn saved_record_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        assert!(matches!(load::<Record>(&path).unwrap(), Loaded::Absent));
        let record = Record {
            name: "a".to_owned(),
        };
        save(&path, &record).unwrap();
        let Loaded::Record(loaded) = load::<Record>(&path).unwrap() else {
            panic!("it is not understood");
        };
        assert_eq!(loaded, record);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(
            load::<Record>(&path).unwrap(),
            Loaded::Damaged { .. }
        ));
    }
}
