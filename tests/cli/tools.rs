//! `crib check`, `bench`, `proxy` and `registry`, their reports, and generated documents.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod check_cut_short;
pub(crate) mod check_faulty;
pub(crate) mod pages;
pub(crate) mod proxy;
pub(crate) mod readme;
pub(crate) mod recordings;
pub(crate) mod reference;
pub(crate) mod registry;
