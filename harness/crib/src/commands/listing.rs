//! Commands that show what a runtime has.

pub(crate) mod events;
pub(crate) mod imagefsinfo;
pub(crate) mod images;
pub(crate) mod info;
pub(crate) mod inspect;
pub(crate) mod inspecti;
pub(crate) mod inspectp;
pub(crate) mod metricdescs;
pub(crate) mod metricsp;
pub(crate) mod pods;
pub(crate) mod ps;
pub(crate) mod runtime_config;
pub(crate) mod stats;
pub(crate) mod statsp;
pub(crate) mod version;
