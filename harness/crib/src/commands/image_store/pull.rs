//! `crib pull`: makes a runtime pull images.

use indicatif::{ProgressBar, ProgressStyle};

use crate::client::config::pod_config;
use crate::client::credentials::CredentialArgs;
use crate::client::select::{label, labels};
use crate::commands::prelude::*;

/// Pull images from their registries
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib pull registry.k8s.io/pause:3.10 busybox
  crib pull --creds me:secret localhost:5000/team/app:1

`crib pull` prints the id of each image. Ctrl-C cancels the pull."))]
pub(crate) struct PullArgs {
    /// Image references
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
    #[command(flatten)]
    credentials: CredentialArgs,
    /// PodSandboxConfig of the pod that needs the images, in JSON or YAML
    #[arg(long, value_name = "FILE")]
    pod_config: Option<String>,
    /// Annotation for the ImageSpec in the request; repeatable
    #[arg(short, long, value_parser = label, value_name = "KEY=VALUE")]
    annotation: Vec<(String, String)>,
    /// Timeout of each pull [default: none]
    #[arg(long, value_name = "TIME", value_parser = duration, env = "CRICTL_PULL_TIMEOUT", hide_env_values = true)]
    pull_timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Pulls the images.
pub(crate) async fn run(args: &PullArgs) -> Result<Exit, CallError> {
    let auth = args.credentials.auth().await?;
    let pod_config = match &args.pod_config {
        Some(path) => Some(pod_config(path).await?),
        None => None,
    };
    let cri = args.connection.open()?;
    each(&args.images, async |image: &String| {
        let pull = Pull {
            image: v1::ImageSpec {
                image: image.clone(),
                user_specified_image: image.clone(),
                annotations: labels(&args.annotation),
                ..Default::default()
            },
            auth: auth.clone(),
            pod_config: pod_config.clone(),
            timeout: args.pull_timeout,
        };
        let id = pull.run(&cri).await?;
        print(&format!("Image is up to date for {id}"))
    })
    .await
}

/// The pull of one image.
pub(crate) struct Pull {
    pub(crate) image: v1::ImageSpec,
    pub(crate) auth: Option<v1::AuthConfig>,
    pub(crate) pod_config: Option<v1::PodSandboxConfig>,
    /// `None`: the user's timeout for calls.
    pub(crate) timeout: Option<Duration>,
}

impl Pull {
    /// Pulls the image, shows a spinner on a terminal, and returns the image's id.
    pub(crate) async fn run(self, cri: &Cri) -> Result<String, CallError> {
        let spinner =
            ProgressBar::new_spinner().with_message(format!("pulling {}", self.image.image));
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            spinner.set_style(style);
        }
        spinner.enable_steady_tick(Duration::from_millis(100));
        let request = v1::PullImageRequest {
            image: Some(self.image),
            auth: self.auth,
            sandbox_config: self.pod_config,
        };
        let mut client = cri.images.images.clone();
        let answer = client.pull_image(request);
        let answer = cri.call_within("PullImage", self.timeout, answer).await;
        spinner.finish_and_clear();
        Ok(answer?.into_inner().image_ref)
    }
}
