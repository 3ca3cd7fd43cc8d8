//! An OpenBao server, which has the API of a Vault, over TLS: the transit engine with one key, and a login by AppRole with a policy that
//! the tests can take back.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::Value;

use crate::namespace::Namespace;
use crate::process::{self, Daemon};
use crate::wait;

const PORT: u16 = 8200;
/// Of the start of the server, and of each command.
const LIMIT: Duration = Duration::from_secs(60);
/// What `docs/encryption.md` says that hosts need.
const ALLOWED: &str = r#"path "transit/encrypt/berth" { capabilities = ["update"] }
path "transit/decrypt/berth" { capabilities = ["update"] }
"#;

/// A server inside a namespace. Its data is in its memory.
#[derive(Debug)]
pub struct Vault {
    program: PathBuf,
    folder: PathBuf,
    namespace: Arc<Namespace>,
    address: String,
    authority: String,
    token: String,
    /// The identity of the AppRole.
    pub role_id: String,
    /// The secret that it logs in with.
    pub secret_id: String,
    _server: Daemon,
}

impl Vault {
    /// Starts a server on one of the namespace's addresses, with its files in `folder`.
    pub fn start(program: &Path, namespace: &Arc<Namespace>, address: &str, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let authority = certificates(address, folder)?;
        let at = folder.display();
        let settings = format!(
            r#"storage "inmem" {{}}
disable_mlock = true
listener "tcp" {{
  address       = "{address}:{PORT}"
  tls_cert_file = "{at}/server.pem"
  tls_key_file  = "{at}/server-key.pem"
}}
audit "file" "requests" {{
  options = {{ file_path = "{at}/requests.log" }}
}}
"#
        );
        fs::write(folder.join("settings.hcl"), settings)?;
        let mut command = namespace.command(program);
        command.arg("server").arg("-config").arg(folder.join("settings.hcl"));
        let server = Daemon::spawn("bao", &mut command, &folder.join("bao.log"))?;
        let (within, to) = (Arc::clone(namespace), address.to_owned());
        wait::until("OpenBao", LIMIT, || {
            let to = to.clone();
            within.inside(move || Ok(TcpStream::connect((to.as_str(), PORT)).map(drop)?))
        })?;
        let mut vault = Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            namespace: Arc::clone(namespace),
            address: address.to_owned(),
            authority,
            token: String::new(),
            role_id: String::new(),
            secret_id: String::new(),
            _server: server,
        };
        vault.set_up()?;
        Ok(vault)
    }

    /// The commands of `examples/vault-keys`.
    fn set_up(&mut self) -> Result<()> {
        let made =
            self.run(&["operator", "init", "-key-shares=1", "-key-threshold=1", "-format=json"], b"")?;
        let made: Value = serde_json::from_str(&made)?;
        self.token = made["root_token"].as_str().context("no token of an administrator")?.to_owned();
        let key = made["unseal_keys_b64"][0].as_str().context("no key that opens the server")?.to_owned();
        self.run(&["operator", "unseal", &key], b"")?;
        self.run(&["secrets", "enable", "transit"], b"")?;
        self.run(&["write", "-f", "transit/keys/berth"], b"")?;
        self.refuse(false)?;
        self.run(&["auth", "enable", "approle"], b"")?;
        let role = "auth/approle/role/berth-hosts";
        self.run(&["write", role, "token_policies=berth-hosts", "token_ttl=1h"], b"")?;
        self.role_id = self.run(&["read", "-field=role_id", &format!("{role}/role-id")], b"")?;
        self.secret_id = self.run(&["write", "-f", "-field=secret_id", &format!("{role}/secret-id")], b"")?;
        Ok(())
    }

    fn run(&self, arguments: &[&str], input: &[u8]) -> Result<String> {
        let mut command: Command = self.namespace.command(&self.program);
        command.args(arguments).env("BAO_ADDR", self.url()).env("BAO_TOKEN", &self.token);
        command.env("BAO_CACERT", self.folder.join("authority.pem"));
        Ok(process::run_with_input(&mut command, input, LIMIT)?.success()?.trim().to_owned())
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("https://{}:{PORT}", self.address)
    }

    /// The certificate of its authority, in PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Takes from the hosts the right to use the key, or gives it back.
    pub fn refuse(&self, refuses: bool) -> Result<()> {
        let policy = if refuses { "path \"transit/*\" { capabilities = [\"deny\"] }" } else { ALLOWED };
        self.run(&["policy", "write", "berth-hosts", "-"], policy.as_bytes()).map(drop)
    }

    /// The number of keys that it has decrypted, as its audit log has them.
    pub fn decrypted(&self) -> Result<usize> {
        let log = fs::read_to_string(self.folder.join("requests.log"))?;
        let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(entries
            .filter(|entry| entry["type"] == "response" && entry["error"].is_null())
            .filter(|entry| entry["request"]["path"] == "transit/decrypt/berth")
            .count())
    }
}

/// Makes an authority and a certificate for the address. Returns the certificate of the authority.
fn certificates(address: &str, folder: &Path) -> Result<String> {
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::new(Vec::<String>::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(rcgen::DnType::CommonName, "acceptance tests");
    let authority_certificate = authority.self_signed(&authority_key)?;
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new([address.to_owned()])?.signed_by(&key, &issuer)?;
    fs::write(folder.join("authority.pem"), authority_certificate.pem())?;
    fs::write(folder.join("server.pem"), certificate.pem())?;
    fs::write(folder.join("server-key.pem"), key.serialize_pem())?;
    Ok(authority_certificate.pem())
}
