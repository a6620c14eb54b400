//! Selects images with crictl's filters.

use clap::Args;
use cri::v1;
use regex_lite::Regex;

use super::{CallError, Cri};

/// Filters for images, with crictl's names.
#[derive(Debug, Args)]
pub(crate) struct ImageFilterArgs {
    /// Filter: dangling=true|false, reference=REGEX, before=IMAGE, since=IMAGE; repeatable
    #[arg(short, long, value_name = "FILTER")]
    filter: Vec<Filter>,
}

#[derive(Clone, Debug)]
enum Filter {
    /// Whether the image has no tag.
    Dangling(bool),
    /// The name of the repository.
    Reference(Regex),
    /// Images after this one in the listing.
    Before(String),
    /// Images before this one in the listing.
    Since(String),
}

impl std::str::FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("dangling", "true")) => Ok(Self::Dangling(true)),
            Some(("dangling", "false")) => Ok(Self::Dangling(false)),
            Some(("reference", pattern)) => Regex::new(pattern)
                .map(Self::Reference)
                .map_err(|_| format!("invalid regular expression {pattern:?}")),
            Some(("before", image)) => Ok(Self::Before(image.to_owned())),
            Some(("since", image)) => Ok(Self::Since(image.to_owned())),
            _ => Err(format!(
                "invalid filter {text:?}: expected dangling=true|false, reference=REGEX, before=IMAGE or since=IMAGE"
            )),
        }
    }
}

/// The matching images, sorted by name.
pub(crate) async fn list(
    cri: &Cri,
    args: &ImageFilterArgs,
    name: Option<&str>,
) -> Result<Vec<v1::Image>, CallError> {
    let image = name.map(|image| v1::ImageSpec { image: image.to_owned(), ..Default::default() });
    let request =
        v1::ListImagesRequest { filter: image.map(|image| v1::ImageFilter { image: Some(image) }) };
    let mut client = cri.images.images.clone();
    let answer = cri.call("ListImages", client.list_images(request));
    let mut images = answer.await?.into_inner().images;
    compact::sort_by(&mut images, |a, b| key(a).cmp(key(b)));
    for filter in &args.filter {
        images = apply(filter, images);
    }
    Ok(images)
}

/// The sort key: the first tag, or else the first digest, or else the id.
fn key(image: &v1::Image) -> &str {
    let name = image.repo_tags.first().or(image.repo_digests.first());
    name.unwrap_or(&image.id)
}

fn apply(filter: &Filter, mut images: Vec<v1::Image>) -> Vec<v1::Image> {
    match filter {
        Filter::Dangling(wanted) => images.retain(|image| image.repo_tags.is_empty() == *wanted),
        Filter::Reference(pattern) => images.retain(|image| {
            let repository = image.repo_digests.first().and_then(|name| name.split_once('@'));
            repository.is_some_and(|(name, _)| pattern.is_match(name))
        }),
        Filter::Since(name) => {
            let end = images.iter().position(|image| is_named(image, name));
            images.truncate(end.unwrap_or(images.len()));
        }
        Filter::Before(name) => {
            if let Some(at) = images.iter().rposition(|image| is_named(image, name)) {
                images.drain(..=at);
            }
        }
    }
    images
}

fn is_named(image: &v1::Image, name: &str) -> bool {
    let id = image.id.strip_prefix("sha256:").unwrap_or(&image.id);
    image.repo_tags.iter().any(|tag| tag == name)
        || image.repo_digests.iter().any(|digest| digest == name)
        || image.id == name
        || (!name.contains([':', '@']) && !name.is_empty() && id.starts_with(name))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("dangling=true", &["3"])]
    #[case("dangling=false", &["1", "2"])]
    #[case("reference=^a.io/", &["1"])]
    #[case("since=b.io/y:2", &["1"])]
    #[case("before=a.io/x:1", &["2", "3"])]
    #[case("before=nothing", &["1", "2", "3"])]
    fn images_are_filtered_as_asked(#[case] filter: &str, #[case] expected: &[&str]) {
        let image = |id: &str, tags: &[&str], digests: &[&str]| v1::Image {
            id: id.to_owned(),
            repo_tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            repo_digests: digests.iter().map(|name| (*name).to_owned()).collect(),
            ..Default::default()
        };
        let all = vec![
            image("1", &["a.io/x:1"], &["a.io/x@sha256:1"]),
            image("2", &["b.io/y:2"], &["b.io/y@sha256:2"]),
            image("3", &[], &["c.io/z@sha256:3"]),
        ];
        let found = apply(&filter.parse().unwrap(), all);
        let ids: Vec<&str> = found.iter().map(|image| image.id.as_str()).collect();
        assert_eq!(ids, expected);
    }

    #[test]
    fn unknown_image_filter_is_rejected() {
        for text in ["dangling=maybe", "size=1", "reference=(", ""] {
            text.parse::<Filter>().unwrap_err();
        }
    }
}
