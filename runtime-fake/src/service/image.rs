//! `runtime.v1.ImageService`: converts the messages of the image store.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use cri::v1;
use cri::v1::image_service_server::ImageService;
use image::{ImageError, ImageId, ImageRecord, ImageStore, Reference, UserName};
use image::{Login, Mirror, Puller, Secret, named_by_call};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::runtime::Error;
use crate::service::lists::chunks;
use crate::service::stats::{Measure, filesystems};

/// The service over one store. Every call runs the store's blocking work on a blocking thread.
#[derive(Clone)]
pub(crate) struct ImageServer {
    store: Arc<ImageStore>,
    registries: Arc<Puller>,
    containers: Measure,
}

impl ImageServer {
    pub(crate) fn new(
        store: Arc<ImageStore>,
        registries: Arc<Puller>,
        containers: Measure,
    ) -> Self {
        Self { store, registries, containers }
    }

    /// Runs `work` on a blocking thread. It completes even if the client disconnects: the result of a pull is useful
    /// to the next call.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ImageStore) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let store = self.store.clone();
        let done = tasks::spawn_blocking(move || work(&store)).await;
        done.map_err(|error| Status::internal(format!("image store call failed: {error}")))
    }
}

impl ImageServer {
    async fn list(&self, filter: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, Status> {
        let wanted = filter
            .and_then(|filter| filter.image)
            .map(|spec| spec.image)
            .filter(|name| !name.is_empty());
        let records = self.blocking(move |store| match wanted {
            Some(name) => store.status(&name).into_iter().collect(),
            None => store.list(),
        });
        let records = records.await?.into_iter();
        Ok(records.map(|record| self.image(record)).collect())
    }

    fn image(&self, record: ImageRecord) -> v1::Image {
        let mut names = record.tags.iter().chain(&record.digests);
        let pinned = record.pinned || names.any(|name| self.registries.pins(name));
        image(record, pinned)
    }

    /// Pulls from the archives, or else from registries. The pull is cancelled when its client disconnects.
    async fn pull(
        &self,
        name: String,
        login: Option<&Login>,
        pod: Option<&str>,
    ) -> Result<ImageId, Status> {
        let reference = name.clone();
        let offered = self.blocking(move |store| store.pull(&reference)).await?;
        let before = match offered {
            Ok(id) => return Ok(id),
            // Names below crib.local are never pulled from a registry.
            Err(error) if name.starts_with("crib.local/") => return Err(Error::from(error).into()),
            Err(ImageError::NotFound { .. }) => Vec::new(),
            Err(error @ ImageError::NotFoundUnreadable { .. }) => vec![crate::chain(&error)],
            Err(error) => return Err(Error::from(error).into()),
        };
        let reference: Reference = name
            .parse()
            .map_err(|source| Error::from(ImageError::Reference { text: name, source }))?;
        let pulled = self.registries.pull(&reference, login, pod, None, before);
        Ok(pulled.await.map_err(Error::from)?)
    }

    /// Pulls from the source that the call names, under the image's own name: from a registry on this machine, as `crib load`
    /// imports an archive, or from the archives alone.
    async fn pull_from(&self, name: String, from: &str) -> Result<ImageId, Status> {
        if from == ARCHIVES {
            let pulled = self.blocking(move |store| store.pull(&name)).await?;
            return Ok(pulled.map_err(Error::from)?);
        }
        let bad = |why: String| Status::invalid_argument(format!("{PULL_FROM} {from}: {why}"));
        let mirror: Mirror = from.parse().map_err(|error| bad(crate::chain(&error)))?;
        let reference: Reference = name
            .parse()
            .map_err(|source| Error::from(ImageError::Reference { text: name, source }))?;
        let place = named_by_call(&mirror, &reference)
            .ok_or_else(|| bad("give a loopback address".to_owned()))?;
        let pulled = self.registries.pull(&reference, None, None, Some(place), Vec::new());
        Ok(pulled.await.map_err(Error::from)?)
    }
}

/// The gRPC metadata key of PullImage for the URL of a registry on this machine, or `archives`. It is not an annotation of the
/// image, because a kubelet copies the annotations of pods, whose authors must not choose the source of images.
pub const PULL_FROM: &str = "crib-pull-from";
/// Pulls from the archives only, from no registry.
const ARCHIVES: &str = "archives";

#[tonic::async_trait]
impl ImageService for ImageServer {
    /// Lists every image without a filter or with an empty one; otherwise the image that the filter names.
    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        let images = self.list(request.into_inner().filter).await?;
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    type StreamImagesStream =
        Pin<Box<dyn Stream<Item = Result<v1::StreamImagesResponse, Status>> + Send>>;

    /// Like ListImages, in messages of about a mebibyte.
    async fn stream_images(
        &self,
        request: Request<v1::StreamImagesRequest>,
    ) -> Result<Response<Self::StreamImagesStream>, Status> {
        let images = self.list(request.into_inner().filter).await?;
        let parts = chunks(images, prost::Message::encoded_len);
        let answers = parts.into_iter().map(|images| Ok(v1::StreamImagesResponse { images }));
        Ok(Response::new(Box::pin(tokio_stream::iter(answers))))
    }

    /// A missing image is an empty response, not an error (CRI v1, ImageStatusResponse).
    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        let request = request.into_inner();
        let name = named(request.image)?;
        let verbose = request.verbose;
        let found = self.blocking(move |store| {
            let record = store.status(&name)?;
            let info = if verbose { self::verbose(store, &record) } else { Ok(HashMap::new()) };
            Some((record, info))
        });
        let Some((record, info)) = found.await? else {
            return Ok(Response::new(v1::ImageStatusResponse::default()));
        };
        Ok(Response::new(v1::ImageStatusResponse {
            image: Some(self.image(record)),
            info: info.map_err(Error::from)?,
        }))
    }

    /// The response is the image's ID, the same as in ImageStatus and ListImages.
    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        let from = request.metadata().get(PULL_FROM);
        let from = from.map(|url| url.to_str().unwrap_or_default().to_owned());
        let request = request.into_inner();
        let name = named(request.image)?;
        if let Some(from) = from {
            let id = self.pull_from(name, &from).await?;
            return Ok(Response::new(v1::PullImageResponse { image_ref: id.to_string() }));
        }
        let login = request.auth.map(login);
        if let Some(Err(why)) = login.as_ref().map(Login::credentials) {
            return Err(Status::invalid_argument(format!("invalid pull credentials: {why}")));
        }
        let pod = request.sandbox_config.and_then(|pod| pod.metadata).map(|pod| pod.uid);
        let pod = pod.as_deref().filter(|uid| !uid.is_empty());
        let id = self.pull(name, login.as_ref(), pod).await?;
        Ok(Response::new(v1::PullImageResponse { image_ref: id.to_string() }))
    }

    /// Idempotent (CRI v1, ImageService.RemoveImage).
    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        let name = named(request.into_inner().image)?;
        let removed = self.blocking(move |store| store.remove(&name));
        removed.await?.map_err(Error::from)?;
        Ok(Response::new(v1::RemoveImageResponse {}))
    }

    /// The file system of images, and the containers' file system if it differs.
    async fn image_fs_info(
        &self,
        _request: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        let containers = self.containers.clone();
        let look = move |store: &ImageStore| (store.fs_info(), containers());
        let (info, containers) = self.blocking(look).await?;
        let now = jiff::Timestamp::now();
        Ok(Response::new(filesystems(&info, containers.as_ref(), now)))
    }
}

/// The image name in a request.
fn named(spec: Option<v1::ImageSpec>) -> Result<String, Status> {
    let name = spec.map(|spec| spec.image).unwrap_or_default();
    if name.is_empty() {
        return Err(Status::invalid_argument("the request names no image: set image.image"));
    }
    Ok(name)
}

fn login(auth: v1::AuthConfig) -> Login {
    let secret = |text: String| (!text.is_empty()).then(|| Secret::new(text));
    Login {
        username: auth.username,
        password: secret(auth.password),
        auth: secret(auth.auth),
        server_address: auth.server_address,
        identity_token: secret(auth.identity_token),
        registry_token: secret(auth.registry_token),
    }
}

fn image(record: ImageRecord, pinned: bool) -> v1::Image {
    let (uid, username) = match record.config.user() {
        UserName::Unset => (None, String::new()),
        UserName::Uid(uid) => (Some(v1::Int64Value { value: i64::from(uid) }), String::new()),
        UserName::Name(name) => (None, name),
    };
    v1::Image {
        id: record.id.to_string(),
        repo_tags: record.tags.into_iter().collect(),
        repo_digests: record.digests.into_iter().collect(),
        size: record.size,
        uid,
        username,
        spec: Some(v1::ImageSpec { image: record.id.to_string(), ..v1::ImageSpec::default() }),
        pinned,
    }
}

/// The verbose information for `crictl inspecti`: as in containerd, the chain ID of all layers and the image's
/// configuration.
fn verbose(
    store: &ImageStore,
    record: &ImageRecord,
) -> Result<HashMap<String, String>, ImageError> {
    let document = store.configuration(record)?;
    let spec = String::from_utf8_lossy(&document);
    let chain = record.chains().last();
    let chain = chain.map(ToString::to_string).unwrap_or_default();
    let info = format!("{{\"chainID\":\"{chain}\",\"imageSpec\":{}}}", spec.trim());
    Ok(HashMap::from([("info".to_owned(), info)]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use image::{Digest, ImageOptions, Registries};
    use rstest::rstest;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;
    use tonic::Code;

    use super::*;

    struct Bench {
        dir: tempfile::TempDir,
        server: ImageServer,
    }

    fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, content) in members {
            let mut header = tar::Header::new_gnu();
            // `set_path` rejects names that lead out of the archive.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(content.len() as u64);
            header.set_cksum();
            archive.append(&header, *content).unwrap();
        }
        archive.into_inner().unwrap()
    }

    /// A docker archive of one image, whose layer has one file.
    fn archive(file: &str, user: &str) -> Vec<u8> {
        let layer = tar(&[(file, b"content")]);
        let config = json!({
            "architecture": "any",
            "os": "linux",
            "config": {"Entrypoint": ["/bin/x"], "User": user},
            "rootfs": {"type": "layers", "diff_ids": [Digest::of(&layer).to_string()]},
        });
        let manifest =
            json!([{"Config": "config", "RepoTags": ["example.com/app:1"], "Layers": ["layer"]}]);
        tar(&[
            ("manifest.json", manifest.to_string().as_bytes()),
            ("config", config.to_string().as_bytes()),
            ("layer", &layer),
        ])
    }

    fn spec(name: &str) -> Option<v1::ImageSpec> {
        Some(v1::ImageSpec { image: name.to_owned(), ..v1::ImageSpec::default() })
    }

    impl Bench {
        /// Provides one docker archive, whose image sets `user`, and the host's image.
        fn new(user: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.tar");
            std::fs::write(&path, archive("a", user)).unwrap();
            let options = ImageOptions {
                archives: vec![path],
                ..ImageOptions::new(dir.path().join("store"))
            };
            let store = Arc::new(ImageStore::open(options).unwrap());
            let (settings, tasks) = (Registries::default(), TaskTracker::new());
            let registries = Puller::new(store.clone(), settings, tasks, CancellationToken::new());
            let server = ImageServer::new(store, Arc::new(registries), Arc::new(|| None));
            Self { dir, server }
        }

        async fn pull(&self, name: &str) -> Result<String, Status> {
            let request =
                v1::PullImageRequest { image: spec(name), ..v1::PullImageRequest::default() };
            Ok(self.server.pull_image(Request::new(request)).await?.into_inner().image_ref)
        }

        async fn status(&self, name: &str, verbose: bool) -> v1::ImageStatusResponse {
            let request = v1::ImageStatusRequest { image: spec(name), verbose };
            self.server.image_status(Request::new(request)).await.unwrap().into_inner()
        }

        async fn list(&self, filter: Option<&str>) -> Vec<v1::Image> {
            let filter = filter.map(|name| v1::ImageFilter { image: spec(name) });
            let request = v1::ListImagesRequest { filter };
            self.server.list_images(Request::new(request)).await.unwrap().into_inner().images
        }

        async fn remove(&self, name: &str) -> Result<(), Status> {
            let request = v1::RemoveImageRequest { image: spec(name) };
            self.server.remove_image(Request::new(request)).await.map(|_| ())
        }
    }

    #[tokio::test]
    async fn image_is_listed_until_removed() {
        let bench = Bench::new("");
        assert_eq!(bench.status("example.com/app:1", false).await.image, None);
        assert_eq!(bench.list(None).await, []);
        let id = bench.pull("example.com/app:1").await.unwrap();
        let host = bench.pull("crib.local/host").await.unwrap();
        let status = bench.status("example.com/app:1", true).await;
        let image = status.image.unwrap();
        assert_eq!(
            (image.id.as_str(), &image.repo_tags[..]),
            (id.as_str(), &["example.com/app:1".to_owned()][..])
        );
        assert!(
            image.size > 0 && image.uid.is_none() && image.username.is_empty() && !image.pinned
        );
        let info: serde_json::Value = serde_json::from_str(&status.info["info"]).unwrap();
        assert_eq!(info["imageSpec"]["config"]["Entrypoint"][0], "/bin/x");
        assert_eq!(info["chainID"], info["imageSpec"]["rootfs"]["diff_ids"][0]);
        for name in [id.as_str(), &id["sha256:".len()..], "example.com/app:1"] {
            assert_eq!(bench.status(name, false).await.image.as_ref(), Some(&image), "{name}");
            assert_eq!(bench.list(Some(name)).await, std::slice::from_ref(&image));
        }
        assert_eq!(bench.list(Some("example.com/app:2")).await, []);
        let mut ids: Vec<String> =
            bench.list(Some("")).await.into_iter().map(|image| image.id).collect();
        ids.sort();
        let mut want = vec![id.clone(), host];
        want.sort();
        assert_eq!(ids, want);
        bench.remove(&id).await.unwrap();
        bench.remove(&id).await.unwrap();
        bench.remove("example.com/never:1").await.unwrap();
        assert_eq!(bench.status("example.com/app:1", false).await.image, None);
        assert_eq!(bench.list(None).await.len(), 1);
    }

    #[rstest]
    #[case("1002", Some(1002), "")]
    #[case("www-data", None, "www-data")]
    #[case("1003:users", Some(1003), "")]
    #[case("www-data:www-data", None, "www-data")]
    #[tokio::test]
    async fn image_user_is_reported_as_uid_or_name(
        #[case] user: &str,
        #[case] uid: Option<i64>,
        #[case] name: &str,
    ) {
        let bench = Bench::new(user);
        let id = bench.pull("example.com/app:1").await.unwrap();
        let image = bench.status(&id, false).await.image.unwrap();
        assert_eq!((image.uid.map(|uid| uid.value), image.username.as_str()), (uid, name));
    }

    #[tokio::test]
    async fn pull_errors_map_to_grpc_codes() {
        let bench = Bench::new("");
        let code = |result: Result<String, Status>| result.unwrap_err().code();
        assert_eq!(code(bench.pull("").await), Code::InvalidArgument);
        assert_eq!(code(bench.pull("Not A Name").await), Code::InvalidArgument);
        assert_eq!(code(bench.pull("crib.local/app:2").await), Code::NotFound);
        assert_eq!(bench.remove("").await.unwrap_err().code(), Code::InvalidArgument);
        std::fs::write(bench.dir.path().join("a.tar"), archive("../evil", "")).unwrap();
        let status = bench.pull("example.com/app:1").await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        let end = "a.tar was refused: the layer names \"../evil\", which leads out of the image";
        assert!(status.message().ends_with(end), "{}", status.message());
    }

    #[tokio::test]
    async fn image_filesystem_usage_grows_with_images() {
        let bench = Bench::new("");
        let used = async || {
            let request = Request::new(v1::ImageFsInfoRequest {});
            let info = bench.server.image_fs_info(request).await.unwrap().into_inner();
            let [usage] = &info.image_filesystems[..] else { panic!("{info:?}") };
            let mountpoint = &usage.fs_id.as_ref().unwrap().mountpoint;
            assert!(std::path::Path::new(mountpoint).is_dir(), "{mountpoint}");
            assert!(usage.timestamp > 1_700_000_000_000_000_000);
            (usage.used_bytes.unwrap().value, usage.inodes_used.unwrap().value)
        };
        let empty = used().await;
        assert_eq!(empty.0, 0);
        bench.pull("example.com/app:1").await.unwrap();
        let full = used().await;
        assert!(full.0 > empty.0 && full.1 > empty.1, "{empty:?} {full:?}");
    }
}
