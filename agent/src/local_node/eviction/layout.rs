//! ◆ The consequences of the layout of a node's file systems: the thresholds of containers' writable layers, and the node resources
//! that can be reclaimed before pods are evicted.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/eviction/helpers.go UpdateContainerFsThresholds, buildSignalToNodeReclaimFuncs.

use super::Signal;
use super::config::Threshold;
use super::rank::FsLayout;

impl FsLayout {
    /// The layout of a node whose own files, images and writable layers are on these devices.
    #[must_use]
    pub fn of_devices(node: u64, images: u64, containers: Option<u64>) -> Self {
        if images == node {
            Self::One
        } else if containers.is_none_or(|containers| containers == images) {
            Self::Images
        } else {
            Self::ImagesOnly
        }
    }
}

/// The node resources to reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reclaim {
    /// Dead containers.
    pub(crate) containers: bool,
    /// Unused images.
    pub(crate) images: bool,
}

impl Reclaim {
    /// The resources to reclaim when `signal` is low.
    pub(crate) fn for_signal(signal: Signal, layout: FsLayout) -> Self {
        use Signal::{
            AllocatableMemoryAvailable, ContainerFsAvailable, ContainerFsInodesFree,
            ImageFsAvailable, ImageFsInodesFree, MemoryAvailable, NodeFsAvailable,
            NodeFsInodesFree, PidAvailable,
        };
        let (containers, images) = match (signal, layout) {
            (AllocatableMemoryAvailable | MemoryAvailable | PidAvailable, _)
            | (NodeFsAvailable | NodeFsInodesFree, FsLayout::Images) => (false, false),
            (_, FsLayout::One | FsLayout::Images) => (true, true),
            (ImageFsAvailable | ImageFsInodesFree, FsLayout::ImagesOnly) => (false, true),
            (
                NodeFsAvailable | NodeFsInodesFree | ContainerFsAvailable | ContainerFsInodesFree,
                FsLayout::ImagesOnly,
            ) => (true, false),
        };
        Self { containers, images }
    }

    pub(crate) fn is_any(self) -> bool {
        self.containers || self.images
    }
}

/// The thresholds, with those of the file system of writable layers replaced by the thresholds of the file system that holds them.
pub(crate) fn with_container_fs(thresholds: &[Threshold], layout: FsLayout) -> Vec<Threshold> {
    let of_containers = |signal| match (signal, layout) {
        (Signal::NodeFsAvailable, FsLayout::One | FsLayout::ImagesOnly)
        | (Signal::ImageFsAvailable, FsLayout::Images) => Some(Signal::ContainerFsAvailable),
        (Signal::NodeFsInodesFree, FsLayout::One | FsLayout::ImagesOnly)
        | (Signal::ImageFsInodesFree, FsLayout::Images) => Some(Signal::ContainerFsInodesFree),
        _ => None,
    };
    let given = thresholds.iter().filter(|threshold| !is_of_containers(threshold.signal));
    let derived = thresholds.iter().filter_map(|threshold| {
        of_containers(threshold.signal).map(|signal| Threshold { signal, ..threshold.clone() })
    });
    given.cloned().chain(derived).collect()
}

/// Whether a signal is about writable layers.
pub(crate) fn is_of_containers(signal: Signal) -> bool {
    matches!(signal, Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;
    use crate::local_node::eviction::config::EvictionConfig;

    #[rstest]
    #[case(1, 1, None, FsLayout::One)]
    #[case(1, 2, None, FsLayout::Images)]
    #[case(1, 2, Some(2), FsLayout::Images)]
    #[case(1, 2, Some(1), FsLayout::ImagesOnly)]
    #[case(1, 1, Some(2), FsLayout::One)]
    fn layout_follows_devices_of_file_systems(
        #[case] node: u64,
        #[case] images: u64,
        #[case] containers: Option<u64>,
        #[case] expected: FsLayout,
    ) {
        assert_eq!(FsLayout::of_devices(node, images, containers), expected);
    }

    #[rstest]
    #[case(FsLayout::One, "containerfs.available<10%")]
    #[case(FsLayout::ImagesOnly, "containerfs.available<10%")]
    #[case(FsLayout::Images, "containerfs.available<15%")]
    fn writable_layers_have_the_threshold_of_their_file_system(
        #[case] layout: FsLayout,
        #[case] expected: &str,
    ) {
        let given = [
            ("containerfs.available", "50%"),
            ("imagefs.available", "15%"),
            ("nodefs.available", "10%"),
        ];
        let config = EvictionConfig {
            hard: given.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into(),
            ..EvictionConfig::default()
        };
        let all = with_container_fs(&config.thresholds().unwrap(), layout);
        let shown: Vec<String> =
            all.iter().map(|it| format!("{}<{}%", it.signal, it.value.amount(100))).collect();
        assert_eq!(shown, ["imagefs.available<15%", "nodefs.available<10%", expected]);
    }

    #[rstest]
    #[case(Signal::MemoryAvailable, FsLayout::One, (false, false))]
    #[case(Signal::PidAvailable, FsLayout::Images, (false, false))]
    #[case(Signal::NodeFsAvailable, FsLayout::One, (true, true))]
    #[case(Signal::NodeFsInodesFree, FsLayout::Images, (false, false))]
    #[case(Signal::ImageFsAvailable, FsLayout::Images, (true, true))]
    #[case(Signal::ContainerFsInodesFree, FsLayout::Images, (true, true))]
    #[case(Signal::ImageFsInodesFree, FsLayout::ImagesOnly, (false, true))]
    #[case(Signal::NodeFsAvailable, FsLayout::ImagesOnly, (true, false))]
    fn node_reclaims_in_the_file_system_that_is_full(
        #[case] signal: Signal,
        #[case] layout: FsLayout,
        #[case] (containers, images): (bool, bool),
    ) {
        assert_eq!(Reclaim::for_signal(signal, layout), Reclaim { containers, images });
    }
}
