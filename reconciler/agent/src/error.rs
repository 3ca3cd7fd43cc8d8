//! Why a reconcile did not get to its end, what a condition calls it, and whether trying again helps.

use berth_api::{Readiness, Reason};
use berth_qemu::block::BlockError;
use berth_qemu::guest_agent::GuestAgentError;
use berth_qemu::qmp::QmpError;

use crate::machine::Refusal;
use crate::system::{Retry, SystemError};

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The name cannot be that of a Host.
    #[error(
        "{name:?} is no host name: it must be DNS labels (lower-case letters, digits and '-') joined by dots"
    )]
    HostName { name: String },
    /// Another agent is this host, and lives.
    #[error(
        "another machine is host {host} (its agent {holder} renews the Lease {host} in berth-system): two machines \
         cannot be one host. Give this one a name of its own (--host-name, and a join string for that name), or stop \
         the other agent; one that is gone for good loses the name after 40 seconds"
    )]
    Taken { host: String, holder: String },
    /// Somebody declared the host gone for good.
    #[error(
        "host {host} was declared gone for good (Host.spec.fenced): what runs here is nobody's any more. Stop it, \
         then let this machine join under a name of its own with another --state-dir"
    )]
    Fenced { host: String },
    /// The control plane does not know the credential any more.
    #[error(
        "the control plane no longer accepts the credential of host {host}: it was revoked or has run out. Its VMs go \
         on running. To join again: `berth token create {host}`, then `berth host --join STRING`"
    )]
    Unauthorized { host: String },
    /// The site moved to another control plane, which has something ready for this host to go there with.
    #[error("host {host} belongs to another control plane now: the site has moved")]
    Moved { host: String },
    /// The control plane is not the one in charge any more: it came back from a backup, say.
    #[error("this control plane does not command host {host} any more: {why}")]
    Deposed { host: String, why: String },
}

/// Why one reconcile failed. Named by what was attempted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    System(#[from] SystemError),
    #[error("cannot {attempt}")]
    Api { attempt: &'static str, source: Box<kube::Error> },
    /// Another agent is this host, and lives.
    #[error("another agent is this host: {holder}")]
    Taken { holder: String },
    /// Another agent was this host; whether it lives is not known yet.
    #[error("another agent has the Lease: {holder}")]
    Waiting { holder: String },
    /// The site moved to another control plane.
    #[error("the site has moved to another control plane")]
    Moved,
    /// The control plane does not command this host.
    #[error("the control plane does not command this host: {why}")]
    NotInCharge { why: String },
    /// Somebody else wrote the object since it was read.
    #[error("the object was changed meanwhile")]
    Conflict,
    #[error("cannot change the machine's disks")]
    Block(#[from] BlockError),
    #[error("cannot drive the machine")]
    Monitor(#[from] QmpError),
    #[error("cannot ask the guest's agent")]
    Guest(#[from] GuestAgentError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the machine is not there any more")]
    MachineGone,
    /// A disk's users are being worked out at this moment.
    #[error("disk {name} is being settled")]
    Settling { name: String },
    /// It was asked to let go, and has not yet.
    #[error("the guest still holds disk {name}")]
    StillHeld { name: String },
    #[error("the instance's journal cannot be read: {detail}")]
    Journal { detail: String },
}

impl Error {
    pub(crate) fn api(attempt: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| match &source {
            kube::Error::Api(status) if status.code == 409 => Self::Conflict,
            _ => Self::Api { attempt, source: Box::new(source) },
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(s) if s.code == 404))
    }

    /// The control plane does not know who we are.
    pub(crate) fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(s) if s.code == 401))
    }

    /// What conditions, events and metrics call it.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::System(error) => error.reason(),
            Self::Block(BlockError::Spec(_)) => Reason::InvalidSpec,
            _ => Reason::Retrying,
        }
    }

    /// Whether it is for want of room on a disk, this host's or the control plane's: whoever makes some tells nobody, so
    /// that it is looked for at short intervals, and never backed off from.
    pub(crate) fn waits_for_room(&self) -> bool {
        let is_full = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 507);
        match self {
            Self::Api { source, .. } => is_full(source),
            other => other.reason() == Reason::NoSpace,
        }
    }

    /// Back off, or wait until something changes.
    pub(crate) fn retry(&self) -> Retry {
        match self {
            Self::System(error) => error.retry(),
            Self::Block(BlockError::Spec(_)) => Retry::WaitForChange,
            _ => Retry::Backoff,
        }
    }

    /// Whether it says nothing about the object, only about the moment: such a one is tried again quickly and
    /// does not show in a status.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Conflict
                | Self::Settling { .. }
                | Self::StillHeld { .. }
                | Self::Refused(_)
                | Self::MachineGone
        )
    }

    /// How an object with this error stands.
    pub(crate) fn readiness(&self) -> Readiness {
        let stalled = match self {
            Self::System(error) => error.is_stalled(),
            Self::Block(BlockError::Spec(_)) => true,
            _ => false,
        };
        if stalled {
            Readiness::Stalled(self.reason(), self.chain())
        } else {
            Readiness::Reconciling(self.reason(), self.chain())
        }
    }

    /// The error with all its causes in one line.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(cause) = next {
            let cause_text = cause.to_string();
            // Some libraries repeat their source in their own text.
            if !text.ends_with(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            next = cause.source();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use berth_qemu::process::LaunchError;

    use super::*;

    #[test]
    fn a_qemu_that_gave_up_stalls_with_its_own_words() {
        let launch =
            LaunchError::Exited { status: "exit status: 1".into(), stderr: "no such machine".into() };
        let error = Error::from(SystemError::from(launch));
        let Readiness::Stalled(reason, message) = error.readiness() else { panic!("{error:?}") };
        assert_eq!(reason, Reason::QemuFailed);
        assert!(message.ends_with("no such machine"), "{message}");
        assert_eq!(error.retry(), Retry::Backoff);
    }

    #[test]
    fn a_full_disk_of_the_control_plane_is_waited_for_and_another_error_is_not() {
        let refused = |code| {
            let status = kube::core::Status { code, ..Default::default() };
            Error::api("write")(kube::Error::Api(status.into()))
        };
        assert!(refused(507).waits_for_room());
        assert!(!refused(500).waits_for_room());
    }

    #[test]
    fn a_conflict_passes_and_is_no_state_of_the_object() {
        let status = kube::core::Status { code: 409, ..Default::default() };
        let error = Error::api("write")(kube::Error::Api(status.into()));
        assert!(error.is_passing());
    }
}
