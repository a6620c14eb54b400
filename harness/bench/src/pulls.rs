//! Pulls from a registry in this process: an image with one large layer, and one with many small layers.

use std::time::Instant;

use check::TestImages;
use harness::fixture_image::Layer;

use super::BenchError;
use super::rows::{Key, Rows, Section};
use super::target::Target;
use super::target::alternate;

/// An image.
struct Shape {
    name: &'static str,
    layers: u32,
    /// The number of files in each layer.
    files: u32,
    /// The size of each file; half of it is incompressible.
    bytes: usize,
}

const SHAPES: [Shape; 2] = [
    Shape { name: "one layer of 64 files of 1 MB", layers: 1, files: 64, bytes: 1_000_000 },
    Shape { name: "30 layers of 100 files of 2 kB", layers: 30, files: 100, bytes: 2_000 },
];

const QUICK_SHAPES: [Shape; 2] = [
    Shape { name: "one layer of 4 files of 1 MB", layers: 1, files: 4, bytes: 1_000_000 },
    Shape { name: "10 layers of 10 files of 2 kB", layers: 10, files: 10, bytes: 2_000 },
];

impl Shape {
    fn layer(&self, number: u32) -> Layer {
        (0..self.files).fold(Layer::new(), |layer, file| {
            let path = format!("data/{number}/{file}");
            let seed = u64::from(number * self.files + file);
            layer.file(&path, 0o644, content(seed, self.bytes))
        })
    }
}

/// Bytes of which the first half is pseudorandom (xorshift64).
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes / 2 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content.truncate(bytes / 2);
    content.extend(b"compressible\n".iter().cycle().take(bytes - bytes / 2));
    content
}

/// Pulls each image and removes it again; `quick` takes smaller images.
pub(super) async fn measure(
    targets: &[Target],
    images: &TestImages,
    quick: bool,
    rounds: usize,
    rows: &mut Rows,
) -> Result<(), BenchError> {
    let shapes = if quick { &QUICK_SHAPES } else { &SHAPES };
    for (number, shape) in shapes.iter().enumerate() {
        let short = format!("shape-{number}");
        let layers = (0..shape.layers).map(|number| shape.layer(number));
        images
            .add_layers(&format!("{short}:1"), layers)
            .map_err(|error| BenchError::NoImage(error.to_string()))?;
        let name = format!("{}:1", images.name(&short));
        let sample = async |_, target: &Target| {
            let began = Instant::now();
            target.call("PullImage", target.client.pull(&name)).await?;
            let took = began.elapsed();
            target.call("RemoveImage", target.client.remove_image(&name)).await?;
            Ok(took.as_secs_f64() * 1e3)
        };
        alternate(targets, rounds, sample, |subject, sample| {
            rows.add(Key::time(Section::Pulls, shape.name), subject, sample);
        })
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0)]
    #[case(1)]
    #[case(2_000)]
    #[case(1_000_003)]
    fn content_has_its_length_and_differs_by_seed(#[case] bytes: usize) {
        let (first, second) = (content(0, bytes), content(1, bytes));
        assert_eq!((first.len(), second.len()), (bytes, bytes));
        assert_eq!(first == second, bytes < 2);
    }
}
