//! Loads the manifests of the command line: returns the pods, or all errors.

use std::io;
use std::path::{Path, PathBuf};

use agent::objects::ObjectMap;
use agent::pod_spec::priority_class;
use agent::pod_spec::references;
use agent::pod_spec::runtime_class;
use agent::services::NodePorts;
use agent::{MakeInMemory, services};
use api::claims::ClaimName;
use api::manifest::{self, Object, Parsed, Problem, Skipped, Strictness, Workload};
use api::manifest_set::{
    extended_resources, fractional_bytes, named_pods, owned_objects, reserved_names,
};
use api::pod::Pod;
use clap::Args;
use compact::{Map, Set};
use crib_base::named_text;
use crib_base::pull_secrets::PullSecrets;

use crate::input::claims;
use crate::input::cluster_fields;
use crate::input::node_fields;
use crate::input::skipped;
use crate::input::storage_limits;
use crate::input::unsupported_storage;
use crate::input::watched::Watched;

/// The contents of the manifests, and the options for them.
#[derive(Debug)]
pub struct Inputs {
    /// The pods, with unique names and uids.
    pub pods: Vec<Pod>,
    /// The workloads, with unique names per kind. There is at least one pod or workload.
    pub workloads: Vec<Workload>,
    /// The objects that pods refer to.
    pub objects: ObjectMap,
    /// The claims that pods mount; for a StatefulSet, those of its first pod.
    pub claims: Vec<ClaimName>,
    /// The directory of their volumes.
    pub volumes_dir: PathBuf,
    /// The watch of the manifest files, with `--watch`.
    pub watched: Option<Watched>,
    /// The function that creates the directory for volumes in memory.
    pub volumes_in_memory: Option<MakeInMemory>,
    /// The directory of the seccomp profiles that localhostProfile refers to.
    pub seccomp_profile_root: Option<PathBuf>,
    /// The kinds, namespaces and names of the objects in the manifests.
    pub object_names: Vec<String>,
    /// Possible mistakes in the manifests.
    pub warnings: Vec<String>,
    /// The warnings that are errors with `--strict`, before they are added to `warnings`.
    refusable: Vec<String>,
    /// Fields without effect.
    pub no_effect: Vec<Problem>,
    /// Registry credentials.
    pub pull_secrets: PullSecrets,
    /// The pods and workloads without terminationGracePeriodSeconds.
    pub without_grace: Set<String>,
}

const NOTHING: &str = "no pod in the manifests: nothing to run";

/// How manifests without a pod or workload are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Empty {
    /// As an error.
    Refused,
    /// Accepted: earlier or later manifests have pods.
    Accepted,
}

/// Options for reading manifests.
#[derive(Debug, Clone, Copy, Args)]
pub struct ManifestArgs {
    /// Accept unknown fields and duplicate keys in manifests, with a warning
    #[arg(long)]
    pub lenient: bool,
    /// Fail, instead of warning, if crib does not run a kind, or cannot fully provide a resource, limit, Service or
    /// PersistentVolumeClaim
    #[arg(long)]
    pub strict: bool,
    /// Maximum number of YAML documents in all manifests together
    #[arg(long, value_name = "NUMBER", default_value_t = Self::default().max_documents)]
    pub max_documents: usize,
}

impl Default for ManifestArgs {
    fn default() -> Self {
        Self { lenient: false, strict: false, max_documents: 1000 }
    }
}

/// The maximum size of a document: 16 MiB.
const LONGEST_DOCUMENT: usize = 16 << 20;

/// The maximum number of problems that are reported: a directory may contain many files that are not manifests.
const MOST_PROBLEMS: usize = 100;

/// Reads all manifests. The errors are messages, one for each of the first problems. Skipped documents, and unsupported features of
/// Services and storage, are errors if `strict` is set, otherwise warnings.
pub fn load(paths: &[PathBuf], how: ManifestArgs) -> Result<Inputs, Vec<String>> {
    load_or_none(paths, how, Empty::Refused)
}

/// The full names of the objects in manifests, such as `deployment default/web`, without those that a run does not store:
/// Namespaces, Endpoints and skipped kinds. Objects may refer to objects in other manifests.
pub fn full_names(paths: &[PathBuf]) -> Result<Vec<String>, Vec<String>> {
    let mut texts = Texts::with_room(ManifestArgs::default().max_documents);
    let (mut names, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        problems.extend(read_manifests(path, Empty::Refused, &mut texts).err());
    }
    for (file, text) in &texts.all {
        let parsed = manifest::parse(file, text, Strictness::Lenient);
        let errors = parsed.problems.iter().filter(|problem| problem.object.is_none());
        problems.extend(errors.map(ToString::to_string));
        names.extend(parsed.pods.iter().map(|pod| format!("pod {}", pod.full_name())));
        names.extend(parsed.workloads.iter().map(Workload::full_name));
        let stored = parsed
            .objects
            .iter()
            .filter(|object| !matches!(object, Object::Namespace(_) | Object::Endpoints(_)));
        names.extend(stored.map(Object::full_name));
    }
    if problems.is_empty() { Ok(names) } else { Err(problems) }
}

/// Like [`load`], with a choice for manifests without a pod or workload.
pub(crate) fn load_or_none(
    paths: &[PathBuf],
    how: ManifestArgs,
    empty: Empty,
) -> Result<Inputs, Vec<String>> {
    read_all(paths, how, empty).map_err(|mut problems| {
        let more = problems.len().saturating_sub(MOST_PROBLEMS);
        problems.truncate(MOST_PROBLEMS);
        problems.extend((more > 0).then(|| format!("and {more} more problems in the manifests")));
        problems
    })
}

fn read_all(paths: &[PathBuf], how: ManifestArgs, empty: Empty) -> Result<Inputs, Vec<String>> {
    let ManifestArgs { lenient, strict, max_documents } = how;
    let (mut texts, mut problems) = (Texts::with_room(max_documents), Vec::new());
    let strictness = if lenient { Strictness::Lenient } else { Strictness::Strict };
    for path in paths {
        problems.extend(read_manifests(path, empty, &mut texts).err());
        if texts.is_too_much() {
            return Err(problems);
        }
    }
    let mut texts = texts.all;
    // Blank files are ignored, as by kubectl. If all files are blank, they are kept, so that the error names them.
    let is_something = texts.iter().any(|(_, text)| !is_blank(text));
    if is_something || empty == Empty::Accepted {
        texts.retain(|(_, text)| !is_blank(text));
    }
    let mut parsed: Vec<(String, Parsed)> = Vec::with_capacity(texts.len());
    let mut documents = 0;
    for (name, text) in texts {
        let one = manifest::parse(&name, &text, strictness);
        // Counts the items of lists, which are not documents of the text.
        documents += one.documents;
        if documents > max_documents {
            problems.push(too_many_documents(&name, max_documents));
            return Err(problems);
        }
        parsed.push((name, one));
    }
    let skipped = parsed.iter().flat_map(|(_, parsed)| parsed.skipped.clone());
    let skipped: Vec<Skipped> = skipped.collect();
    let kustomizations = skipped::kustomizations(&skipped);
    let skipped = skipped::sentences(&skipped);
    if strict {
        problems.extend(skipped.iter().map(|skipped| format!("--strict: {skipped}")));
    }
    let mut inputs = match merge(parsed, problems, empty) {
        Ok(inputs) => inputs,
        // Skipped documents may be the reason.
        Err(problems) if problems == [NOTHING] => {
            return Err(skipped.into_iter().chain(problems).collect());
        }
        Err(problems) if strict => return Err(problems),
        Err(problems) => return Err(kustomizations.into_iter().chain(problems).collect()),
    };
    let other_nodes = node_fields::warning(&inputs.pods, &inputs.workloads);
    inputs.warnings.extend(other_nodes);
    let mut refusable = std::mem::take(&mut inputs.refusable);
    refusable.extend(storage_limits::warning(&inputs.pods, &inputs.workloads));
    let devices = extended_resources::warnings(&inputs.pods, &inputs.workloads);
    refusable.extend(devices);
    refusable.extend(fractional_bytes::warnings(&inputs.pods, &inputs.workloads));
    refusable.extend(claims::warnings(&inputs.claims, &inputs.objects));
    refusable.extend(services::warnings(&inputs.objects));
    if strict && !refusable.is_empty() {
        let refused = refusable.iter().map(|message| format!("--strict: {message}"));
        return Err(refused.collect());
    }
    if !strict {
        inputs.warnings.extend(skipped);
        inputs.warnings.extend(refusable);
    }
    Ok(inputs)
}

/// Makes the paths of image archives absolute; fails with a message if a path is missing or cannot be an archive.
pub(crate) fn archives(paths: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    paths.iter().map(|path| archive(path)).collect()
}

fn archive(given: &Path) -> Result<PathBuf, String> {
    let shown = given.display();
    let failed = |error: io::Error| format!("failed to find the image archive {shown}: {error}");
    let path = given.canonicalize().map_err(failed)?;
    let kind = path.metadata().map_err(failed)?;
    // Without this check, the mistake would only appear as a failed pull of a pod.
    if !kind.is_file() && !kind.is_dir() {
        return Err(format!(
            "failed to read the image archive {shown}: it is neither a file nor a directory"
        ));
    }
    if runtime_fake::archives_in(&path).map_err(failed)?.is_empty() {
        return Err(format!(
            "the directory {shown} contains no image: give --image-archive an OCI layout, or a directory with archives \
            (*.tar, *.tar.gz, *.tgz, *.tar.zst, *.oci) or layouts"
        ));
    }
    Ok(path)
}

/// Manifests that were read, each with its name.
struct Texts {
    all: Vec<(String, String)>,
    documents: usize,
    most: usize,
}

impl Texts {
    fn with_room(most: usize) -> Self {
        Self { all: Vec::new(), documents: 0, most }
    }

    fn is_too_much(&self) -> bool {
        self.documents > self.most
    }

    fn add(&mut self, (name, text): (String, String)) -> Result<(), String> {
        self.documents += documents(&name, &text)?;
        if self.is_too_much() {
            return Err(too_many_documents(&name, self.most));
        }
        self.all.push((name, text));
        Ok(())
    }
}

fn too_many_documents(name: &str, most: usize) -> String {
    format!("{name}: there are more than {most} documents: raise --max-documents")
}

/// Appends the name and the text of each manifest in `path`.
fn read_manifests(path: &Path, empty: Empty, texts: &mut Texts) -> Result<(), String> {
    if path == Path::new("-") {
        let bytes = named_text::read_bytes(std::io::stdin(), named_text::MOST)
            .map_err(|error| format!("failed to read standard input: {error}"))?;
        return texts.add(("<stdin>".to_owned(), decode("<stdin>", bytes)?));
    }
    if let Some(url) = path.to_str().filter(|path| is_url(path)) {
        return Err(format!(
            "{url}: URLs are not supported, because their content can change: download the manifest, review it, and run the file"
        ));
    }
    let read_error =
        |error: std::io::Error| format!("failed to read the manifest {}: {error}", path.display());
    if !path.metadata().map_err(read_error)?.is_dir() {
        return texts.add(text_of(path)?);
    }
    let mut files = Vec::new();
    for entry in path.read_dir().map_err(read_error)? {
        let file = entry.map_err(read_error)?.path();
        if is_manifest(&file) && file.is_file() {
            files.push(file);
        }
    }
    if files.is_empty() && empty == Empty::Refused {
        return Err(format!(
            "{}: no *.yaml, *.yml or *.json file in this directory",
            path.display()
        ));
    }
    files.sort();
    files.iter().try_for_each(|file| texts.add(text_of(file)?))
}

/// The number of documents in a text, without blank ones.
fn documents(name: &str, text: &str) -> Result<usize, String> {
    let parts = || text.split("\n---");
    if parts().any(|part| part.len() > LONGEST_DOCUMENT) {
        return Err(format!(
            "{name}: a document has more than {} MiB: is this a manifest?",
            LONGEST_DOCUMENT >> 20
        ));
    }
    Ok(parts().filter(|part| !is_blank(part)).count())
}

fn text_of(path: &Path) -> Result<(String, String), String> {
    let name = path.display().to_string();
    let read = named_text::open(path);
    let bytes = read
        .and_then(|file| named_text::read_bytes(file, named_text::MOST))
        .map_err(|error| format!("failed to read the manifest {name}: {error}"))?;
    let text = decode(&name, bytes)?;
    Ok((name, text))
}

/// The text of a manifest: UTF-8, or UTF-16 with a byte order mark, as PowerShell writes it and kubectl reads it.
fn decode(name: &str, bytes: Vec<u8>) -> Result<String, String> {
    if let Some(text) = utf_16(&bytes) {
        return Ok(text);
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("{name}: byte {at} is not UTF-8: a manifest is YAML or JSON text")
    })
}

/// The text of bytes that begin with a byte order mark of UTF-16. Invalid units become the replacement character, as with kubectl.
fn utf_16(bytes: &[u8]) -> Option<String> {
    let (is_little, rest) = match bytes {
        [0xff, 0xfe, rest @ ..] => (true, rest),
        [0xfe, 0xff, rest @ ..] => (false, rest),
        _ => return None,
    };
    let (pairs, _) = rest.as_chunks::<2>();
    let unit = |pair: &[u8; 2]| {
        if is_little { u16::from_le_bytes(*pair) } else { u16::from_be_bytes(*pair) }
    };
    let units = pairs.iter().map(unit);
    Some(char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
}

/// Whether a manifest contains only comments and document separators.
fn is_blank(text: &str) -> bool {
    text.lines().all(|line| {
        let line = line.strip_prefix("---").unwrap_or(line).trim();
        line.is_empty() || line.starts_with('#')
    })
}

fn is_url(path: &str) -> bool {
    path.starts_with("http://") || path.starts_with("https://")
}

fn is_manifest(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let known = path
        .extension()
        .is_some_and(|extension| extension == "yaml" || extension == "yml" || extension == "json");
    known && !hidden
}

/// The error for a second object of the same name; objects without a name have an error of their own.
fn twice(file: &str, name: &str) -> Option<String> {
    (!name.ends_with(['/', ' ']))
        .then(|| format!("{file}: {name} is in the manifests twice: give one of them another name"))
}

/// Merges the pods and objects of all files; rejects duplicate names, missing objects and an empty result.
fn merge(
    files: Vec<(String, Parsed)>,
    mut problems: Vec<String>,
    empty: Empty,
) -> Result<Inputs, Vec<String>> {
    let (mut pods, mut warnings) = (Vec::<Pod>::new(), Vec::new());
    let (mut names, mut uids) = (Map::new(), Map::new());
    let mut all_objects: Vec<(String, Object)> = Vec::new();
    // Indexes of objects and workloads by name, because there may be many.
    let mut object_indexes: Map<String, usize> = Map::new();
    let mut workload_indexes: Map<String, usize> = Map::new();
    let (mut no_effect, mut unsupported) = (Vec::new(), Vec::new());
    let mut workloads: Vec<Workload> = Vec::new();
    let mut node_ports = NodePorts::default();
    let mut without_grace = Set::new();
    for (file, parsed) in files {
        without_grace.extend(parsed.without_grace);
        for object in parsed.objects {
            let name = object.full_name();
            // As in kubectl, the last definition is used. Objects without a name have an error of their own.
            let index = object_indexes.get(&name).copied();
            match index.and_then(|index| all_objects.get_mut(index)) {
                Some((_, other)) if *other == object => {}
                Some(other) if !name.ends_with(['/', ' ']) => {
                    let last = "is in the manifests twice: the last definition is used";
                    warnings.push(format!("{file}: {name} {last}"));
                    *other = (file.clone(), object);
                }
                Some(_) => all_objects.push((file.clone(), object)),
                None => {
                    object_indexes.insert(name, all_objects.len());
                    all_objects.push((file.clone(), object));
                }
            }
        }
        for workload in parsed.workloads {
            let name = workload.full_name();
            let index = workload_indexes.get(&name).copied();
            match index.and_then(|index| workloads.get(index)) {
                Some(other) if other.object == workload.object => {}
                Some(_) => {
                    problems.extend(twice(&file, &name));
                    workloads.push(workload);
                }
                None => {
                    workload_indexes.insert(name, workloads.len());
                    workloads.push(workload);
                }
            }
        }
        let (of_storage, others): (Vec<_>, Vec<_>) =
            parsed.problems.into_iter().partition(|problem| problem.object.is_some());
        unsupported.extend(of_storage);
        problems.extend(others.iter().map(ToString::to_string));
        warnings.extend(parsed.warnings.iter().map(ToString::to_string));
        no_effect.extend(parsed.no_effect);
        // Pods without a name have an error of their own.
        let named = parsed.pods.into_iter().filter(|pod| !pod.name().is_empty());
        for pod in named {
            if let Some(other) = names.insert(pod.full_name(), file.clone()) {
                let place = if other == file {
                    "is defined twice".to_owned()
                } else {
                    format!("is also defined in {other}")
                };
                problems.push(format!(
                    "{file}: pod {} {place}: give one of them another name",
                    pod.full_name()
                ));
            } else if let Some(other) = uids.insert(pod.uid().clone(), pod.full_name()) {
                let name = pod.full_name();
                problems.push(format!("{file}: pod {name} has the same metadata.uid as pod {other}: leave it out, or change it"));
            }
            pods.push(pod);
        }
    }
    for (file, object) in &all_objects {
        if let Object::Service(service) = object {
            let (taken, name) = (node_ports.take(service), object.full_name());
            problems.extend(taken.into_iter().map(|problem| format!("{file}: {name}: {problem}")));
        }
    }
    let all_objects: Vec<Object> = all_objects.into_iter().map(|(_, object)| object).collect();
    warnings.extend(owned_objects::remove_owned(&mut pods, &mut workloads));
    problems.extend(reserved_names::problems(&pods, &workloads));
    let is_empty = pods.is_empty() && workloads.is_empty();
    if is_empty && problems.is_empty() && empty == Empty::Refused {
        problems.push(NOTHING.to_owned());
    }
    let mut objects = ObjectMap::default();
    let object_names = all_objects.iter().map(Object::full_name).collect();
    objects.extend(all_objects);
    for workload in &workloads {
        objects.insert_claims_of(workload);
    }
    warnings.extend(cluster_fields::leave_out(&mut pods, &mut workloads, &mut objects));
    problems.extend(runtime_class::add_overhead(&mut pods, &mut workloads, &objects));
    let priorities = priority_class::add_priority(&mut pods, &mut workloads, &objects);
    problems.extend(priorities.problems);
    let examples: Vec<Pod> = workloads.iter().map(Workload::example).collect();
    let used = claims::used(pods.iter().chain(&examples));
    let storage = unsupported_storage::sort(&unsupported, &pods, &workloads, &objects);
    problems.extend(storage.problems);
    if problems.is_empty() {
        for (owner, pod) in named_pods(&pods, &workloads) {
            let missing = references::missing(&pod, &objects);
            problems.extend(missing.iter().map(|name| {
                let file = pod.origin();
                format!("{file}: {owner} needs the {name}: add it to the manifests")
            }));
        }
    }
    if problems.is_empty() {
        problems = claims::problems(&used, &objects);
    }
    if problems.is_empty() {
        Ok(Inputs {
            claims: used,
            volumes_dir: PathBuf::new(),
            volumes_in_memory: None,
            seccomp_profile_root: None,
            watched: None,
            pods,
            workloads,
            objects,
            object_names,
            warnings,
            refusable: priorities.unknown.into_iter().chain(storage.warnings).collect(),
            no_effect,
            pull_secrets: PullSecrets::default(),
            without_grace,
        })
    } else {
        Err(problems)
    }
}

#[cfg(test)]
#[path = "inputs/tests.rs"]
mod tests;
