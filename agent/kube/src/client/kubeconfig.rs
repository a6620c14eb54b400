//! Kubeconfigs: where the API server is, what its certificate is verified with, and who the client is.
//!
//! The current context counts. Relative paths are relative to the file (Kubernetes 1.36,
//! staging/src/k8s.io/client-go/tools/clientcmd/client_config.go and loader.go).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fetch::pki_types::pem::PemObject as _;
use fetch::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use fetch::{Identity, Url};
use http::HeaderValue;
use serde::Deserialize;

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The file, or one that it names, cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// What is in it cannot be used.
    #[error("kubeconfig {}: {problem}", path.display())]
    Content {
        /// The kubeconfig.
        path: PathBuf,
        /// What is wrong, and where.
        problem: String,
    },
}

/// An API server, and how a client shows who it is.
#[derive(Debug)]
pub struct Connection {
    /// The server's URL.
    pub(crate) server: Url,
    /// The authorities of the server's certificate; `None`: those of the system.
    pub(crate) roots: Option<Vec<CertificateDer<'static>>>,
    /// The name in the server's certificate, if it is not that of the URL.
    pub(crate) server_name: Option<ServerName<'static>>,
    /// The proxy of all requests.
    pub(crate) proxy: Option<String>,
    /// The client's certificate.
    pub(crate) identity: Option<Identity>,
    /// What requests say beside that.
    pub(crate) credentials: Credentials,
}

/// What the Authorization header of requests says.
#[derive(Clone)]
pub(crate) enum Credentials {
    /// There is none.
    Nothing,
    /// Always the same.
    Fixed(HeaderValue),
    /// A token in a file, which another program may replace.
    File(PathBuf),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Fixed(_) => "Fixed",
            Self::File(_) => "File",
        })
    }
}

/// A kubeconfig, as far as it counts.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct File {
    current_context: String,
    clusters: Vec<NamedCluster>,
    contexts: Vec<NamedContext>,
    users: Vec<NamedUser>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    username: Option<String>,
    password: Option<String>,
    exec: Option<serde_json::Value>,
    #[serde(rename = "auth-provider")]
    auth_provider: Option<serde_json::Value>,
}

impl Connection {
    /// Reads the kubeconfig at `path`, and the files that it names.
    ///
    /// # Errors
    ///
    /// The file that cannot be read, or what is wrong in it.
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        let text = read(path)?;
        let reader = Reader { path };
        let text = std::str::from_utf8(&text).map_err(|_| reader.problem("it is not UTF-8"))?;
        let file = serde_saphyr::from_str(text).map_err(|error| reader.problem(error))?;
        reader.connection(file)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, KubeconfigError> {
    std::fs::read(path).map_err(|source| KubeconfigError::Read { path: path.to_owned(), source })
}

/// Follows the names in the kubeconfig at a path.
struct Reader<'p> {
    path: &'p Path,
}

impl Reader<'_> {
    fn problem(&self, problem: impl fmt::Display) -> KubeconfigError {
        KubeconfigError::Content { path: self.path.to_owned(), problem: problem.to_string() }
    }

    fn connection(&self, file: File) -> Result<Connection, KubeconfigError> {
        let unknown = |what: &str, name: &str| self.problem(format!("there is no {what} {name:?}"));
        let name = file.current_context;
        if name.is_empty() {
            return Err(self.problem("current-context is not set"));
        }
        let context = file.contexts.into_iter().find(|context| context.name == name);
        let context = context.ok_or_else(|| unknown("context", &name))?.context;
        let cluster = file.clusters.into_iter().find(|cluster| cluster.name == context.cluster);
        let cluster = cluster.ok_or_else(|| unknown("cluster", &context.cluster))?.cluster;
        let user = match context.user.as_str() {
            "" => User::default(),
            name => {
                let user = file.users.into_iter().find(|user| user.name == name);
                user.ok_or_else(|| unknown("user", name))?.user
            }
        };
        if cluster.insecure_skip_tls_verify {
            return Err(self.problem(
                "insecure-skip-tls-verify is not supported: name the server's authority in certificate-authority",
            ));
        }
        let server = Url::of_server(&cluster.server).ok_or_else(|| {
            self.problem(format!("server {:?} is not an http or https URL", cluster.server))
        })?;
        let roots = self.data(
            "certificate-authority",
            cluster.certificate_authority_data.as_deref(),
            cluster.certificate_authority.as_deref(),
        )?;
        let roots =
            roots.map(|pem| self.certificates("certificate-authority", &pem)).transpose()?;
        let server_name = filled(cluster.tls_server_name).map(|name| {
            ServerName::try_from(name.clone())
                .map_err(|_| self.problem(format!("tls-server-name {name:?} is no host name")))
        });
        Ok(Connection {
            server,
            roots,
            server_name: server_name.transpose()?,
            proxy: filled(cluster.proxy_url),
            identity: self.identity(&user)?,
            credentials: self.credentials(user)?,
        })
    }

    fn identity(&self, user: &User) -> Result<Option<Identity>, KubeconfigError> {
        let data = user.client_certificate_data.as_deref();
        let certificate =
            self.data("client-certificate", data, user.client_certificate.as_deref())?;
        let data = user.client_key_data.as_deref();
        let key = self.data("client-key", data, user.client_key.as_deref())?;
        let (certificate, key) = match (certificate, key) {
            (None, None) => return Ok(None),
            (Some(certificate), Some(key)) => (certificate, key),
            (Some(_), None) => return Err(self.problem("client-certificate is without client-key")),
            (None, Some(_)) => return Err(self.problem("client-key is without client-certificate")),
        };
        let key = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|error| self.problem(format!("client-key is no PEM key: {error}")))?;
        let certificates = self.certificates("client-certificate", &certificate)?;
        Ok(Some(Identity { certificates, key }))
    }

    fn credentials(&self, user: User) -> Result<Credentials, KubeconfigError> {
        if user.exec.is_some() || user.auth_provider.is_some() {
            return Err(self.problem(
                "exec and auth-provider of users are not supported: use a client certificate, token or tokenFile",
            ));
        }
        // The file counts where both are given, as in client-go.
        if let Some(file) = filled(user.token_file) {
            return Ok(Credentials::File(self.beside(&file)));
        }
        if let Some(token) = filled(user.token) {
            let header = fetch::bearer(&token);
            let header = header
                .ok_or_else(|| self.problem("token has characters that no header can have"))?;
            return Ok(Credentials::Fixed(header));
        }
        Ok(match filled(user.username) {
            Some(name) => {
                let password = user.password.unwrap_or_default();
                Credentials::Fixed(fetch::basic(name.as_bytes(), password.as_bytes()))
            }
            None => Credentials::Nothing,
        })
    }

    /// What is given as base64, or else in a file.
    fn data(
        &self,
        field: &str,
        data: Option<&str>,
        file: Option<&str>,
    ) -> Result<Option<Vec<u8>>, KubeconfigError> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let compact: String = data.split_whitespace().collect();
            let decoded = BASE64_STANDARD.decode(compact);
            let problem = |error| self.problem(format!("{field}-data is not base64: {error}"));
            return decoded.map(Some).map_err(problem);
        }
        let file = file.filter(|file| !file.is_empty());
        file.map(|file| read(&self.beside(file))).transpose()
    }

    fn certificates(
        &self,
        field: &str,
        pem: &[u8],
    ) -> Result<Vec<CertificateDer<'static>>, KubeconfigError> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match certificates {
            Ok(certificates) if certificates.is_empty() => {
                Err(self.problem(format!("{field} has no PEM certificate")))
            }
            Ok(certificates) => Ok(certificates),
            Err(error) => {
                Err(self.problem(format!("{field} has no valid PEM certificate: {error}")))
            }
        }
    }

    fn beside(&self, file: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(file)
    }
}

fn filled(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    /// A kubeconfig of one server, with these lines in its cluster and its user.
    fn text(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\npreferences: {{}}\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: other, cluster: {{server: 'https://other'}}}}, {{name: k, cluster: {{{cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    fn load(directory: &Path, text: &str) -> Result<Connection, String> {
        let path = directory.join("config");
        std::fs::write(&path, text).unwrap();
        Connection::load(&path).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            error.to_string().replace(directory.to_str().unwrap(), "DIR")
                + &cause.unwrap_or_default()
        })
    }

    #[test]
    fn current_context_names_server_and_user() {
        let directory = tempfile::tempdir().unwrap();
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(directory.path().join("ca.pem"), key.cert.pem()).unwrap();
        let data = BASE64_STANDARD.encode(key.cert.pem());
        std::fs::write(directory.path().join("key.pem"), key.signing_key.serialize_pem()).unwrap();
        let text = text(
            "server: 'https://10.0.0.1:6443/base', certificate-authority: ca.pem, tls-server-name: kubernetes, proxy-url: 'http://p:1'",
            &format!(
                "client-certificate-data: {data}, client-key: key.pem, token: t, tokenFile: token"
            ),
        );
        let found = load(directory.path(), &text).unwrap();
        assert_eq!(found.server, Url::of_server("https://10.0.0.1:6443/base").unwrap());
        assert_eq!(found.roots.unwrap(), [key.cert.der().clone()]);
        assert_eq!(found.server_name, Some(ServerName::try_from("kubernetes").unwrap()));
        assert_eq!(found.proxy.as_deref(), Some("http://p:1"));
        assert_eq!(found.identity.unwrap().certificates, [key.cert.der().clone()]);
        let token = directory.path().join("token");
        assert!(matches!(found.credentials, Credentials::File(path) if path == token));
    }

    #[rstest]
    #[case::token("token: abc", "Bearer abc")]
    #[case::password("username: me, password: secret", "Basic bWU6c2VjcmV0")]
    fn user_becomes_a_header(#[case] user: &str, #[case] header: &str) {
        let directory = tempfile::tempdir().unwrap();
        let found = load(directory.path(), &text("server: 'http://127.0.0.1:8080'", user)).unwrap();
        assert!(found.roots.is_none() && found.identity.is_none());
        assert!(matches!(found.credentials, Credentials::Fixed(value) if value == header));
    }

    const SERVER: &str = "server: 'https://h'";

    #[rstest]
    #[case::no_context("{}", "kubeconfig DIR/config: current-context is not set")]
    #[case::unknown_context(
        "current-context: x",
        "kubeconfig DIR/config: there is no context \"x\""
    )]
    #[case::bad_server(&text("server: h", ""), "kubeconfig DIR/config: server \"h\" is not an http or https URL")]
    #[case::insecure(
        &text("server: 'https://h', insecure-skip-tls-verify: true", ""),
        "kubeconfig DIR/config: insecure-skip-tls-verify is not supported: name the server's authority in certificate-authority"
    )]
    #[case::missing_file(
        &text("server: 'https://h', certificate-authority: ca.pem", ""),
        "failed to read DIR/ca.pem: No such file or directory (os error 2)"
    )]
    #[case::empty_authority(
        &text("server: 'https://h', certificate-authority-data: ''", "client-certificate-data: YQ=="),
        "kubeconfig DIR/config: client-certificate is without client-key"
    )]
    #[case::no_certificate(
        &text("server: 'https://h', certificate-authority-data: YQ==", ""),
        "kubeconfig DIR/config: certificate-authority has no PEM certificate"
    )]
    #[case::exec(
        &text(SERVER, "exec: {command: aws}"),
        "kubeconfig DIR/config: exec and auth-provider of users are not supported: use a client certificate, token or tokenFile"
    )]
    fn unusable_files_are_refused_with_the_field(#[case] text: &str, #[case] problem: &str) {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(load(directory.path(), text).unwrap_err(), problem);
    }
}
