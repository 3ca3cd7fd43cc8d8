//! A VM's bootstrap data: from its spec, and from the Secrets that it names. May contain secrets: never printed.

use std::fmt;

use berth_api::user_data::{check, check_meta_data, check_network_config, decoded};
use berth_api::{VM, password, sysprep};
use berth_yaml::Ordered;
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;

/// Limit in bytes. cloud-init itself accepts more, but a volume of text this large is a mistake.
const MAX_USER_DATA: usize = 1 << 20;
/// Deeper than any meta-data that is checked before.
const MAX_META_DATA_DEPTH: usize = 128;
/// The limits of a Secret with SSH keys.
const MAX_KEYS: usize = 64;
const MAX_KEY: usize = 8192;
/// The beginnings of a public key in an `authorized_keys` file.
const KEY_TYPES: [&str; 3] = ["ssh-", "ecdsa-", "sk-"];

/// Keys and values of meta-data, in the order of the text: the digest of a guest is of them in this order.
pub(super) type MetaData = Vec<(String, Ordered)>;

/// Source of a VM's bootstrap data.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Bootstrap {
    /// Not observed: the VM is not about to start.
    NotObserved,
    /// The Secret of this name does not exist yet.
    Missing(String),
    /// A Secret cannot be read at the moment, and why. `has_files`: those that the instance was last started with are on the host.
    Unreadable {
        why: String,
        has_files: bool,
    },
    Found(Box<BootstrapData>),
    /// Not text, or not user data that a guest could use.
    Unusable(String),
}

/// Bootstrap data as far as it is not rendered from the VM's spec.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct BootstrapData {
    /// Decoded.
    pub(super) user_data: Option<String>,
    /// Of the Secret, in its order.
    pub(super) meta_data: MetaData,
    /// Of the Secret.
    pub(super) network_config: Option<String>,
    /// Text or a hash.
    pub(super) password: Option<String>,
    pub(super) unattend: Option<String>,
    /// Of the Secret with keys.
    pub(super) keys: Vec<String>,
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotObserved => "NotObserved",
            Self::Missing(_) => "Missing",
            Self::Unreadable { .. } => "Unreadable",
            Self::Found(_) => "Found",
            Self::Unusable(_) => "Unusable",
        })
    }
}

impl Bootstrap {
    /// Returns the data of the VM's spec and of the Secrets that it names: the one with its data, and the one with its keys.
    pub(crate) fn of(vm: &VM, data: Option<&Secret>, keys: Option<&Secret>) -> Self {
        match read(vm, data, keys) {
            Ok(found) => Self::Found(Box::new(found)),
            Err(problem) => Self::Unusable(problem),
        }
    }

    /// Returns the data; none if it was not found.
    pub(super) fn data(&self) -> Option<&BootstrapData> {
        match self {
            Self::Found(data) => Some(data),
            Self::NotObserved | Self::Missing(_) | Self::Unreadable { .. } | Self::Unusable(_) => None,
        }
    }
}

fn read(vm: &VM, data: Option<&Secret>, keys: Option<&Secret>) -> Result<BootstrapData, String> {
    let mut found = data.map_or_else(|| Ok(BootstrapData::default()), of_secret)?;
    found.keys = keys.map_or_else(|| Ok(Vec::new()), public_keys)?;
    let Some(spec) = &vm.spec.bootstrap else { return Ok(found) };
    if data.is_none() {
        found.user_data = spec.user_data.as_deref().map(|text| user_data(text.as_bytes())).transpose()?;
    }
    let checked = spec.network_config.as_deref().map_or(Ok(()), check_network_config);
    let checked = checked.and_then(|()| mapping(spec.meta_data.as_deref().unwrap_or_default()));
    checked.map_err(|error| format!("bootstrap: {error}"))?;
    Ok(found)
}

fn of_secret(secret: &Secret) -> Result<BootstrapData, String> {
    let bytes = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
        match bytes {
            Some(bytes) if bytes.len() > MAX_USER_DATA => {
                Err(format!("key {key} of the bootstrap Secret is larger than 1 MiB"))
            }
            bytes => Ok(bytes),
        }
    };
    let text = |key: &str| {
        let text = bytes(key)?.map(|bytes| String::from_utf8(bytes.to_vec())).transpose();
        text.map_err(|_| format!("key {key} of the bootstrap Secret is no UTF-8 text"))
    };
    let of_secret = |error: String| format!("the bootstrap Secret: {error}");
    let user_data = bytes("userData")?.map(user_data).transpose()?;
    let network_config = text("networkConfig")?;
    network_config.as_deref().map_or(Ok(()), check_network_config).map_err(of_secret)?;
    let meta_data = mapping(text("metaData")?.as_deref().unwrap_or_default()).map_err(of_secret)?;
    // An editor ends a file with a line break.
    let password = text("password")?.map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
    let checked = password.as_deref().map_or(Ok(()), password::check);
    checked.map_err(|error| format!("key password of the bootstrap Secret: {error}"))?;
    let unattend = text(sysprep::UNATTEND)?;
    unattend.as_deref().map_or(Ok(()), sysprep::check_unattend).map_err(of_secret)?;
    Ok(BootstrapData { user_data, meta_data, network_config, password, unattend, keys: Vec::new() })
}

/// Returns user data as a guest reads it.
fn user_data(bytes: &[u8]) -> Result<String, String> {
    let text = decoded(bytes).and_then(|text| check(&text).map(|()| text.into_owned()));
    text.map_err(|error| format!("user data: {error}"))
}

/// Reads meta-data. An empty text has no keys.
pub(super) fn mapping(text: &str) -> Result<MetaData, String> {
    check_meta_data(text)?;
    match berth_yaml::read_ordered(text.as_bytes(), MAX_META_DATA_DEPTH) {
        Ok(Ordered::Scalar(Value::Null)) => Ok(Vec::new()),
        Ok(Ordered::Map(mapping)) => Ok(mapping),
        // The parser's words may quote the text.
        Ok(_) | Err(_) => Err("the meta-data cannot be read as a mapping".to_owned()),
    }
}

/// Returns the keys in all values of a Secret.
pub(super) fn public_keys(secret: &Secret) -> Result<Vec<String>, String> {
    let mut keys = Vec::new();
    for (name, value) in secret.data.iter().flatten() {
        let wrong =
            |line: usize, why: &str| format!("line {line} of key {name} of the Secret with SSH keys: {why}");
        let text = std::str::from_utf8(&value.0).map_err(|_| wrong(1, "it is no UTF-8 text"))?;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let is_key = KEY_TYPES.iter().any(|kind| line.starts_with(kind)) && line.contains(' ');
            if !is_key || line.len() > MAX_KEY || line.contains(char::is_control) {
                return Err(wrong(number + 1, "it is not an SSH public key, as in a .pub file"));
            }
            keys.push(line.to_owned());
        }
    }
    if keys.len() > MAX_KEYS {
        return Err(format!("the Secret with SSH keys has {} keys, more than {MAX_KEYS}", keys.len()));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;

    fn secret(entries: &[(&str, &[u8])]) -> Secret {
        let data = entries.iter().map(|(key, bytes)| ((*key).to_owned(), ByteString(bytes.to_vec())));
        Secret { data: Some(data.collect()), ..Secret::default() }
    }

    fn vm(bootstrap: Value) -> VM {
        serde_json::from_value(
            json!({"metadata": {"name": "web"}, "spec": {"disks": [], "bootstrap": bootstrap}}),
        )
        .expect("a VM")
    }

    fn problem(vm: &VM, data: Option<&Secret>, keys: Option<&Secret>) -> String {
        match Bootstrap::of(vm, data, keys) {
            Bootstrap::Unusable(problem) => problem,
            other => panic!("it is accepted: {other:?}"),
        }
    }

    fn found(data: &Secret) -> BootstrapData {
        Bootstrap::of(&vm(json!({})), Some(data), None).data().expect("usable").clone()
    }

    #[test]
    fn user_data_that_is_no_yaml_is_unusable_wherever_it_stands() {
        let of_secret = secret(&[("userData", b"#cloud-config\na: b: c\n")]);
        let error = problem(&vm(json!({})), Some(&of_secret), None);
        assert!(error.contains("line 2, column 5"), "{error}");
        let error = problem(&vm(json!({"userData": "#cloud-config\n- a\n"})), None, None);
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn encoded_user_data_is_decoded_and_checked_as_plain_text_is() {
        // printf '#cloud-config\nruncmd: [id]\n' | base64
        let encoded = b"I2Nsb3VkLWNvbmZpZwpydW5jbWQ6IFtpZF0K";
        let plain = Some("#cloud-config\nruncmd: [id]\n".to_owned());
        assert_eq!(found(&secret(&[("userData", encoded)])).user_data, plain);
        let inline = vm(json!({"userData": String::from_utf8_lossy(encoded)}));
        assert_eq!(Bootstrap::of(&inline, None, None).data().expect("usable").user_data, plain);
        // printf '#cloud-config\n- a\n' | base64
        let error =
            problem(&vm(json!({})), Some(&secret(&[("userData", b"I2Nsb3VkLWNvbmZpZwotIGEK")])), None);
        assert!(error.contains("line 2"), "{error}");
        let error = problem(&vm(json!({})), Some(&secret(&[("userData", &[0x1f, 0x8b, 0, 1])])), None);
        assert_eq!(error, "user data: this is compressed with gzip, and damaged");
    }

    #[test]
    fn a_secret_that_is_no_text_is_unusable() {
        for key in ["userData", "metaData", "networkConfig", "password", "unattend.xml"] {
            problem(&vm(json!({})), Some(&secret(&[(key, &[0xff, 0xfe])])), None);
        }
    }

    #[test]
    fn meta_data_or_a_network_configuration_that_no_guest_can_read_is_unusable() {
        for (key, field, text) in [
            ("metaData", "metaData", "canary"),
            ("metaData", "metaData", "a: b: c\n"),
            ("networkConfig", "networkConfig", "ethernets: {}\n"),
        ] {
            let of_secret = secret(&[(key, text.as_bytes())]);
            let mut spec = json!({});
            spec[field] = text.into();
            for error in [problem(&vm(json!({})), Some(&of_secret), None), problem(&vm(spec), None, None)] {
                assert!(!error.contains("canary"), "{error}");
            }
        }
    }

    #[test]
    fn a_password_and_an_answer_file_are_checked_and_never_quoted() {
        let data = found(&secret(&[("password", b"hunter2\n")]));
        assert_eq!(data.password.as_deref(), Some("hunter2"), "without the line break of the file");
        assert!(!format!("{:?}", Bootstrap::Found(Box::new(data))).contains("hunter2"));
        for (key, text) in
            [("password", "canary\ncanary"), ("password", "$y$canary"), ("unattend.xml", "<canary/>")]
        {
            let error = problem(&vm(json!({})), Some(&secret(&[(key, text.as_bytes())])), None);
            assert!(!error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn keys_are_the_lines_of_all_values_of_their_secret() {
        let keys = secret(&[
            ("alice", b"# hers\nssh-ed25519 AAAA alice\r\n\n"),
            ("bob", b"ecdsa-sha2-nistp256 BBBB bob"),
        ]);
        let data = Bootstrap::of(&vm(json!({})), None, Some(&keys)).data().expect("usable").clone();
        assert_eq!(data.keys, ["ssh-ed25519 AAAA alice", "ecdsa-sha2-nistp256 BBBB bob"]);
        for wrong in ["canary", "ssh-ed25519", "command=\"canary\" ssh-ed25519 AAAA", "ssh-rsa A\u{7}"] {
            let error = problem(&vm(json!({})), None, Some(&secret(&[("a", wrong.as_bytes())])));
            assert!(
                error.starts_with("line 1 of key a of the Secret with SSH keys") && !error.contains("canary"),
                "{error}"
            );
        }
        let many = "ssh-ed25519 AAAA a\n".repeat(MAX_KEYS + 1);
        assert!(problem(&vm(json!({})), None, Some(&secret(&[("a", many.as_bytes())]))).contains("65 keys"));
    }
}
