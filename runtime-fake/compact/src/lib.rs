//! What std and tokio have, for which less machine code is compiled: theirs is compiled again for each type, and was a third of the
//! agent's (docs/performance.md).
//!
//! | module | what | instead of |
//! |---|---|---|
//! | `map`, `set` | [`Map`] and [`Set`]: sorted vectors | `BTreeMap`, `BTreeSet` |
//! | `sort` | [`sort_by`], [`sort_by_key`] | `slice::sort_by`, `slice::sort_by_key` |
//! | `tasks` | [`spawn`], [`blocking`], [`Task`] | `tokio::spawn`, `tokio::task::spawn_blocking` |
//!
//! They behave alike, but that a map or set of n elements moves up to n of them when one comes or goes: where there are tens of thousands,
//! or where a type is compiled anyway (`BTreeMap<String, String>`), take those of std.

pub mod map;
mod set;
mod sort;
mod tasks;

pub use map::Map;
pub use set::Set;
pub use sort::{sort_by, sort_by_key};
pub use tasks::{Task, blocking, spawn, task};
