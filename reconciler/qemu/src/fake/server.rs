//! The far ends of monitor and guest agent connections.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::broadcast;

use super::command_error::CommandError;
use super::commands::version;
use super::guest;
use super::host::{FakeHypervisor, Wire};
use crate::qmp::Frames;

const MAX_MESSAGE: usize = 1 << 20;
/// How often a monitor that hangs is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Serves one QMP client, from its greeting until either side disconnects.
pub(super) async fn monitor(host: FakeHypervisor, mut wire: Wire, stream: DuplexStream) {
    let mut exited = wire.exited.clone();
    tokio::select! {
        _ = exited.wait_for(|gone| *gone) => {}
        () = converse(&host, &mut wire, stream) => {}
    }
}

async fn converse(host: &FakeHypervisor, wire: &mut Wire, stream: DuplexStream) {
    // A second client waits here, as with real QEMU.
    let Ok(_turn) = wire.monitor.clone().acquire_owned().await else { return };
    let (reader, mut writer) = tokio::io::split(stream);
    let mut frames = Frames::new(reader, MAX_MESSAGE);
    if while_it_hangs(host, wire.pid, &mut frames).await.is_none() {
        return;
    }
    let greeting = json!({"QMP": {"version": version(), "capabilities": ["oob"]}});
    if send(&mut writer, &greeting).await.is_none() {
        return;
    }
    let mut negotiated = false;
    loop {
        let message = tokio::select! {
            biased;
            event = wire.events.recv(), if negotiated => match event {
                Ok(event) => match send(&mut writer, &event).await { Some(()) => continue, None => return },
                Err(broadcast::error::RecvError::Lagged(_)) => continue,
                Err(broadcast::error::RecvError::Closed) => return,
            },
            message = frames.next() => match message {
                Ok(message) => message,
                Err(_) => return,
            },
        };
        if while_it_hangs(host, wire.pid, &mut frames).await.is_none() {
            return;
        }
        let Some(behaviour) = host.behaviour_of(wire.pid) else { return };
        if !behaviour.latency.is_zero() {
            tokio::time::sleep(behaviour.latency).await;
        }
        let quits = negotiated && message.get("execute").is_some_and(|c| c == "quit");
        let mut reply =
            if quits { host.announce_quit(wire.pid) } else { answer(host, wire, &message, &mut negotiated) };
        // Events that the command caused immediately are sent before its reply.
        while let Ok(event) = wire.events.try_recv() {
            if negotiated && send(&mut writer, &event).await.is_none() {
                return;
            }
        }
        if let Some(id) = message.get("id") {
            reply["id"] = id.clone();
        }
        let sent = send(&mut writer, &reply).await;
        if quits {
            host.end(wire.pid);
        }
        if quits || sent.is_none() {
            return;
        }
    }
}

fn answer(host: &FakeHypervisor, wire: &mut Wire, message: &Value, negotiated: &mut bool) -> Value {
    let result = parse(message).and_then(|(command, args)| {
        if !*negotiated {
            if command != "qmp_capabilities" {
                let desc = "Expecting capabilities negotiation with 'qmp_capabilities'".to_owned();
                return Err(CommandError { class: "CommandNotFound", desc });
            }
            *negotiated = true;
            // Earlier events are not sent to this client.
            wire.events = wire.events.resubscribe();
            return Ok(json!({}));
        }
        host.execute(wire.pid, command, &args)
    });
    match result {
        Ok(value) => json!({"return": value}),
        Err(refusal) => json!({"error": {"class": refusal.class, "desc": refusal.desc}}),
    }
}

fn parse(message: &Value) -> Result<(&str, Map<String, Value>), CommandError> {
    let object =
        message.as_object().ok_or_else(|| CommandError::generic("QMP input must be a JSON object"))?;
    if let Some(key) = object.keys().find(|k| !["execute", "arguments", "id"].contains(&k.as_str())) {
        return Err(CommandError::generic(format!("QMP input member '{key}' is unexpected")));
    }
    let command =
        object.get("execute").ok_or_else(|| CommandError::generic("QMP input lacks member 'execute'"))?;
    let command = command
        .as_str()
        .ok_or_else(|| CommandError::generic("QMP input member 'execute' must be a string"))?;
    match object.get("arguments") {
        None => Ok((command, Map::new())),
        Some(Value::Object(args)) => Ok((command, args.clone())),
        Some(_) => Err(CommandError::generic("QMP input member 'arguments' must be an object")),
    }
}

/// The guest's end of the agent channel. Without an agent all input is discarded.
pub(super) async fn guest_agent(host: FakeHypervisor, mut wire: Wire, stream: DuplexStream) {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut frames = Frames::new(reader, MAX_MESSAGE);
    loop {
        let message = tokio::select! {
            _ = wire.exited.wait_for(|gone| *gone) => return,
            message = frames.next() => message,
        };
        let Ok(message) = message else { return };
        let Some(answer) = host.ask_guest(wire.pid, &message) else { continue };
        let mut bytes = answer.to_string().into_bytes();
        if guest::is_delimited(&message) {
            bytes.insert(0, 0xff);
        }
        bytes.push(b'\n');
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Waits until the monitor replies. None: the client has hung up before. Its messages meanwhile are lost.
async fn while_it_hangs(
    host: &FakeHypervisor,
    pid: i32,
    frames: &mut Frames<ReadHalf<DuplexStream>>,
) -> Option<()> {
    let hangs = || host.behaviour_of(pid).is_some_and(|behaviour| behaviour.hangs);
    let replies = async {
        while hangs() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::select! {
        biased;
        () = replies => Some(()),
        () = wait_for_hang_up(frames) => None,
    }
}

async fn wait_for_hang_up(frames: &mut Frames<ReadHalf<DuplexStream>>) {
    while frames.next().await.is_ok() {}
}

async fn send(writer: &mut WriteHalf<DuplexStream>, message: &Value) -> Option<()> {
    let mut line = message.to_string().into_bytes();
    line.extend_from_slice(b"\r\n");
    writer.write_all(&line).await.ok()
}
