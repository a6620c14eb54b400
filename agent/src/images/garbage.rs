//! ◆ Selects the images to remove, by age and to free space.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/images/image_gc_manager.go.

use std::time::Duration;

use compact::{Map, Set};
use jiff::Timestamp;

use crate::clock::until;
use crate::cri::Image;

/// The conditions for removing images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGcPolicy {
    high_threshold_percent: u8,
    low_threshold_percent: u8,
    minimum_age: Duration,
    maximum_age: Duration,
}

impl Default for ImageGcPolicy {
    /// The kubelet's defaults: from 85 % down to 80 %, no images seen within the last 2 minutes, no maximum age.
    fn default() -> Self {
        Self {
            high_threshold_percent: 85,
            low_threshold_percent: 80,
            minimum_age: Duration::from_secs(120),
            maximum_age: Duration::ZERO,
        }
    }
}

impl ImageGcPolicy {
    /// The percentages of disk usage at which removal starts and stops.
    #[must_use]
    pub fn thresholds(&self) -> (u8, u8) {
        (self.high_threshold_percent, self.low_threshold_percent)
    }

    /// The minimum age of a removed image, and the maximum age of an unused one; a maximum of zero means none.
    #[must_use]
    pub fn ages(&self) -> (Duration, Duration) {
        (self.minimum_age, self.maximum_age)
    }
}

/// Why settings of the garbage collection are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageGcPolicyError {
    /// A threshold is more than 100.
    #[error("imageGCHighThresholdPercent and imageGCLowThresholdPercent must be between 0 and 100")]
    NoPercentage,
    /// The low threshold is not below the high one.
    #[error("imageGCLowThresholdPercent must be less than imageGCHighThresholdPercent")]
    Low,
    /// The maximum age is not above the minimum age.
    #[error("imageMaximumGCAge must be greater than imageMinimumGCAge")]
    Age,
}

impl ImageGcPolicy {
    /// Validates the settings of a kubelet: `imageGCHighThresholdPercent`, `imageGCLowThresholdPercent`, `imageMinimumGCAge`, and
    /// `imageMaximumGCAge`, which 0 disables.
    ///
    /// # Errors
    /// If a kubelet rejects the settings.
    pub fn new(
        high_threshold_percent: u8,
        low_threshold_percent: u8,
        minimum_age: Duration,
        maximum_age: Duration,
    ) -> Result<Self, ImageGcPolicyError> {
        if high_threshold_percent > 100 || low_threshold_percent > 100 {
            return Err(ImageGcPolicyError::NoPercentage);
        }
        if low_threshold_percent >= high_threshold_percent {
            return Err(ImageGcPolicyError::Low);
        }
        if !maximum_age.is_zero() && maximum_age <= minimum_age {
            return Err(ImageGcPolicyError::Age);
        }
        Ok(Self { high_threshold_percent, low_threshold_percent, minimum_age, maximum_age })
    }

    /// `imageMaximumGCAge`.
    pub(crate) fn maximum_age(&self) -> Duration {
        self.maximum_age
    }

    /// Whether no image is ever removed.
    pub(crate) fn is_off(&self) -> bool {
        self.high_threshold_percent == 100 && self.maximum_age.is_zero()
    }
}

/// Size and free space of the file system of images, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageFs {
    pub(crate) capacity: u64,
    pub(crate) available: u64,
}

/// Why the usage of the file system of images cannot be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid capacity 0 on image filesystem")]
pub(crate) struct NoCapacity;

/// The space to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// In bytes.
    pub(crate) bytes: u64,
    /// The usage of the file system in percent.
    pub(crate) usage_percent: u64,
}

/// Decides whether space has to be freed: `None` below the high threshold.
pub(crate) fn shortage(
    policy: &ImageGcPolicy,
    fs: ImageFs,
) -> Result<Option<Shortage>, NoCapacity> {
    if fs.capacity == 0 {
        return Err(NoCapacity);
    }
    let (capacity, available) =
        (u128::from(fs.capacity), u128::from(fs.available.min(fs.capacity)));
    let usage_percent = 100 - u64::try_from(available * 100 / capacity).unwrap_or(100);
    if usage_percent < u64::from(policy.high_threshold_percent) {
        return Ok(None);
    }
    let wanted = capacity * u128::from(100 - policy.low_threshold_percent) / 100;
    let bytes = u64::try_from(wanted.saturating_sub(available)).unwrap_or(u64::MAX);
    Ok(Some(Shortage { bytes, usage_percent }))
}

/// What the agent has recorded of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ImageUse {
    first_seen: Timestamp,
    /// `None`: not used since the agent started.
    last_used: Option<Timestamp>,
    size: u64,
    pinned: bool,
}

/// An image that may be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) id: String,
    pub(crate) size: u64,
    first_seen: Timestamp,
    last_used: Option<Timestamp>,
}

/// When each image was seen and used since the agent started.
#[derive(Clone, Debug, Default)]
pub(crate) struct ImageUses {
    images: Map<String, ImageUse>,
}

impl ImageUses {
    /// Records a listing of images and the ids of images that containers use.
    pub(crate) fn observe(&mut self, listed: &[Image], in_use: &Set<String>, now: Timestamp) {
        let mut images = Map::new();
        for image in listed {
            let known = self.images.get(&image.id);
            let used = in_use.contains(&image.id).then_some(now);
            let seen = ImageUse {
                first_seen: known.map_or(now, |known| known.first_seen),
                last_used: used.or(known.and_then(|known| known.last_used)),
                size: image.size,
                pinned: image.pinned,
            };
            images.insert(image.id.clone(), seen);
        }
        self.images = images;
    }

    /// Removable images: neither pinned nor in use, the least recently used ones first.
    pub(crate) fn candidates(&self, in_use: &Set<String>) -> Vec<Candidate> {
        let mut candidates: Vec<Candidate> = self
            .images
            .iter()
            .filter(|(id, image)| !image.pinned && !in_use.contains(*id))
            .map(|(id, image)| Candidate {
                id: id.clone(),
                size: image.size,
                first_seen: image.first_seen,
                last_used: image.last_used,
            })
            .collect();
        // `None`, never used, sorts first.
        compact::sort_by_key(&mut candidates, |image| (image.last_used, image.first_seen));
        candidates
    }
}

/// Splits off the images that were unused for longer than the maximum age. There are none before the agent has run that long.
pub(crate) fn too_old(
    policy: &ImageGcPolicy,
    candidates: Vec<Candidate>,
    began: Timestamp,
    now: Timestamp,
) -> (Vec<Candidate>, Vec<Candidate>) {
    if policy.maximum_age.is_zero() || until(began, now) <= policy.maximum_age {
        return (Vec::new(), candidates);
    }
    candidates
        .into_iter()
        .partition(|image| image.last_used.is_none_or(|used| until(used, now) > policy.maximum_age))
}

/// Whether an image is old enough to be removed for its space: one that was just pulled is about to be used.
pub(crate) fn is_old_enough(policy: &ImageGcPolicy, image: &Candidate, now: Timestamp) -> bool {
    until(image.first_seen, now) >= policy.minimum_age
}

/// The message when not enough space could be freed.
pub(crate) fn not_enough(fs: ImageFs, shortage: Shortage, freed: u64) -> String {
    format!(
        "Insufficient free disk space on the node's image filesystem ({}% of {} used). Failed to free sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
        shortage.usage_percent,
        binary_size(fs.capacity),
    )
}

/// The size in the form `1.5 GiB`.
fn binary_size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let mut size = bytes as f64 / 1024.0;
    let mut unit = "KiB";
    for larger in ["MiB", "GiB", "TiB"] {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = larger;
    }
    format!("{size:.1} {unit}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;
    use crate::clock::after;

    fn at(seconds: u64) -> Timestamp {
        after(Timestamp::UNIX_EPOCH, Duration::from_secs(seconds))
    }

    fn image(id: &str, pinned: bool) -> Image {
        Image { id: id.to_owned(), size: 10, pinned, ..Image::default() }
    }

    fn ids(candidates: &[Candidate]) -> Vec<&str> {
        candidates.iter().map(|image| image.id.as_str()).collect()
    }

    fn set(ids: &[&str]) -> Set<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[rstest]
    #[case(16, None)]
    #[case(15, Some(5))]
    #[case(3, Some(17))]
    #[case(0, Some(20))]
    #[case(200, None)]
    fn space_is_freed_from_high_to_low_threshold(
        #[case] available: u64,
        #[case] bytes: Option<u64>,
    ) {
        let fs = ImageFs { capacity: 100, available };
        let found = shortage(&ImageGcPolicy::default(), fs).unwrap();
        assert_eq!(found.map(|shortage| shortage.bytes), bytes);
    }

    #[test]
    fn unknown_capacity_is_an_error() {
        let fs = ImageFs { capacity: 0, available: 0 };
        assert_eq!(shortage(&ImageGcPolicy::default(), fs), Err(NoCapacity));
    }

    #[test]
    fn least_recently_used_images_come_first() {
        let mut uses = ImageUses::default();
        let all = [image("a", false), image("b", false), image("c", false), image("p", true)];
        uses.observe(&all[..1], &set(&["a"]), at(0));
        uses.observe(&all, &set(&["b"]), at(10));
        uses.observe(&all, &set(&[]), at(20));
        assert_eq!(ids(&uses.candidates(&set(&[]))), ["c", "a", "b"]);
        assert_eq!(ids(&uses.candidates(&set(&["c"]))), ["a", "b"]);
        uses.observe(&all[1..], &set(&[]), at(30));
        assert_eq!(ids(&uses.candidates(&set(&[]))), ["c", "b"], "a is gone");
    }

    #[test]
    fn unused_images_are_too_old_after_maximum_age() {
        let policy =
            ImageGcPolicy::new(85, 80, Duration::from_secs(10), Duration::from_secs(100)).unwrap();
        let mut uses = ImageUses::default();
        let all = [image("a", false), image("b", false)];
        uses.observe(&all, &set(&["a"]), at(50));
        let candidates = uses.candidates(&set(&[]));
        let (old, kept) = too_old(&policy, candidates.clone(), at(0), at(100));
        assert_eq!((ids(&old), ids(&kept)), (vec![], vec!["b", "a"]));
        let (old, kept) = too_old(&policy, candidates.clone(), at(0), at(101));
        assert_eq!((ids(&old), ids(&kept)), (vec!["b"], vec!["a"]));
        let (old, _) = too_old(&policy, candidates.clone(), at(0), at(151));
        assert_eq!(ids(&old), ["b", "a"]);
        assert!(!is_old_enough(&policy, &candidates[0], at(59)));
        assert!(is_old_enough(&policy, &candidates[0], at(60)));
    }

    #[rstest]
    #[case(101, 80, 0, Some(ImageGcPolicyError::NoPercentage))]
    #[case(80, 80, 0, Some(ImageGcPolicyError::Low))]
    #[case(80, 70, 60, Some(ImageGcPolicyError::Age))]
    #[case(80, 70, 61, None)]
    fn policy_is_checked_as_in_a_kubelet(
        #[case] high: u8,
        #[case] low: u8,
        #[case] maximum: u64,
        #[case] error: Option<ImageGcPolicyError>,
    ) {
        let (minimum, maximum) = (Duration::from_secs(60), Duration::from_secs(maximum));
        assert_eq!(ImageGcPolicy::new(high, low, minimum, maximum).err(), error);
    }

    #[test]
    fn collection_is_off_at_100_percent_without_age() {
        let policy = |age| ImageGcPolicy::new(100, 80, Duration::ZERO, Duration::from_secs(age));
        assert!(policy(0).unwrap().is_off());
        assert!(!policy(1).unwrap().is_off());
    }

    #[rstest]
    #[case(1023, "1023 B")]
    #[case(1536, "1.5 KiB")]
    #[case(5 << 30, "5.0 GiB")]
    #[case(3 << 50, "3072.0 TiB")]
    fn sizes_are_shown_in_binary_units(#[case] bytes: u64, #[case] expected: &str) {
        assert_eq!(binary_size(bytes), expected);
    }

    proptest! {
        /// The arithmetic does not overflow for any file system, and the freed space reaches the low threshold.
        #[test]
        fn shortage_is_at_most_the_low_threshold(capacity in 1..=u64::MAX, available in 0..=u64::MAX) {
            if let Some(found) = shortage(&ImageGcPolicy::default(), ImageFs { capacity, available }).unwrap() {
                prop_assert!(found.bytes <= capacity / 5 + 1);
                prop_assert!(found.usage_percent >= 85);
            }
        }
    }
}
