//! ◆ Options: which sections are measured, and with how much effort.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::rows::Section;

/// Options of a benchmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The endpoints; with two of them, ratios compare the first to the second.
    pub endpoints: Vec<Endpoint>,
    /// The containers' image, which has a shell; by default an image of this machine's programs, from a registry in this process.
    pub image: Option<String>,
    /// The port of that registry at 127.0.0.1; by default a free one.
    pub registry_port: Option<u16>,
    /// The sections.
    pub sections: Vec<Section>,
    /// The effort for each section.
    pub effort: Effort,
    /// The time limit of one call. It includes the pull of the large image.
    pub deadline: Duration,
    /// A program that becomes the helper of [`super::serve_floor`]. Without it, the kernel alone is not measured.
    pub floor: Option<PathBuf>,
    /// The `crib` command, whose daemon is started for [`Section::Startup`] if one of the runtimes is crib's.
    pub crib: Option<PathBuf>,
}

/// An endpoint to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The runtime's socket.
    pub runtime: PathBuf,
    /// The image service's socket.
    pub images: PathBuf,
}

impl Endpoint {
    /// An endpoint whose socket serves both.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { runtime: socket.to_owned(), images: socket.to_owned() }
    }
}

/// The effort of a benchmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effort {
    /// The number of rounds for calls; slower operations have fewer rounds.
    pub rounds: usize,
    /// The numbers of other pods for [`Section::Growth`], ascending.
    pub sizes: Vec<usize>,
    /// The number of pods for [`Section::Density`].
    pub pods: usize,
    /// The concurrency levels for [`Section::Throughput`].
    pub levels: Vec<u32>,
    /// The number of lifecycles for each concurrent worker.
    pub lifecycles: u32,
    /// The number of lines that a container writes for [`Section::Logs`].
    pub lines: usize,
    /// Whether the images of [`Section::Pulls`] are small.
    pub small_images: bool,
}

impl Effort {
    /// Enough rounds for meaningful figures, in some minutes.
    #[must_use]
    pub fn full() -> Self {
        Self {
            rounds: 50,
            sizes: vec![10, 100],
            pods: 50,
            levels: vec![1, 2, 4, 8, 16],
            lifecycles: 4,
            lines: 320_000,
            small_images: false,
        }
    }

    /// Few rounds, in seconds: this tests that everything works, not how fast it is.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            rounds: 5,
            sizes: vec![2, 4],
            pods: 2,
            levels: vec![1, 2],
            lifecycles: 1,
            lines: 10_000,
            small_images: true,
        }
    }

    /// The number of rounds for operations that take a second or more.
    pub(super) fn few_rounds(&self) -> usize {
        self.rounds.div_ceil(10)
    }

    /// The number of rounds for operations that take a fraction of a second.
    pub(super) fn some_rounds(&self) -> usize {
        self.rounds.min(20)
    }
}

impl Options {
    /// The options for a full benchmark of the runtime at a socket.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self {
            endpoints: vec![Endpoint::new(socket)],
            image: None,
            registry_port: None,
            sections: Section::ALL.to_vec(),
            effort: Effort::full(),
            deadline: Duration::from_secs(60),
            floor: None,
            crib: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(1, 1, 1)]
    #[case(5, 1, 5)]
    #[case(50, 5, 20)]
    fn slow_measurements_have_fewer_rounds(
        #[case] rounds: usize,
        #[case] few: usize,
        #[case] some: usize,
    ) {
        let effort = Effort { rounds, ..Effort::full() };
        assert_eq!((effort.few_rounds(), effort.some_rounds()), (few, some));
    }
}
