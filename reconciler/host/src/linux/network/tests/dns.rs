//! A minimal DNS client.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

/// Short: the server is on the same machine.
const PATIENCE: Duration = Duration::from_millis(500);
const ATTEMPTS: usize = 4;
const ID: [u8; 2] = [0xbe, 0x27];
const HEADER: usize = 12;

pub(super) const A: u16 = 1;
pub(super) const PTR: u16 = 12;
pub(super) const AAAA: u16 = 28;

/// The code of an answer about a name that does not exist.
pub(super) const NXDOMAIN: u8 = 3;
/// The code of an answer of a server that cannot reach the servers it asks.
pub(super) const REFUSED: u8 = 5;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) code: u8,
    /// Addresses and names, in order.
    pub(super) records: Vec<String>,
    /// The longest time for which a record may be kept.
    pub(super) ttl: u32,
}

/// Asks a name server; None if it does not answer.
pub(super) fn ask(server: Ipv4Addr, name: &str, kind: u16) -> Option<Answer> {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a free port");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout above zero");
    let question = question(name, kind);
    for _ in 0..ATTEMPTS {
        if socket.send_to(&question, (server, 53)).is_err() {
            continue;
        }
        let mut answer = [0; 1500];
        let Ok((length, _)) = socket.recv_from(&mut answer) else { continue };
        if let Some(answer) = parse(&answer[..length]) {
            return Some(answer);
        }
    }
    None
}

fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut question = ID.to_vec();
    // Recursion is desired; one question.
    question.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        question.push(label.len() as u8);
        question.extend(label.as_bytes());
    }
    question.push(0);
    question.extend(kind.to_be_bytes());
    question.extend([0, 1]);
    question
}

fn parse(answer: &[u8]) -> Option<Answer> {
    if *answer.get(..2)? != ID {
        return None;
    }
    let code = *answer.get(3)? & 0xf;
    let count = u16::from_be_bytes(answer.get(6..8)?.try_into().ok()?);
    let (_, mut at) = name(answer, HEADER)?;
    at += 4;
    let mut parsed = Answer { code, ..Answer::default() };
    for _ in 0..count {
        let (_, head) = name(answer, at)?;
        let number = |from: usize| Some(u16::from_be_bytes(answer.get(from..from + 2)?.try_into().ok()?));
        let (kind, length) = (number(head)?, usize::from(number(head + 8)?));
        let ttl = u32::from_be_bytes(answer.get(head + 4..head + 8)?.try_into().ok()?);
        let data = answer.get(head + 10..head + 10 + length)?;
        parsed.records.push(match kind {
            A => Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).to_string(),
            AAAA => Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).to_string(),
            PTR => name(answer, head + 10)?.0,
            _ => return None,
        });
        parsed.ttl = parsed.ttl.max(ttl);
        at = head + 10 + length;
    }
    parsed.records.sort();
    Some(parsed)
}

/// Reads a name, which may end with a pointer; returns where it ends.
fn name(packet: &[u8], from: usize) -> Option<(String, usize)> {
    let (mut labels, mut at, mut end) = (Vec::new(), from, None);
    // A name has at most 127 labels.
    for _ in 0..128 {
        let length = *packet.get(at)?;
        match length {
            0 => return Some((labels.join("."), end.unwrap_or(at + 1))),
            pointer if pointer >= 0xc0 => {
                end.get_or_insert(at + 2);
                at = usize::from(pointer & 0x3f) << 8 | usize::from(*packet.get(at + 1)?);
            }
            length => {
                let label = packet.get(at + 1..at + 1 + usize::from(length))?;
                labels.push(String::from_utf8(label.to_vec()).ok()?);
                at += 1 + usize::from(length);
            }
        }
    }
    None
}
