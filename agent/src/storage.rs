//! Volumes, and the directories of claims.
//!
//! [`claims`] ◆ decides which volume a claim is bound to, `volumes::claim` finds or creates it, `claims::directories` keeps it.
//! `volumes::content` ◆ decides which files volumes show, `volumes::atomic` writes them, `worker::volumes` writes them again
//! after changes. `volumes::subpath` resolves parts of volumes to a link; `volumes::group` applies `fsGroup` with `file_tree`;
//! `volumes::token` signs service account tokens. The agent makes no mount: the runtime mounts what the agent has prepared.

pub mod claims;
pub mod volumes;
