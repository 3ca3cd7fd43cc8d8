//! A server in this process that sends what its test asks for.

use std::time::Duration;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::*;

const SIZE: u64 = 1 << 20;
/// For servers that are expected to answer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// For servers that are expected not to.
const SHORT: Duration = Duration::from_secs(1);
/// The metadata contexts' ids.
const BASE: u32 = 11;
const DEPTH: u32 = 12;

fn greeting() -> Vec<u8> {
    [b"NBDMAGICIHAVEOPT".as_slice(), &3_u16.to_be_bytes()].concat()
}

/// A reply to an option.
fn option(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
    [&magic[..], &option.to_be_bytes(), &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data]
        .concat()
}

fn context(id: u32, name: &str) -> Vec<u8> {
    option(10, 4, &[&id.to_be_bytes()[..], name.as_bytes()].concat())
}

fn described(size: u64, flags: u16) -> Vec<u8> {
    option(7, 3, &[&0_u16.to_be_bytes()[..], &size.to_be_bytes(), &flags.to_be_bytes()].concat())
}

/// A whole handshake, as QEMU's.
fn handshake() -> Vec<Vec<u8>> {
    vec![
        greeting(),
        option(8, 1, &[]),
        context(BASE, "base:allocation"),
        context(DEPTH, "qemu:allocation-depth"),
        option(10, 1, &[]),
        // Flags, flush, zeros.
        described(SIZE, 0b100_0101),
        option(7, 1, &[]),
    ]
}

/// A chunk of the reply to the first request.
fn chunk(flags: u16, kind: u16, cookie: u64, data: &[u8]) -> Vec<u8> {
    let magic = 0x668e_33ef_u32.to_be_bytes();
    let length = (data.len() as u32).to_be_bytes();
    [&magic[..], &flags.to_be_bytes(), &kind.to_be_bytes(), &cookie.to_be_bytes(), &length, data].concat()
}

fn simple(error: u32, cookie: u64) -> Vec<u8> {
    [&0x6744_6698_u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

fn data_at(flags: u16, offset: u64, data: &[u8]) -> Vec<u8> {
    chunk(flags, 1, 1, &[&offset.to_be_bytes()[..], data].concat())
}

fn hole_at(flags: u16, offset: u64, length: u32) -> Vec<u8> {
    chunk(flags, 2, 1, &[&offset.to_be_bytes()[..], &length.to_be_bytes()].concat())
}

fn status(flags: u16, id: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    let extents =
        extents.iter().flat_map(|(length, state)| [length.to_be_bytes(), state.to_be_bytes()].concat());
    chunk(flags, 5, 1, &id.to_be_bytes().into_iter().chain(extents).collect::<Vec<_>>())
}

/// After the bytes, the server closes the connection or keeps it open without an answer.
#[derive(Clone, Copy)]
enum End {
    Closes,
    Stalls,
}

/// Connects to a server that sends these bytes and reads everything.
async fn connect(sent: Vec<u8>, end: End) -> Result<Client, NbdError> {
    connect_within(TIMEOUT, sent, end).await
}

async fn connect_within(limit: Duration, sent: Vec<u8>, end: End) -> Result<Client, NbdError> {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let (mut from, mut to) = theirs.into_split();
    tokio::spawn(async move {
        let mut ignored = vec![0; 64 << 10];
        while from.read(&mut ignored).await.is_ok_and(|read| read > 0) {}
    });
    tokio::spawn(async move {
        let _ = to.write_all(&sent).await;
        if let End::Stalls = end {
            std::future::pending::<()>().await;
        }
    });
    Client::over(ours, "disk", limit).await
}

/// Connects, with these bytes as the answers after the handshake.
async fn connected(answers: &[Vec<u8>], end: End) -> Client {
    let sent = [handshake().concat(), answers.concat()].concat();
    connect(sent, end).await.expect("the handshake is right")
}

async fn read(answers: &[Vec<u8>], end: End) -> Result<Vec<u8>, NbdError> {
    let mut data = vec![9; 1024];
    connected(answers, end).await.read_at(512, &mut data).await.map(|()| data)
}

async fn extents(answers: &[Vec<u8>]) -> Result<Vec<Extent>, NbdError> {
    connected(answers, End::Closes).await.extents(0, 4096).await
}

#[tokio::test]
async fn a_handshake_that_is_not_the_protocols_is_an_error() {
    let good = handshake();
    connect(good.concat(), End::Stalls).await.expect("it is right");
    let with = |at: usize, other: Vec<u8>| {
        let mut sent = good.clone();
        sent[at] = other;
        sent.concat()
    };
    let endless = vec![context(BASE, "base:allocation"); 100].concat();
    for (sent, error) in [
        (with(0, b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0".to_vec()), "not a newstyle"),
        (with(0, b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), "not a newstyle"),
        (with(0, [b"NBDMAGICIHAVEOPT".as_slice(), &[0, 2]].concat()), "fixed newstyle"),
        (with(1, vec![0; 20]), "not a reply to the option"),
        (with(1, option(7, 1, &[])), "not a reply to the option"),
        (with(1, option(8, 3, &[])), "type 3 was not expected"),
        (with(1, option(8, 0x8000_0001, b"no\nway")), "no way"),
        (with(1, option(8, 0x8000_0001, &[])), "error 1"),
        (with(2, context(BASE, "other:context")), "not one that was asked for"),
        (with(2, option(10, 4, &[1, 2])), "wrong length"),
        (with(2, context(DEPTH, "base:allocation")), "the same id"),
        (with(2, endless), "more than 32 replies"),
        (with(4, option(10, 1, &vec![0; 5000])), "at most"),
        (with(4, [&option(10, 1, &[])[..16], &u32::MAX.to_be_bytes()].concat()), "at most"),
        (with(5, Vec::new()), "does not describe"),
        (with(5, described(SIZE, 0)), "the flags"),
        (with(5, described(u64::MAX, 1)), "bytes and the flags"),
        (with(5, option(7, 3, &[0, 0, 1])), "wrong length"),
        (with(5, option(7, 3, &[0])), "wrong length"),
        (with(6, option(7, 0x8000_0006, b"no such export")), "no such export"),
    ] {
        let found = connect(sent, End::Stalls).await.expect_err(error).to_string();
        assert!(found.contains(error), "{found}, not {error}");
    }
    for length in [0, 1, 17, 30, good.concat().len() - 1] {
        let sent = good.concat()[..length].to_vec();
        let closed = connect(sent, End::Closes).await.expect_err("closed");
        assert!(matches!(closed, NbdError::Broken { .. }), "{closed}");
    }
    let sent = good.concat()[..30].to_vec();
    let silent = connect_within(SHORT, sent, End::Stalls).await.expect_err("silent");
    assert!(matches!(silent, NbdError::Silent { request: "the handshake", .. }), "{silent}");
}

#[tokio::test]
async fn an_export_without_contexts_has_data_but_no_extents() {
    let mut sent = handshake();
    sent.drain(2..4);
    sent.push(hole_at(1, 0, 512));
    let mut client = connect(sent.concat(), End::Closes).await.expect("connected");
    assert!(matches!(client.extents(0, 512).await, Err(NbdError::NotOffered { .. })));
    client.read_at(0, &mut [0; 512]).await.expect("it is read");
}

#[tokio::test]
async fn a_read_may_come_in_parts_and_in_any_order() {
    let (first, second) = ([1; 100], [3; 424]);
    let parts =
        [data_at(0, 1112, &second), hole_at(0, 612, 500), data_at(0, 512, &first), chunk(1, 0, 1, &[])];
    let data = read(&parts, End::Stalls).await.expect("it is whole");
    assert_eq!(data, [&first[..], &[0; 500], &second].concat());
}

#[tokio::test]
async fn a_reply_that_is_not_the_requests_is_an_error() {
    let all = vec![1; 1024];
    let error = |kind: u16, data: &[u8]| chunk(1, kind, 1, data);
    for (answers, expected) in [
        (vec![vec![0; 64]], "begins with 0x0"),
        (vec![chunk(1, 1, 2, &all)], "another request"),
        (vec![simple(0, 2)], "another request"),
        (vec![simple(0, 1)], "0 of 1024 bytes came"),
        (vec![data_at(1, 512, &all[..1023])], "1023 of 1024"),
        (vec![data_at(1, 512, &[1; 1025])], "not in the part"),
        (vec![data_at(1, 511, &all)], "not in the part"),
        (vec![data_at(1, u64::MAX, &all)], "not in the part"),
        (vec![data_at(1, 512, &[])], "not in the part"),
        (vec![hole_at(1, 512, u32::MAX)], "not in the part"),
        (vec![hole_at(1, 512, 0)], "not in the part"),
        (vec![data_at(0, 512, &all[..600]), data_at(1, 1000, &all[..536])], "comes twice"),
        (vec![hole_at(0, 1000, 536), hole_at(1, 512, 600)], "comes twice"),
        (vec![hole_at(0, 600, 10), hole_at(1, 512, 1024)], "comes twice"),
        (vec![chunk(1, 1, 1, &[1, 2, 3])], "was not expected"),
        (vec![chunk(1, 2, 1, &[0; 13])], "was not expected"),
        (vec![chunk(1, 5, 1, &all)], "was not expected"),
        (vec![chunk(1, 99, 1, &all)], "was not expected"),
        (vec![chunk(0, 0, 1, &[])], "empty chunk"),
        (vec![chunk(1, 0, 1, &[1])], "empty chunk"),
        (vec![chunk(1, 0, 1, &[])], "0 of 1024"),
        (vec![error(0x8001, &[0; 5])], "wrong length"),
        (vec![error(0x8001, &[0, 0, 0, 5, 0, 9, b'x'])], "wrong length"),
        (vec![error(0x8001, &[0; 5000])], "at most"),
        (vec![chunk(0, 0x8001, 1, &[0, 0, 0, 5, 0, 0]); 9000], "more than 8193 chunks"),
    ] {
        let found = read(&answers, End::Stalls).await.expect_err(expected).to_string();
        assert!(found.contains(expected), "{found}, not {expected}");
    }
    let whole = data_at(1, 512, &all);
    for length in [0, 3, 10, 20, 27, whole.len() - 1] {
        let closed = read(&[whole[..length].to_vec()], End::Closes).await.expect_err("closed");
        assert!(matches!(closed, NbdError::Broken { .. }), "{closed}");
    }
    let sent = [handshake().concat(), whole[..500].to_vec()].concat();
    let mut client = connect_within(SHORT, sent, End::Stalls).await.expect("the handshake is right");
    let silent = client.read_at(512, &mut [0; 1024]).await.expect_err("silent");
    assert!(matches!(silent, NbdError::Silent { request: "a read", .. }), "{silent}");
}

#[tokio::test]
async fn errors_of_the_disk_have_their_number_and_text() {
    for answers in [
        vec![chunk(1, 0x8001, 1, b"\0\0\0\x05\0\x03bad")],
        vec![chunk(0, 0x8002, 1, b"\0\0\0\x05\0\x03bad\0\0\0\0\0\0\x02\0"), hole_at(1, 512, 5)],
        vec![simple(5, 1)],
    ] {
        let error = read(&answers, End::Stalls).await.expect_err("it fails");
        assert!(
            matches!(&error, NbdError::Failed { offset: 512, source, .. } if source.raw_os_error() == Some(5)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn extents_are_those_of_both_contexts() {
    // The last one may end after the request; the depth is known for less.
    let first = [status(0, BASE, &[(1024, 0), (8192, 3)]), status(1, DEPTH, &[(512, 1), (1536, 2)])];
    let second = [status(0, DEPTH, &[(9000, 0)]), status(1, BASE, &[(2048, 3)])];
    // The second request has the cookie 2.
    let second = second.map(|mut chunk| {
        chunk[15] = 2;
        chunk
    });
    let found = extents(&[first.concat(), second.concat()]).await.expect("they are right");
    let extent = |length, depth, state| Extent { length, depth, is_zero: state, is_hole: state };
    assert_eq!(
        found,
        [extent(512, 1, false), extent(512, 2, false), extent(1024, 2, true), extent(2048, 0, true)]
    );
}

#[tokio::test]
async fn extents_that_are_not_the_requests_are_an_error() {
    let whole = [(4096, 0)];
    for (answers, expected) in [
        (vec![status(1, BASE, &whole)], "context is missing"),
        (vec![status(0, BASE, &whole), status(1, 99, &whole)], "unknown metadata context 99"),
        (vec![status(0, BASE, &whole), status(1, BASE, &whole)], "comes twice"),
        (vec![status(0, BASE, &[(0, 0)])], "empty or incomplete"),
        (vec![status(0, BASE, &[])], "empty or incomplete"),
        (vec![chunk(1, 5, 1, &[0, 0, 0, 11, 1, 2, 3])], "empty or incomplete"),
        (vec![chunk(1, 5, 1, &[0, 0])], "was not expected"),
        (vec![chunk(1, 1, 1, &[0; 12])], "was not expected"),
        (vec![simple(0, 1)], "context is missing"),
        (vec![chunk(1, 0, 1, &[])], "context is missing"),
        (
            vec![[&chunk(1, 5, 1, &[])[..16], &(u32::MAX).to_be_bytes(), &BASE.to_be_bytes()].concat()],
            "at most",
        ),
    ] {
        let found = extents(&answers).await.expect_err(expected).to_string();
        assert!(found.contains(expected), "{found}, not {expected}");
    }
}

#[tokio::test]
async fn after_a_failure_the_connection_is_not_used() {
    let mut client = connected(&[vec![0; 64]], End::Stalls).await;
    assert!(matches!(client.flush().await, Err(NbdError::Protocol { request: "a flush", .. })));
    assert!(matches!(client.flush().await, Err(NbdError::Unusable)));
    assert!(matches!(client.disconnect().await, Err(NbdError::Unusable)));

    // The reply to the read whose future is dropped would be taken for that of the next request.
    let mut client = connected(&[], End::Stalls).await;
    let mut data = [0; 512];
    let dropped = tokio::time::timeout(Duration::from_millis(20), client.read_at(0, &mut data)).await;
    assert!(dropped.is_err());
    assert!(matches!(client.read_at(0, &mut data).await, Err(NbdError::Unusable)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// No panic, and no success with less data than was asked for.
    #[test]
    fn any_bytes_end_in_an_error_or_a_whole_read(at in 0_usize..1100, byte: u8, cut in 0_usize..1100) {
        let mut answer = data_at(1, 512, &[1; 1024]);
        let at = at % answer.len();
        answer[at] = byte;
        answer.truncate(if cut < 500 { cut } else { answer.len() });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let is_whole = answer.len() == 1052;
        let result = runtime.block_on(read(&[answer], End::Closes));
        prop_assert!(result.is_err() || is_whole);
    }
}
