//! Commands that show what a runtime has.

pub(crate) mod events;
pub(crate) mod images;
pub(crate) mod info;
pub(crate) mod inspect;
pub(crate) mod metricsp;
pub(crate) mod pods;
pub(crate) mod ps;
pub(crate) mod stats;
pub(crate) mod statsp;
pub(crate) mod version;
