//! A record in a file: a JSON object with its format version, followed by one line for each change, with the
//! fields that change. The last line is current.
//!
//! A change is appended, which costs one system call. A replacement by rename instead would make ext4 write the file to disk
//! first (`auto_da_alloc`), which takes milliseconds. Every line has all fields that change, so that it is valid even if an
//! earlier one was truncated. If the last line is incomplete, the state is unknown.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use file_tree::is_transient;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// The version of the records that this runtime writes. Version 1 had no lines after the object; records without
/// a version are older and have the same format.
const VERSION: u32 = 2;

/// The result of reading a record.
#[derive(Debug)]
pub(super) enum Loaded<T> {
    Record(T),
    Absent,
    /// The content is invalid, with the reason and its valid JSON part.
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

/// Reads the record at `path`. An error means that the system cannot read files now, not that the record is damaged.
pub(super) fn load<T: DeserializeOwned>(path: &Path) -> io::Result<Loaded<T>> {
    match read(path) {
        Ok(bytes) => Ok(understand(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Loaded::Absent),
        Err(error) if is_transient(&error) => Err(error),
        Err(error) => Ok(Loaded::Damaged {
            why: format!("cannot be read: {}", keeper::kernel::failure::plain(&error)),
            rest: Value::Null,
        }),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Do not block on something that is not a regular file.
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn understand<T: DeserializeOwned>(bytes: &[u8]) -> Loaded<T> {
    let damaged = |why: String, rest| Loaded::Damaged { why, rest };
    let mut documents = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
    let mut value = match documents.next() {
        Some(Ok(value)) => value,
        Some(Err(error)) => return damaged(format!("is not whole: {error}"), Value::Null),
        None => return damaged("is empty".to_owned(), Value::Null),
    };
    let changes = bytes.get(documents.byte_offset()..).unwrap_or_default();
    let mut whole = true;
    for line in changes.split(|byte| *byte == b'\n') {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let change = serde_json::from_slice::<Map<String, Value>>(line);
        whole = change.is_ok();
        if let (Value::Object(record), Ok(change)) = (&mut value, change) {
            record.extend(change);
        }
    }
    if !whole {
        return damaged("is not whole: its last line is cut short".to_owned(), value);
    }
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

/// Writes a record atomically: a reader finds the old one or the new one.
pub(super) fn save(path: &Path, record: &impl Serialize) -> io::Result<()> {
    let temporary = path.with_extension("json.tmp");
    // Private, because environment variables may contain secrets.
    let mut file =
        File::options().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
    let document = Document { version: VERSION, record };
    file.write_all(&serde_json::to_vec(&document)?)?;
    fs::rename(&temporary, path)
}

/// Appends a change to the record at `path`; on failure the record is restored.
pub(super) fn append(path: &Path, change: &impl Serialize) -> io::Result<()> {
    let mut line = vec![b'\n'];
    serde_json::to_writer(&mut line, change)?;
    let mut file = File::options().append(true).open(path)?;
    let before = file.metadata()?.len();
    let written = file.write_all(&line);
    if written.is_err() {
        // A part of the line may have been written.
        file.set_len(before)?;
    }
    written
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
    #[case::spaces(" \n", "is empty")]
    #[case::newer(r#"{"version": 3, "name": "a"}"#, "has the version 3")]
    #[case::odd(r#"{"version": "x", "name": "a"}"#, "has the version")]
    #[case::a_field_missing(r#"{"version": 1}"#, "cannot be understood")]
    #[case::no_object("7", "cannot be understood")]
    #[case::last_line_cut("{\"name\": \"a\"}\n{\"name\": \"b", "its last line is cut short")]
    #[case::zeros_at_the_end("{\"name\": \"a\"}\n\0\0", "its last line is cut short")]
    #[case::last_line_no_object("{\"name\": \"a\"}\n7", "its last line is cut short")]
    #[case::newer_below("{\"name\": \"a\"}\n{\"version\": 3}", "has the version 3")]
    fn damaged_record_is_reported_with_reason(#[case] text: &str, #[case] expected: &str) {
        let Loaded::Damaged { why, .. } = understand::<Record>(text.as_bytes()) else {
            panic!("{text:?} is understood");
        };
        assert!(why.contains(expected), "{why}");
    }

    #[rstest]
    #[case::before_there_were_versions(json!({"name": "a"}))]
    #[case::of_this_runtime(json!({"version": 1, "name": "a"}))]
    #[case::with_more(json!({"version": 1, "name": "a", "later": 2}))]
    fn known_record_versions_are_read(#[case] value: Value) {
        let Loaded::Record(record) = understand::<Record>(value.to_string().as_bytes()) else {
            panic!("{value} is not understood");
        };
        assert_eq!(record.name, "a");
    }

    #[rstest]
    #[case::none("", "a")]
    #[case::one("\n{\"name\": \"b\"}", "b")]
    #[case::last_counts("\n{\"name\": \"b\"}\n{\"name\": \"c\"}", "c")]
    #[case::cut_in_between("\n{\"na\n{\"name\": \"c\"}", "c")]
    fn appended_changes_replace_fields(#[case] changes: &str, #[case] expected: &str) {
        let text = format!("{{\n  \"version\": 1,\n  \"name\": \"a\"\n}}{changes}");
        let Loaded::Record(record) = understand::<Record>(text.as_bytes()) else {
            panic!("{text} is not understood");
        };
        assert_eq!(record.name, expected);
    }

    #[test]
    fn saved_record_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        assert!(matches!(load::<Record>(&path).unwrap(), Loaded::Absent));
        let record = Record { name: "a".to_owned() };
        save(&path, &record).unwrap();
        let loaded = || match load::<Record>(&path).unwrap() {
            Loaded::Record(record) => record,
            other @ (Loaded::Absent | Loaded::Damaged { .. }) => panic!("{other:?}"),
        };
        assert_eq!(loaded(), record);
        append(&path, &json!({"name": "b"})).unwrap();
        assert_eq!(loaded().name, "b");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(load::<Record>(&path).unwrap(), Loaded::Damaged { .. }));
    }
}
