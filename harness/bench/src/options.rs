//! ◆ What is measured, and how much of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::rows::Section;

/// What is measured, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The endpoints; with two of them, ratios are those of the first to the second.
    pub endpoints: Vec<Endpoint>,
    /// The image of containers, with a shell; otherwise one of this machine's programs, from a registry of this process.
    pub image: Option<String>,
    /// The port of that registry at 127.0.0.1; otherwise a free one.
    pub registry_port: Option<u16>,
    /// The sections.
    pub sections: Vec<Section>,
    /// How much of each.
    pub effort: Effort,
    /// How long one call may take. The large image has to be pulled within it.
    pub deadline: Duration,
    /// A program that becomes the helper of [`super::serve_floor`]: without one, the kernel alone is not measured.
    pub floor: Option<PathBuf>,
    /// The `crib` command, whose daemon is started for [`Section::Startup`] if one of the runtimes is crib's.
    pub crib: Option<PathBuf>,
}

/// An endpoint that is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The runtime's socket.
    pub runtime: PathBuf,
    /// The image service's socket.
    pub images: PathBuf,
}

impl Endpoint {
    /// A socket that serves both.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { runtime: socket.to_owned(), images: socket.to_owned() }
    }
}

/// How much is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effort {
    /// How often calls are measured; what takes longer is measured less often.
    pub rounds: usize,
    /// The numbers of other pods for [`Section::Growth`], ascending.
    pub sizes: Vec<usize>,
    /// The pods of [`Section::Density`].
    pub pods: usize,
    /// The numbers of pods at once for [`Section::Throughput`].
    pub levels: Vec<u32>,
    /// How many lives each of these has, one after the other.
    pub lives: u32,
    /// The lines that a container writes for [`Section::Logs`].
    pub lines: usize,
    /// Whether the images of [`Section::Pulls`] are small.
    pub small_images: bool,
}

impl Effort {
    /// Figures that are worth a comparison, in some minutes.
    #[must_use]
    pub fn full() -> Self {
        Self {
            rounds: 50,
            sizes: vec![10, 100],
            pods: 50,
            levels: vec![1, 2, 4, 8, 16],
            lives: 4,
            lines: 320_000,
            small_images: false,
        }
    }

    /// Everything once or a few times, in seconds: whether it works, not how fast it is.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            rounds: 5,
            sizes: vec![2, 4],
            pods: 2,
            levels: vec![1, 2],
            lives: 1,
            lines: 10_000,
            small_images: true,
        }
    }

    /// The rounds of what takes a second or more.
    pub(super) fn few_rounds(&self) -> usize {
        self.rounds.div_ceil(10)
    }

    /// The rounds of what takes a fraction of a second.
    pub(super) fn some_rounds(&self) -> usize {
        self.rounds.min(20)
    }
}

impl Options {
    /// Everything, of the runtime at a socket.
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
