//! The fake host as a `Hypervisor`.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::DuplexStream;

use super::host::{BINARY, FakeHypervisor, Wire};
use super::machine::Machine;
use super::server;
use crate::console::ConsoleStream;
use crate::guest_agent::{GuestAgent, GuestAgentError};
use crate::hypervisor::{
    CpuTime, FoundQemu, Hypervisor, LaunchError, LendError, Limits, ProcessError, ProcessIdentity,
    ProcessState, StateFile,
};
use crate::machine::{Graphics, LaunchSpec, MachinePaths, NicSpec, Tap, command_line, instance_of, name_of};
use crate::nics::LentTap;
use crate::qmp::{Events, Qmp, QmpError};

/// The buffer in each direction; both ends read continuously. One process may contain tens of thousands of machines.
const DUPLEX: usize = 4 << 10;

impl FakeHypervisor {
    /// Serves QMP for an instance on a stream provided by the caller.
    pub fn serve_monitor(&self, instance: &str, stream: DuplexStream) -> bool {
        let Some(pid) = self.pids_of(instance).first().copied() else { return false };
        let Some(wire) = self.wire(|m| m.identity.pid == pid) else { return false };
        tokio::spawn(server::monitor(self.clone(), wire, stream));
        true
    }
}

#[async_trait]
impl Hypervisor for FakeHypervisor {
    async fn launch(&self, spec: &LaunchSpec, limits: Limits) -> Result<ProcessIdentity, LaunchError> {
        spec.validate()?;
        let identity = self.build(spec)?;
        self.with(&spec.machine.instance, |machine| machine.cpu_time = limits.cpu);
        let time = self.behaviour_of(identity.pid).unwrap_or_default().launch_time;
        tokio::time::sleep(time).await;
        Ok(identity)
    }

    async fn cpu_time(&self, instance: &str) -> Result<CpuTime, ProcessError> {
        let world = self.lock();
        let machine = world.machines.values().find(|m| m.spec.machine.instance == instance);
        Ok(machine.map(|machine| machine.cpu_time).unwrap_or_default())
    }

    async fn set_cpu_time(&self, instance: &str, time: CpuTime) -> Result<(), ProcessError> {
        self.with(instance, |machine| machine.cpu_time = time);
        Ok(())
    }

    async fn oom_kills(&self, instance: &str) -> u64 {
        self.lock().oom_kills.get(instance).copied().unwrap_or_default()
    }

    async fn set_oom_preference(
        &self,
        process: &ProcessIdentity,
        preference: u16,
    ) -> Result<(), ProcessError> {
        if let Some(machine) = self.lock().machines.get_mut(&process.pid) {
            machine.oom_preference = preference;
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<FoundQemu>, ProcessError> {
        let world = self.lock();
        let ours = world.machines.values().map(|machine| {
            let mut argv = vec![BINARY.to_owned()];
            argv.extend(command_line(&machine.spec));
            let (instance, name) = (instance_of(&argv).map(str::to_owned), name_of(&argv));
            FoundQemu { identity: machine.identity.clone(), uid: 0, instance, name, argv }
        });
        Ok(ours.chain(world.foreign.values().cloned()).collect())
    }

    /// Called at every observation of a machine: avoids building a command line for each machine just to parse it.
    async fn find(&self, instance: &str) -> Result<Option<ProcessIdentity>, ProcessError> {
        let world = self.lock();
        Ok(world.machines.values().find(|m| m.spec.machine.instance == instance).map(|m| m.identity.clone()))
    }

    async fn is_alive(&self, process: &ProcessIdentity) -> Result<bool, ProcessError> {
        let world = self.lock();
        let ours = world.machines.get(&process.pid).is_some_and(|m| m.identity == *process);
        Ok(ours || world.foreign.get(&process.pid).is_some_and(|f| f.identity == *process))
    }

    async fn process_state(&self, process: &ProcessIdentity) -> Result<Option<ProcessState>, ProcessError> {
        let behaviour = self.behaviour_of(process.pid);
        Ok(behaviour.map(|b| if b.hangs { ProcessState::Stopped } else { ProcessState::Running }))
    }

    async fn exited(&self, process: &ProcessIdentity) -> Result<(), ProcessError> {
        let Some(mut wire) = self.wire(|m| m.identity == *process) else { return Ok(()) };
        let _ = wire.exited.wait_for(|gone| *gone).await;
        Ok(())
    }

    async fn kill(&self, process: &ProcessIdentity, _grace: Duration) -> Result<(), ProcessError> {
        if self.is_alive(process).await? {
            self.end(process.pid);
            self.lock().foreign.remove(&process.pid);
        }
        Ok(())
    }

    async fn connect(&self, paths: &MachinePaths) -> Result<(Qmp, Events), QmpError> {
        let Some(wire) = self.wire(|m| m.spec.files.paths.qmp == paths.qmp) else {
            let source = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            return Err(QmpError::Connect { path: paths.qmp.clone(), source });
        };
        let (near, far) = tokio::io::duplex(DUPLEX);
        tokio::spawn(server::monitor(self.clone(), wire, far));
        Qmp::over(near).await
    }

    async fn guest_agent(&self, paths: &MachinePaths) -> Result<GuestAgent, GuestAgentError> {
        let Some(wire) = self.wire(|m| m.spec.files.paths.guest_agent == paths.guest_agent) else {
            let source = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            return Err(GuestAgentError::Connect { path: paths.guest_agent.clone(), source });
        };
        let (near, far) = tokio::io::duplex(DUPLEX);
        tokio::spawn(server::guest_agent(self.clone(), wire, far));
        Ok(GuestAgent::over(near))
    }

    /// The guest's terminal repeats what is typed.
    async fn serial(&self, paths: &MachinePaths) -> std::io::Result<ConsoleStream> {
        let has_port = |m: &Machine| {
            let mut ports = m.spec.machine.serial_ports();
            ports.any(|number| m.spec.files.paths.serial_port(number).0 == paths.serial_socket)
        };
        Ok(echo(self.wire(has_port).ok_or(std::io::ErrorKind::ConnectionRefused)?))
    }

    /// Repeats what is sent, without a protocol.
    async fn vnc(&self, paths: &MachinePaths) -> std::io::Result<ConsoleStream> {
        let has_graphics = |m: &Machine| m.spec.machine.graphics != Graphics::None;
        let wire = self.wire(|m| m.spec.files.paths.vnc == paths.vnc && has_graphics(m));
        Ok(echo(wire.ok_or(std::io::ErrorKind::NotFound)?))
    }

    async fn lend_state(&self, _: &Qmp, paths: &MachinePaths, file: StateFile<'_>) -> Result<(), LendError> {
        let (path, is_empty) = (file.path().to_owned(), matches!(file, StateFile::Empty(_)));
        let mut world = self.lock();
        let machine = world.machines.values_mut().find(|m| m.spec.files.paths.qmp == paths.qmp);
        let lent = match machine {
            Some(machine) => machine.lend(path.clone(), is_empty),
            None => Err(std::io::ErrorKind::NotConnected.into()),
        };
        lent.map_err(|source| LendError::Open { path, source })
    }

    async fn lend_channel(&self, _: &Qmp, paths: &MachinePaths) -> Result<ConsoleStream, LendError> {
        let mut world = self.lock();
        let machine = world.machines.values_mut().find(|m| m.spec.files.paths.qmp == paths.qmp);
        let gone = || LendError::Channel(std::io::ErrorKind::NotConnected.into());
        let machine = machine.ok_or_else(gone)?;
        let (near, far) = tokio::io::duplex(DUPLEX);
        machine.migration.channel = Some(far);
        Ok(ConsoleStream::over(near))
    }

    async fn lend_tap(&self, _: &Qmp, paths: &MachinePaths, nic: &NicSpec) -> Result<LentTap, LendError> {
        let Tap::Name(tap) = &nic.tap else { return Ok(LentTap { vhost: false }) };
        let mut world = self.lock();
        let machine = world.machines.values_mut().find(|m| m.spec.files.paths.qmp == paths.qmp);
        let lent = match machine {
            Some(machine) => machine.lend_tap(nic, tap),
            None => Err(std::io::ErrorKind::NotConnected.into()),
        };
        lent.map_err(|source| LendError::Tap { name: tap.clone(), source })?;
        Ok(LentTap { vhost: false })
    }

    async fn grant(&self, file: &Path, writable: bool) -> Result<(), ProcessError> {
        self.lock().granted.insert(file.to_owned(), writable);
        Ok(())
    }
}

/// Repeats what is sent, until the machine ends.
fn echo(mut wire: Wire) -> ConsoleStream {
    let (near, far) = tokio::io::duplex(DUPLEX);
    tokio::spawn(async move {
        let (mut sent, mut repeated) = tokio::io::split(far);
        tokio::select! {
            _ = wire.exited.wait_for(|gone| *gone) => {}
            _ = tokio::io::copy(&mut sent, &mut repeated) => {}
        }
    });
    ConsoleStream::over(near)
}
