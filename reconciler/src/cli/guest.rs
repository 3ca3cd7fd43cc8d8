//! The options of the commands that reach into a guest.

use std::{net::IpAddr, path::PathBuf, str::FromStr};

use clap::Args;

use super::{Connection, ConsoleTarget, StateDir, TimeSpan, time::time};

/// `berth exec`
#[derive(Args, Debug)]
pub struct ExecOptions {
    /// Sends the standard input, at most 1 MiB, to the command. Default: an empty one.
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// How long the command may take, at most an hour. Its end is not waited for after that; it is not ended.
    #[arg(long, value_parser = time, default_value = "5m")]
    pub timeout: TimeSpan,
    #[command(flatten)]
    pub target: ConsoleTarget,
    /// The program and its arguments. A shell is used only if it is named: `-- sh -c 'echo $HOME'`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `berth cp`
#[derive(Args, Debug)]
pub struct CpOptions {
    /// The file: a path of this machine, or `VM:PATH`.
    pub from: Place,
    /// The copy: `VM:PATH`, or a path of this machine; with `/` at its end, a folder. One of the two is in a VM.
    pub to: Place,
    #[command(flatten)]
    pub site: Site,
}

/// `berth reset` and `berth nmi`
#[derive(Args, Debug)]
pub struct ButtonOptions {
    #[command(flatten)]
    pub target: ConsoleTarget,
}

/// `berth port-forward`
#[derive(Args, Debug)]
pub struct PortForwardOptions {
    /// The VM's name.
    pub vm: String,
    /// `LOCAL:REMOTE`, a port of 127.0.0.1 and a TCP port of the VM, or with `--vsock` a vsock port; `PORT` for the same on both;
    /// `:REMOTE` for a free local one.
    #[arg(required = true, value_name = "[LOCAL:]REMOTE")]
    pub ports: Vec<Ports>,
    /// The address of the VM, if it has several interfaces. Default: that of the first.
    #[arg(long)]
    pub address: Option<IpAddr>,
    /// Connects by the VM's vsock device, without a network. The VM has one with `vsock: true`.
    #[arg(long, conflicts_with = "address")]
    pub vsock: bool,
    /// Connects the standard input and output to the one port, instead of a local port.
    #[arg(long)]
    pub stdio: bool,
    #[command(flatten)]
    pub site: Site,
}

/// `berth ssh`
#[derive(Args, Debug)]
pub struct SshOptions {
    /// The VM, `VM` or `USER@VM`. Default for the user: that of ssh.
    #[arg(value_name = "[USER@]VM")]
    pub destination: String,
    /// The port of the VM.
    #[arg(short, long, default_value_t = 22)]
    pub port: u16,
    /// The file of the private key, as for ssh.
    #[arg(short, long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// The address of the VM, if it has several interfaces. Default: that of the first.
    #[arg(long)]
    pub address: Option<IpAddr>,
    /// Connects by the VM's vsock device, without a network. The VM has one with `vsock: true`, and its sshd listens there.
    #[arg(long, conflicts_with = "address")]
    pub vsock: bool,
    #[command(flatten)]
    pub site: Site,
    /// Options of ssh, and a command: `-- -i key uptime`.
    #[arg(last = true, value_name = "SSH ARGUMENT")]
    pub arguments: Vec<String>,
}

/// The namespace and the control plane of a VM.
#[derive(Args, Clone, Debug)]
pub struct Site {
    /// The VM's namespace.
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

impl Site {
    /// Returns a VM of the namespace.
    pub(crate) fn target(&self, vm: &str) -> ConsoleTarget {
        let Self { namespace, state, connection } = self.clone();
        ConsoleTarget { vm: vm.to_owned(), namespace, state, connection }
    }
}

/// The place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A path of this machine.
    Here(String),
    /// A path in a guest.
    Guest {
        /// The VM's name.
        vm: String,
        /// The path.
        path: String,
    },
}

impl FromStr for Place {
    type Err = String;

    /// As scp: a colon before the first slash ends a VM's name.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((vm, path)) if !vm.contains('/') => {
                if vm.is_empty() || path.is_empty() {
                    return Err(format!(
                        "{text:?} is neither VM:PATH nor a path: write ./{text} for a file of this name"
                    ));
                }
                Ok(Self::Guest { vm: vm.to_owned(), path: path.to_owned() })
            }
            _ if text.is_empty() => Err("a path is empty".to_owned()),
            _ => Ok(Self::Here(text.to_owned())),
        }
    }
}

/// A local port, 0 for a free one, and a port of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The port of 127.0.0.1.
    pub local: u16,
    /// The port of the VM: those of vsock have more numbers than those of TCP.
    pub remote: u32,
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |text: &str| text.parse().ok().filter(|port: &u16| *port > 0);
        let of_vm = |text: &str| text.parse().ok().filter(|port: &u32| (1..u32::MAX).contains(port));
        let found = match text.split_once(':') {
            None => port(text).map(|port| Self { local: port, remote: port.into() }),
            Some(("", remote)) => of_vm(remote).map(|remote| Self { local: 0, remote }),
            Some((local, remote)) => {
                port(local).zip(of_vm(remote)).map(|(local, remote)| Self { local, remote })
            }
        };
        found.ok_or_else(|| {
            format!("{text:?} is not LOCAL:REMOTE, two ports from 1 to 65535 (with --vsock REMOTE is at most 4294967294)")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_guest_has_a_colon_before_the_first_slash() {
        let guest = |vm: &str, path: &str| Ok(Place::Guest { vm: vm.to_owned(), path: path.to_owned() });
        assert_eq!("web:/etc/motd".parse(), guest("web", "/etc/motd"));
        assert_eq!("web:C:\\a".parse(), guest("web", "C:\\a"));
        for here in ["a", "./a:b", "/a:b", "../x/web:/y"] {
            assert_eq!(here.parse(), Ok(Place::Here(here.to_owned())));
        }
        for wrong in ["", ":", ":/a", "web:"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ports_are_one_or_two() {
        let ports = |local, remote| Ok(Ports { local, remote });
        assert_eq!("8080:80".parse(), ports(8080, 80));
        assert_eq!(":80".parse(), ports(0, 80));
        assert_eq!("80".parse(), ports(80, 80));
        assert_eq!("8080:70000".parse(), ports(8080, 70_000));
        for wrong in ["", ":", "0", "80:", "1:2:3", "65536", "65536:80", "80:4294967295", "a"] {
            assert!(wrong.parse::<Ports>().is_err(), "{wrong}");
        }
    }
}
