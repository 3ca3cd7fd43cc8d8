//! Credentials for logging in over a socket: the server's certificate authority and bearer tokens, kept in
//! files that only the owner can read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_store::{read_or_make_bytes, write_private};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::{Instant, interval_at};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::identity::{Identity, Token};

/// The files by which clients recognize a control plane, besides the key that signs service account tokens.
pub(crate) const FILES: [&str; 3] = ["ca.key", "ca.crt", "admin.token"];
/// The files that are regenerated from those.
pub(crate) const DERIVED: [&str; 3] = ["server.crt", "server.key", "server.names"];

/// The server certificate is renewed this many days before it expires.
const RENEW_BEFORE_DAYS: i64 = 30;
/// How often a server that runs checks its certificate. The clock may be corrected at any time.
const CHECK_EVERY: Duration = Duration::from_secs(600);

/// The minimum length of the administrator's token in bytes: a quarter of one that is made here, since earlier versions
/// accepted each one that an administrator had written into the file.
const SHORTEST_TOKEN: usize = 16;
/// How long before its end the CA is reported: all clients have to get another one.
const REPORT_CA_BEFORE: jiff::SignedDuration = jiff::SignedDuration::from_hours(24 * 180);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The credentials of one state directory.
pub(crate) struct Credentials {
    directory: PathBuf,
    ca_pem: String,
    ca_key: KeyPair,
    admin_token: Token,
}

/// Omits the secrets.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("directory", &self.directory).finish_non_exhaustive()
    }
}

fn failed(what: &str, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
}

/// Reads a file, creating it if it is missing.
fn read_or_make(path: &Path, make: impl FnOnce() -> io::Result<String>) -> io::Result<String> {
    let bytes = read_or_make_bytes(path, || make().map(String::into_bytes))?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

fn new_token() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("no randomness"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Credentials {
    /// Opens the credentials of a state directory, creating those that are missing.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let key_pem = read_or_make(&directory.join("ca.key"), || {
            KeyPair::generate().map(|key| key.serialize_pem()).map_err(|e| failed("making the CA key", e))
        })?;
        let ca_key = KeyPair::from_pem(&key_pem).map_err(|e| failed("reading ca.key", e))?;
        let certificate = directory.join("ca.crt");
        let new_ca = || -> io::Result<String> {
            let made = ca_params().self_signed(&ca_key).map_err(|e| failed("making the CA", e))?;
            Ok(made.pem())
        };
        let mut ca_pem = read_or_make(&certificate, new_ca)?;
        check_ca(&ca_pem, &ca_key)?;
        if has_limits(&ca_pem) && !lasts(&ca_pem) {
            // The key and the name stay: a client that has the former certificate accepts what is signed now, as far as the dates of
            // that one let it.
            tracing::warn!(
                "the certificate of the authority is not valid now and is made again: fetch new kubeconfigs"
            );
            ca_pem = new_ca()?;
            if let Err(error) = write_private(&certificate, ca_pem.as_bytes()) {
                // A server starts on a full disk, too. Clients accept that of the next start as well: it has the same key and name.
                tracing::warn!(%error, "the certificate of the authority cannot be stored: the next start makes another one");
            }
        }
        let admin_token = read_or_make(&directory.join("admin.token"), new_token)?;
        let admin_token = admin_token.trim();
        // Of a file that was emptied, every client would have it.
        if admin_token.len() < SHORTEST_TOKEN {
            let why = "admin.token is too short: put it back, or remove it, and another one is made at the next start";
            return Err(io::Error::other(why));
        }
        let admin_token = Token::new(admin_token);
        Ok(Self { directory: directory.to_owned(), ca_pem, ca_key, admin_token })
    }

    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Returns when the CA expires, if that can be read.
    pub(crate) fn ca_expires(&self) -> Option<jiff::Timestamp> {
        validity_of(&self.ca_pem).map(|(_, end)| end)
    }

    /// Reports once a day, from now on, a CA that is about to expire or is not valid; runs forever.
    pub(crate) async fn watch_ca(&self) {
        let mut days = interval_at(Instant::now(), DAY);
        loop {
            days.tick().await;
            if let Some(problem) = ca_problem(&self.ca_pem, jiff::Timestamp::now()) {
                tracing::warn!(folder = %self.directory.display(), problem, "the CA of this server has to be replaced");
            }
        }
    }

    pub(crate) fn admin_token(&self) -> &str {
        self.admin_token.as_str()
    }

    /// Returns the identity of a bearer token.
    pub(crate) fn of_token(&self, token: &Token) -> Option<Identity> {
        (token.hash() == self.admin_token.hash()).then(Identity::admin)
    }

    /// Returns the TLS configuration: a server certificate for `names` signed by our own CA; client
    /// certificates of the same CA are accepted but not required.
    pub(crate) fn tls(&self, names: &[String]) -> io::Result<Arc<ServerConfig>> {
        let (certificate, key) = self.server_certificate(names)?;
        let ca = pem_to_der(&self.ca_pem)?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone()).map_err(|e| failed("reading ca.crt", e))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|e| failed("client certificates", e))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| failed("TLS versions", e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![pem_to_der(&certificate)?, ca], key)
            .map_err(|e| failed("server certificate", e))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Returns the TLS configuration with a new server certificate if the stored one has to be renewed.
    pub(crate) fn renewed(&self, names: &[String]) -> io::Result<Option<Arc<ServerConfig>>> {
        match self.stored_certificate(names) {
            Some(_) => Ok(None),
            None => self.tls(names).map(Some),
        }
    }

    /// Returns the stored certificate if it covers these names and does not expire soon.
    fn stored_certificate(&self, names: &[String]) -> Option<(String, KeyPair)> {
        let read = |name: &str| fs::read_to_string(self.directory.join(name)).ok();
        let (certificate, key) = (read("server.crt")?, read("server.key")?);
        let is_usable = read("server.names")? == self.certified(names) && lasts(&certificate);
        let key = KeyPair::from_pem(&key).ok()?;
        is_usable.then_some((certificate, key))
    }

    /// Returns the stored certificate, or a new one.
    fn server_certificate(&self, names: &[String]) -> io::Result<(String, KeyPair)> {
        if let Some(stored) = self.stored_certificate(names) {
            return Ok(stored);
        }
        let pair = KeyPair::generate().map_err(|e| failed("making the server key", e))?;
        let issuer =
            Issuer::from_ca_cert_pem(&self.ca_pem, &self.ca_key).map_err(|e| failed("reading ca.crt", e))?;
        let made =
            server_params(names)?.signed_by(&pair, &issuer).map_err(|e| failed("server certificate", e))?;
        if let Err(error) = self.keep_certificate(names, &made.pem(), &pair) {
            // A server starts on a full disk, too.
            tracing::warn!(%error, "the server certificate cannot be stored: the next start makes another one");
        }
        Ok((made.pem(), pair))
    }

    fn keep_certificate(&self, names: &[String], certificate: &str, key: &KeyPair) -> io::Result<()> {
        let path = |name: &str| self.directory.join(name);
        // Without the names, the other two are not used: a crash leaves no key with the certificate of the one before.
        match fs::remove_file(path("server.names")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        write_private(&path("server.key"), key.serialize_pem().as_bytes())?;
        write_private(&path("server.crt"), certificate.as_bytes())?;
        write_private(&path("server.names"), self.certified(names).as_bytes())
    }

    /// Returns the description of a certificate: its names, and the key of the CA, which may be replaced.
    fn certified(&self, names: &[String]) -> String {
        let digest = Sha256::digest(self.ca_key.public_key_raw());
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}\nca {digest}", names.join("\n"))
    }
}

/// Replaces the TLS configuration of a server whenever there is a new one, forever: a server may run for longer than its certificate is
/// valid.
pub(crate) async fn keep_current(
    current: &watch::Sender<Arc<ServerConfig>>,
    renewed: impl Fn() -> io::Result<Option<Arc<ServerConfig>>>,
) {
    let mut checks = interval_at(Instant::now() + CHECK_EVERY, CHECK_EVERY);
    loop {
        checks.tick().await;
        match renewed() {
            Ok(None) => {}
            Ok(Some(config)) => {
                tracing::info!("the server certificate is renewed");
                current.send_replace(config);
            }
            Err(error) => tracing::warn!(%error, "the server certificate cannot be renewed"),
        }
    }
}

/// Returns a machine's host name if a certificate can have it: the kernel accepts any bytes as a name.
pub(crate) fn certified_name(host: &str) -> Option<&str> {
    let host = host.trim();
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (!host.is_empty() && host.bytes().all(fine)).then_some(host)
}

fn validity(params: &mut CertificateParams, now: jiff::Timestamp, days: i64) {
    // Clients' clocks may be behind ours.
    let year = |days: i64| {
        let at = now + jiff::SignedDuration::from_hours(24 * days);
        let date = at.to_zoned(jiff::tz::TimeZone::UTC).date();
        let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
        rcgen::date_time_ymd(i32::from(date.year()), month, day)
    };
    params.not_before = year(-1);
    params.not_after = year(days);
}

/// The common name of the authority.
const CA_NAME: &str = "berth-ca";
/// The years in which the authority is valid. Fixed: the clock may be wrong when it is made, it cannot be replaced at its clients, and
/// only its key protects it.
const CA_YEARS: [i32; 2] = [2000, 9999];

fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let [first, last] = CA_YEARS;
    params.not_before = rcgen::date_time_ymd(first, 1, 1);
    params.not_after = rcgen::date_time_ymd(last, 1, 1);
    params
}

fn server_params(names: &[String]) -> io::Result<CertificateParams> {
    let mut params =
        CertificateParams::new(names.to_vec()).map_err(|e| failed("names of the certificate", e))?;
    params.distinguished_name.push(DnType::CommonName, "berth-apiserver");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    validity(&mut params, jiff::Timestamp::now(), 365);
    Ok(params)
}

fn pem_to_der(pem: &str) -> io::Result<CertificateDer<'static>> {
    use rustls::pki_types::pem::PemObject as _;
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| failed("certificate", e))
}

/// Refuses a certificate of another key: no client would accept a server certificate that the key signs.
fn check_ca(pem: &str, key: &KeyPair) -> io::Result<()> {
    let unreadable = |error: String| failed("reading ca.crt", error);
    let der = pem_to_der(pem).map_err(|error| unreadable(error.to_string()))?;
    let (_, certificate) = X509Certificate::from_der(&der).map_err(|error| unreadable(error.to_string()))?;
    if *certificate.public_key().subject_public_key.data == *key.public_key_raw() {
        return Ok(());
    }
    let why = "ca.crt is not the certificate of ca.key: put the one back that was replaced; if it is lost, move ca.crt \
               away, and another one is made at the next start, which hosts and users have to be given";
    Err(io::Error::other(why))
}

/// Returns when a certificate begins and ends.
fn validity_of(pem: &str) -> Option<(jiff::Timestamp, jiff::Timestamp)> {
    let der = pem_to_der(pem).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let validity = certificate.validity();
    let time = |second| jiff::Timestamp::from_second(second).ok();
    Some((time(validity.not_before.timestamp())?, time(validity.not_after.timestamp())?))
}

/// Returns what is wrong with the validity of a CA, or will be soon, and its remedy.
fn ca_problem(pem: &str, now: jiff::Timestamp) -> Option<String> {
    let (begin, end) = validity_of(pem)?;
    if now < begin {
        return Some(format!("it begins on {begin}, and clients refuse it until then: check the clock"));
    }
    let remedy = "stop berth, move ca.crt away and start it again, which makes another one of the same key; then replace \
                  the kubeconfigs of users";
    if now >= end {
        return Some(format!("it ended on {end}, and clients refuse it: {remedy}"));
    }
    (end.duration_since(now) < REPORT_CA_BEFORE).then(|| format!("it ends on {end}: {remedy}"))
}

fn lasts(pem: &str) -> bool {
    let Ok(der) = pem_to_der(pem) else { return false };
    let Ok((_, certificate)) = X509Certificate::from_der(&der) else { return false };
    let (validity, now) = (certificate.validity(), jiff::Timestamp::now().as_second());
    // It begins in the future if the clock was wrong when it was made.
    let has_begun = validity.not_before.timestamp() <= now;
    has_begun && validity.not_after.timestamp() - now > RENEW_BEFORE_DAYS * 24 * 3600
}

/// Whether a certificate is one of the authorities that former versions made, which were valid for ten years.
fn has_limits(pem: &str) -> bool {
    let Ok(der) = pem_to_der(pem) else { return false };
    let Ok((_, certificate)) = X509Certificate::from_der(&der) else { return false };
    let is_own = certificate.subject().iter_common_name().any(|name| name.as_str() == Ok(CA_NAME));
    is_own && certificate.validity().not_after.to_datetime().year() < CA_YEARS[1]
}

/// The user of a verified client certificate.
#[derive(Debug, Clone)]
pub(crate) struct Certified {
    pub(crate) identity: Identity,
    /// The end of its validity, in seconds since 1970.
    pub(crate) until: i64,
}

impl Certified {
    /// Returns the user; `None` once the certificate has expired: its connection may be open for much longer.
    pub(crate) fn current(self) -> Option<Identity> {
        (jiff::Timestamp::now().as_second() <= self.until).then_some(self.identity)
    }
}

/// Returns the user of a verified client certificate: the common name is the user, organizations are groups.
pub(crate) fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Certified> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let subject = parsed.subject();
    let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned));
    let until = parsed.validity().not_after.timestamp();
    (!user.is_empty()).then(|| Certified { identity: Identity::new(user, groups), until })
}

#[cfg(test)]
mod tests {
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::pki_types::{ServerName, UnixTime};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_certificate_of_a_server_that_runs_is_renewed_before_it_expires_and_if_it_has_not_begun() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = Credentials::open(folder.path()).unwrap();
        let names = ["localhost".to_owned()];
        let stored = folder.path().join("server.crt");
        let current = watch::Sender::new(credentials.tls(&names).unwrap());
        let mut seen = current.subscribe();
        let renewing = keep_current(&current, || credentials.renewed(&names));
        tokio::pin!(renewing);
        assert!(timeout(2 * CHECK_EVERY, &mut renewing).await.is_err());
        assert!(!seen.has_changed().unwrap(), "it lasts");
        let soon =
            |params: &mut CertificateParams| validity(params, jiff::Timestamp::now(), RENEW_BEFORE_DAYS - 1);
        let later = |params: &mut CertificateParams| {
            params.not_before = rcgen::date_time_ymd(2200, 1, 1);
            params.not_after = rcgen::date_time_ymd(2300, 1, 1);
        };
        let cases: [&dyn Fn(&mut CertificateParams); 2] = [&soon, &later];
        for change in cases {
            let mut params = server_params(&names).unwrap();
            change(&mut params);
            let key =
                KeyPair::from_pem(&fs::read_to_string(folder.path().join("server.key")).unwrap()).unwrap();
            let issuer = Issuer::from_ca_cert_pem(&credentials.ca_pem, &credentials.ca_key).unwrap();
            let old = params.signed_by(&key, &issuer).unwrap().pem();
            fs::write(&stored, &old).unwrap();
            assert!(timeout(2 * CHECK_EVERY, &mut renewing).await.is_err());
            assert!(seen.has_changed().unwrap());
            seen.mark_unchanged();
            assert_ne!(fs::read_to_string(&stored).unwrap(), old);
        }
    }

    #[test]
    fn an_authority_made_under_a_wrong_clock_is_made_again_and_another_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("ca.crt"), folder.path().join("ca.key"));
        let first = Credentials::open(folder.path()).unwrap();
        assert!(lasts(first.ca_pem()) && !has_limits(first.ca_pem()));
        let signing = fs::read_to_string(&key).unwrap();
        for (name, years, stays) in [
            (CA_NAME, [2200, 2210], false),
            (CA_NAME, [1969, 1979], false),
            ("corporate", [1969, 1979], true),
        ] {
            let mut params = ca_params();
            params.distinguished_name.push(DnType::CommonName, name);
            params.not_before = rcgen::date_time_ymd(years[0], 1, 1);
            params.not_after = rcgen::date_time_ymd(years[1], 1, 1);
            let old = params.self_signed(&first.ca_key).unwrap().pem();
            fs::write(&certificate, &old).unwrap();
            let opened = Credentials::open(folder.path()).unwrap();
            assert_eq!(opened.ca_pem() == old, stays, "{name} {years:?}");
            assert_eq!(lasts(opened.ca_pem()), !stays, "{name} {years:?}");
            assert_eq!(fs::read_to_string(&certificate).unwrap(), opened.ca_pem());
            assert_eq!(fs::read_to_string(&key).unwrap(), signing, "clients know it");
        }
    }

    #[test]
    fn a_ca_is_reported_half_a_year_before_it_ends() {
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = ca_params();
        params.not_before = rcgen::date_time_ymd(2026, 12, 1);
        params.not_after = rcgen::date_time_ymd(2036, 11, 28);
        let pem = params.self_signed(&key).unwrap().pem();
        let problem = |now| ca_problem(&pem, at(now)).unwrap_or_default();
        assert_eq!(problem("2036-05-01T00:00:00Z"), "");
        assert!(problem("2036-07-01T00:00:00Z").starts_with("it ends on 2036-11-28"));
        assert!(problem("2036-12-01T00:00:00Z").starts_with("it ended on 2036-11-28"));
        assert!(problem("2025-12-01T00:00:00Z").contains("check the clock"));
        let folder = tempfile::tempdir().unwrap();
        let ends = Credentials::open(folder.path()).unwrap().ca_expires().unwrap();
        assert!(ends.duration_since(jiff::Timestamp::now()) > REPORT_CA_BEFORE);
    }

    #[test]
    fn a_ca_that_lost_its_key_is_refused_and_one_that_is_made_again_has_the_same_key() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["localhost".to_owned()];
        Credentials::open(folder.path()).unwrap().tls(&names).unwrap();
        let [key, certificate] = ["ca.key", "ca.crt"].map(|name| folder.path().join(name));
        fs::remove_file(&certificate).unwrap();
        Credentials::open(folder.path()).unwrap().tls(&names).unwrap();
        fs::remove_file(&key).unwrap();
        let refused = Credentials::open(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("ca.crt is not the certificate of ca.key"), "{refused}");
        // The remedy that is named.
        fs::remove_file(&certificate).unwrap();
        Credentials::open(folder.path()).unwrap().tls(&names).unwrap();
    }

    #[test]
    fn an_empty_token_is_not_that_of_the_administrator() {
        let folder = tempfile::tempdir().unwrap();
        drop(Credentials::open(folder.path()).unwrap());
        for short in ["", "\n", "secret"] {
            fs::write(folder.path().join("admin.token"), short).unwrap();
            let refused = Credentials::open(folder.path()).unwrap_err().to_string();
            assert!(refused.starts_with("admin.token is too short"), "{refused}");
        }
        let own = "a-token-of-our-own";
        fs::write(folder.path().join("admin.token"), format!("{own}\n")).unwrap();
        assert_eq!(Credentials::open(folder.path()).unwrap().admin_token(), own);
        fs::remove_file(folder.path().join("admin.token")).unwrap();
        assert_eq!(Credentials::open(folder.path()).unwrap().admin_token().len(), 64);
    }

    #[test]
    fn a_new_key_is_not_used_with_the_certificate_of_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = Credentials::open(folder.path()).unwrap();
        let names = ["localhost".to_owned()];
        credentials.tls(&names).unwrap();
        let stored = folder.path().join("server.crt");
        let old = fs::read(&stored).unwrap();
        fs::remove_file(&stored).unwrap();
        fs::create_dir(&stored).unwrap();
        assert!(credentials.tls(&["other".to_owned()]).is_ok(), "the server starts");
        assert!(!folder.path().join("server.names").exists(), "only the new key is written");
        fs::remove_dir(&stored).unwrap();
        fs::write(&stored, old).unwrap();
        assert!(credentials.tls(&names).is_ok());
    }

    #[test]
    fn a_host_with_the_certificate_of_a_ca_that_has_ended_accepts_that_of_another_one_of_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = Credentials::open(folder.path()).unwrap();
        let mut ended = ca_params();
        ended.not_before = rcgen::date_time_ymd(2010, 1, 1);
        ended.not_after = rcgen::date_time_ymd(2020, 1, 1);
        let ended = ended.self_signed(&credentials.ca_key).unwrap().pem();
        let mut roots = RootCertStore::empty();
        roots.add(pem_to_der(&ended).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let host = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let (certificate, _) = credentials.server_certificate(&["localhost".to_owned()]).unwrap();
        let chain = [&certificate, &credentials.ca_pem].map(|pem| pem_to_der(pem).unwrap());
        let name = ServerName::try_from("localhost").unwrap();
        host.verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now()).unwrap();
    }

    #[test]
    fn a_certificate_of_a_ca_that_was_replaced_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["localhost".to_owned()];
        let certificate = || fs::read(folder.path().join("server.crt")).unwrap();
        Credentials::open(folder.path()).unwrap().tls(&names).unwrap();
        let first = certificate();
        Credentials::open(folder.path()).unwrap().tls(&names).unwrap();
        assert_eq!(certificate(), first);
        for name in ["ca.key", "ca.crt"] {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        Credentials::open(folder.path()).unwrap().tls(&names).unwrap();
        assert_ne!(certificate(), first);
    }

    #[test]
    fn a_host_name_that_no_certificate_can_have_is_left_out() {
        assert_eq!(certified_name("node-1.example\n"), Some("node-1.example"));
        for odd in ["b\u{fc}ro\n", "(none)", "a b", "", "a\u{7}"] {
            assert_eq!(certified_name(odd), None, "{odd:?}");
        }
        assert!(server_params(&["b\u{fc}ro".to_owned()]).is_err(), "the server would not start with it");
    }
}
