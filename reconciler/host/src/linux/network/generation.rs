//! The generation of the kernel's nftables rules: a number per network namespace that each transaction of any program increases.

use std::io;
use std::time::Duration;

use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};

/// `NFNL_SUBSYS_NFTABLES` in the upper byte of a message's type, and the messages that ask for the generation and have it.
const GET: u16 = 10 << 8 | 16;
const NEW: u16 = 10 << 8 | 15;
/// `NLM_F_REQUEST`
const REQUEST: u16 = 1;
/// `NFTA_GEN_ID`
const ID: u16 = 1;
/// The lengths of a netlink message's header, and of the one of netfilter behind it.
const HEADER: usize = 16;
const NETFILTER: usize = 4;
/// The kernel answers at once.
const LIMIT: Duration = Duration::from_secs(1);

/// Returns the generation. None: the kernel does not say it.
pub(super) async fn current() -> Option<u32> {
    tokio::time::timeout(LIMIT, read()).await.ok()?.ok()?
}

/// Whether one transaction was made, and no other, between these two readings.
pub(super) fn is_next(before: Option<u32>, after: Option<u32>) -> bool {
    // The kernel leaves out zero.
    let next = before.map(|before| before.checked_add(1).unwrap_or(1));
    next.is_some() && next == after
}

async fn read() -> io::Result<Option<u32>> {
    let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
    socket.socket_mut().bind_auto()?;
    socket.send_to(&question(), &SocketAddr::new(0, 0)).await?;
    let (answer, _) = socket.recv_from_full().await?;
    Ok(generation(&answer))
}

fn question() -> [u8; HEADER + NETFILTER] {
    let mut message = [0; HEADER + NETFILTER];
    // The length is a small constant.
    message[0] = u8::try_from(HEADER + NETFILTER).unwrap_or_default();
    if cfg!(target_endian = "big") {
        message[..4].reverse();
    }
    message[4..6].copy_from_slice(&GET.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    message
}

/// Reads the answer. None: it is another message, such as an error.
fn generation(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let mut attributes = answer.get(HEADER + NETFILTER..).filter(|_| kind == NEW)?;
    while let [a, b, c, d, ..] = attributes {
        let length = usize::from(u16::from_ne_bytes([*a, *b]));
        let value = attributes.get(4..length)?;
        if u16::from_ne_bytes([*c, *d]) == ID {
            return Some(u32::from_be_bytes(value.try_into().ok()?));
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: u16, attribute: u16) -> Vec<u8> {
        let mut message = vec![0; HEADER + NETFILTER];
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message.extend(8_u16.to_ne_bytes());
        message.extend(attribute.to_ne_bytes());
        message.extend(258_u32.to_be_bytes());
        message
    }

    #[test]
    fn the_generation_is_read_from_its_own_message_only() {
        assert_eq!(generation(&answer(NEW, ID)), Some(258));
        assert_eq!(generation(&answer(2, ID)), None, "an error");
        assert_eq!(generation(&answer(NEW, 2)), None);
        let whole = answer(NEW, ID);
        for end in 0..whole.len() {
            assert_eq!(generation(&whole[..end]), None, "{end}");
        }
    }

    #[test]
    fn a_transaction_of_another_program_in_between_is_seen() {
        assert!(is_next(Some(1), Some(2)) && is_next(Some(u32::MAX), Some(1)));
        assert!(!is_next(Some(1), Some(3)) && !is_next(Some(1), Some(1)));
        assert!(!is_next(None, None) && !is_next(None, Some(1)) && !is_next(Some(1), None));
    }
}
