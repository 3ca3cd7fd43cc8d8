//! The handshake: fixed newstyle, without TLS.

use super::connection::{Wire, WireError, protocol, text};

/// `NBDMAGIC`.
const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`.
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Flags of the handshake.
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;
const SET_META_CONTEXT: u32 = 10;

const ACK: u32 = 1;
const INFO: u32 = 3;
const META_CONTEXT: u32 = 4;
/// Replies from here on are errors.
const ERRORS: u32 = 1 << 31;

/// Of the information in replies to [`GO`]: the size and the flags.
const INFO_EXPORT: u16 = 0;

/// Flags of an export.
const HAS_FLAGS: u16 = 1;
const READ_ONLY: u16 = 1 << 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_WRITE_ZEROES: u16 = 1 << 6;
const SEND_DF: u16 = 1 << 7;

const BASE_ALLOCATION: &str = "base:allocation";
const ALLOCATION_DEPTH: &str = "qemu:allocation-depth";

/// The maximum length of a text in the protocol.
const MAX_TEXT: usize = 4096;
/// The maximum number of replies to one option.
const MAX_REPLIES: usize = 32;

/// An export, as the server described it.
#[derive(Debug)]
pub(super) struct Export {
    pub(super) size: u64,
    pub(super) is_read_only: bool,
    pub(super) can_flush: bool,
    pub(super) can_write_zeroes: bool,
    /// The answer to a read can be asked for in one part.
    pub(super) can_read_whole: bool,
    /// The ids of the metadata contexts that the server offers.
    pub(super) base_allocation: Option<u32>,
    pub(super) allocation_depth: Option<u32>,
}

/// Ends with the first request's turn.
pub(super) async fn negotiate(wire: &mut Wire, export: &str) -> Result<Export, WireError> {
    if export.len() > MAX_TEXT {
        let (request, export, message) = ("the name", text(export.as_bytes()), "it is too long".to_owned());
        return Err(WireError::Refused { request, export, message });
    }
    if wire.u64().await? != MAGIC || wire.u64().await? != OPTION_MAGIC {
        return protocol("it is not a newstyle NBD server");
    }
    let flags = wire.u16().await?;
    if flags & FIXED_NEWSTYLE == 0 {
        return protocol("the server does not have the fixed newstyle handshake");
    }
    wire.send(&u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes()).await?;

    let mut option = Negotiation { wire, export };
    option.ask(STRUCTURED_REPLY, "structured replies", &[], |kind, _| unexpected(kind)).await?;

    let (mut base_allocation, mut allocation_depth) = (None, None);
    let mut contexts = named(export);
    contexts.extend_from_slice(&2_u32.to_be_bytes());
    for name in [BASE_ALLOCATION, ALLOCATION_DEPTH] {
        contexts.extend_from_slice(&named(name));
    }
    option
        .ask(SET_META_CONTEXT, "the metadata contexts", &contexts, |kind, data| {
            let Some((id, name)) = data.split_first_chunk().filter(|_| kind == META_CONTEXT) else {
                return unexpected(kind);
            };
            let id = Some(u32::from_be_bytes(*id));
            match name {
                name if name == BASE_ALLOCATION.as_bytes() => base_allocation = id,
                name if name == ALLOCATION_DEPTH.as_bytes() => allocation_depth = id,
                other => {
                    return protocol(format!(
                        "the metadata context {:?} is not one that was asked for",
                        text(other)
                    ));
                }
            }
            Ok(())
        })
        .await?;
    if base_allocation.is_some() && base_allocation == allocation_depth {
        return protocol("two metadata contexts have the same id");
    }

    let mut described = None;
    let mut go = named(export);
    go.extend_from_slice(&0_u16.to_be_bytes());
    option
        .ask(GO, "the use", &go, |kind, data| {
            let Some((info, data)) = data.split_first_chunk().filter(|_| kind == INFO) else {
                return unexpected(kind);
            };
            if u16::from_be_bytes(*info) == INFO_EXPORT {
                let Some((size, flags)) = data.split_first_chunk() else { return unexpected(kind) };
                let Ok(flags) = <[u8; 2]>::try_from(flags) else { return unexpected(kind) };
                described = Some((u64::from_be_bytes(*size), u16::from_be_bytes(flags)));
            }
            Ok(())
        })
        .await?;
    let Some((size, flags)) = described else { return protocol("the server does not describe the export") };
    if size > i64::MAX as u64 || flags & HAS_FLAGS == 0 {
        return protocol(format!("the export has {size} bytes and the flags {flags:#x}"));
    }
    Ok(Export {
        size,
        is_read_only: flags & READ_ONLY != 0,
        can_flush: flags & SEND_FLUSH != 0,
        can_read_whole: flags & SEND_DF != 0,
        can_write_zeroes: flags & SEND_WRITE_ZEROES != 0,
        base_allocation,
        allocation_depth,
    })
}

/// A text after its length.
fn named(name: &str) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes(), name.as_bytes()].concat()
}

fn unexpected(kind: u32) -> Result<(), WireError> {
    protocol(format!("a reply of type {kind} was not expected, or has a wrong length"))
}

/// The options of one handshake.
struct Negotiation<'a> {
    wire: &'a mut Wire,
    export: &'a str,
}

impl Negotiation<'_> {
    /// Sends an option and reads its replies up to the acknowledgement. `each` gets the type and the data of the others.
    async fn ask(
        &mut self,
        option: u32,
        request: &'static str,
        data: &[u8],
        mut each: impl FnMut(u32, &[u8]) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let length = (data.len() as u32).to_be_bytes();
        let head = [&OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &length].concat();
        self.wire.send(&[&head, data].concat()).await?;
        for _ in 0..MAX_REPLIES {
            if self.wire.u64().await? != REPLY_MAGIC || self.wire.u32().await? != option {
                return protocol("it is not a reply to the option that was sent");
            }
            let (kind, length) = (self.wire.u32().await?, self.wire.u32().await? as usize);
            let data = self.wire.bytes(length, MAX_TEXT + 64, "the reply").await?;
            if kind >= ERRORS {
                let (export, message) = (self.export.to_owned(), text(&data));
                let message = match message.is_empty() {
                    true => format!("error {}", kind & !ERRORS),
                    false => message,
                };
                return Err(WireError::Refused { request, export, message });
            }
            if kind == ACK {
                return Ok(());
            }
            each(kind, &data)?;
        }
        protocol(format!("there are more than {MAX_REPLIES} replies"))
    }
}
