//! `berth ssh`: the system's ssh, connected by `berth port-forward --stdio`.

use std::{env, ffi::CString, path::Path};

use anyhow::{Context, ensure};
use kube::ResourceExt;

use crate::{
    cli::{Site, SshOptions},
    commands::console::connection,
};

/// Replaces this process with ssh.
///
/// *Errors:* there is no such VM; this machine has no ssh.
pub(in crate::commands) async fn run(options: SshOptions) -> anyhow::Result<()> {
    let (user, vm) = match options.destination.rsplit_once('@') {
        Some((user, vm)) => (Some(user), vm),
        None => (None, options.destination.as_str()),
    };
    ensure!(
        user.is_none_or(|user| !user.is_empty() && !user.starts_with('-')),
        "the user's name is empty or begins with \"-\""
    );
    let (_, found) = connection::vm(&options.site.target(vm)).await?;
    let program = env::current_exe().context("finding this program")?;
    let mut words =
        vec!["port-forward".to_owned(), vm.to_owned(), options.port.to_string(), "--stdio".to_owned()];
    if let Some(address) = options.address {
        words.extend(["--address".to_owned(), address.to_string()]);
    }
    if options.vsock {
        words.push("--vsock".to_owned());
    }
    words.extend(site_words(&options.site)?);
    // The keys of a VM are its own: another VM with the name of a former one has another uid.
    let alias = found.uid().context("the VM has no uid")?;
    let mut ssh = vec!["ssh".to_owned()];
    for option in [
        format!("ProxyCommand={}", proxy_command(&program, &words)?),
        format!("HostKeyAlias=berth-{alias}"),
        "StrictHostKeyChecking=accept-new".to_owned(),
    ] {
        ssh.extend(["-o".to_owned(), option]);
    }
    if let Some(identity) = &options.identity {
        let identity = identity.to_str().context("the path of the private key is not UTF-8")?;
        ssh.extend(["-i".to_owned(), identity.to_owned()]);
    }
    if let Some(user) = user {
        ssh.extend(["-l".to_owned(), user.to_owned()]);
    }
    ssh.push(vm.to_owned());
    ssh.extend(options.arguments.iter().cloned());
    let ssh: Vec<CString> = ssh
        .into_iter()
        .map(CString::new)
        .collect::<Result<_, _>>()
        .context("an argument has a NUL character")?;
    let Err(error) = nix::unistd::execvp(c"ssh", &ssh);
    Err(error).context("starting ssh: is the OpenSSH client installed?")
}

/// The options by which the other process finds the same control plane.
fn site_words(site: &Site) -> anyhow::Result<Vec<String>> {
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path is not UTF-8");
    let mut words = vec!["--namespace".to_owned(), site.namespace.clone()];
    words.extend(["--state-dir".to_owned(), text(&site.state.state_dir)?]);
    if let Some(kubeconfig) = &site.connection.kubeconfig {
        words.extend(["--kubeconfig".to_owned(), text(kubeconfig)?]);
    }
    if let Some(context) = &site.connection.context {
        words.extend(["--context".to_owned(), context.clone()]);
    }
    Ok(words)
}

/// A command for `sh`, in which ssh expands `%`.
fn proxy_command(program: &Path, words: &[String]) -> anyhow::Result<String> {
    let program = program.to_str().context("the path of this program is not UTF-8")?;
    let all = std::iter::once(program).chain(words.iter().map(String::as_str));
    let quoted: Vec<String> =
        all.map(|word| format!("'{}'", word.replace('\'', r"'\''").replace('%', "%%"))).collect();
    Ok(quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_command_is_quoted_for_the_shell_and_for_ssh() {
        let words = ["it's".to_owned(), "100% $HOME".to_owned()];
        let command = proxy_command(Path::new("/opt/my berth"), &words).expect("UTF-8");
        assert_eq!(command, r"'/opt/my berth' 'it'\''s' '100%% $HOME'");
    }
}
