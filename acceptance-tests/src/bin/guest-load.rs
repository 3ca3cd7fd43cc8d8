//! The load of `cargo measure N14 N16 N17`: in a guest, on a disk or towards a server; outside, the server of the network load. It uses
//! the standard library only, so that `rustc` links it statically for a guest that has no libraries.
//!
//! ```text
//! guest-load turns DEVICE ADDRESS:PORT ROUNDS   a second of each kind of access and of traffic, ROUNDS times, each in its turn
//! guest-load pauses DEVICE                      microseconds of the longest write in each fifth of a second
//! guest-load network ADDRESS:PORT SECONDS       bytes, packets or round trips a second
//! guest-load serve ADDRESS:PORT [FILE]          the server
//! ```
//!
//! Each result is a line `guest-load KIND VALUE` on the standard output.
//!
//! Turns: several guests, each with a server of its own, load the same machine one at a time. A client that has a turn has a
//! connection to its server, and the server a lock on FILE, which all servers share. The lock goes to the server that has waited for
//! the longest time, so that two guests alternate.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// `O_DIRECT` of Linux on x86-64: past the guest's page cache.
const DIRECT: i32 = 0o40_000;
/// The alignment that direct access to any disk is content with.
const ALIGNMENT: usize = 4096;
/// The bytes that a connection writes or reads at once.
const BUFFER: usize = 128 << 10;
/// The payload of a small packet.
const PACKET: usize = 64;
/// The blocks of a device that `pauses` writes to.
const PAUSE_BLOCKS: u64 = 4096;
/// The interval between two reports of `pauses`.
const PAUSE_REPORT: Duration = Duration::from_millis(200);
/// The first byte of a connection says what the client wants.
const SINK: u8 = b'S';
const SOURCE: u8 = b'R';
const ECHO: u8 = b'E';
const PACKETS: u8 = b'P';
const TURN: u8 = b'T';
/// The time of a load in a turn.
const SLICE: Duration = Duration::from_secs(1);

/// A kind of access to a disk.
struct Access {
    name: &'static str,
    block: usize,
    /// The number of requests under way at a time.
    depth: u64,
    writes: bool,
    random: bool,
}

const ACCESSES: &[Access] = &[
    Access { name: "disk-write", block: 1 << 20, depth: 4, writes: true, random: false },
    Access { name: "disk-read", block: 1 << 20, depth: 4, writes: false, random: false },
    Access { name: "disk-random-write", block: 4096, depth: 16, writes: true, random: true },
    Access { name: "disk-random-read", block: 4096, depth: 16, writes: false, random: true },
];

/// The count of a load, and the time that it took.
type Measured = (u64, Duration);
/// Loads the network towards a server for a time.
type Traffic = fn(&str, Duration) -> io::Result<Measured>;

const TRAFFIC: &[(&str, Traffic)] = &[
    ("tcp-send", sends),
    ("tcp-receive", receives),
    ("tcp-round-trips", round_trips),
    ("udp-packets", packets),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["turns", device, server, rounds] => {
            rounds.parse().map_err(io::Error::other).and_then(|rounds| turns(device, server, rounds))
        }
        ["pauses", device] => pauses(device),
        ["network", server, seconds] => time(seconds).and_then(|time| network(server, time)),
        ["serve", address] => serve(address, None),
        ["serve", address, turns] => serve(address, Some(turns)),
        _ => Err(io::Error::other(
            "guest-load turns DEVICE ADDRESS:PORT ROUNDS | pauses DEVICE | network ADDRESS:PORT SECONDS \
             | serve ADDRESS:PORT [FILE]",
        )),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a console, the exit code remains.
            let _unread = writeln!(io::stdout(), "guest-load failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn time(seconds: &str) -> io::Result<Duration> {
    seconds.parse().map(Duration::from_secs).map_err(io::Error::other)
}

#[expect(clippy::cast_precision_loss, reason = "no count reaches 2^52")]
fn report(name: &str, count: u64, elapsed: Duration) -> io::Result<()> {
    writeln!(io::stdout(), "guest-load {name} {:.0}", count as f64 / elapsed.as_secs_f64())
}

/// Writes all blocks of the disk once. Then measures each kind of access and of traffic in turns, as often as `rounds` says.
fn turns(device: &str, server: &str, rounds: usize) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(DIRECT).open(device)?;
    let size = file.seek(SeekFrom::End(0))?;
    let all = ACCESSES[0].block as u64;
    let (block, mut at) = (Block::new(ACCESSES[0].block), 0);
    while at + all <= size {
        file.write_all_at(block.bytes(), at)?;
        at += all;
    }
    writeln!(io::stdout(), "guest-load ready")?;
    for access in ACCESSES {
        in_turns(access.name, server, rounds, || {
            let began = Instant::now();
            let done = accesses(&file, size, access, began + SLICE)?;
            let count = if access.random { done } else { done * access.block as u64 };
            Ok((count, began.elapsed()))
        })?;
    }
    for (name, traffic) in TRAFFIC {
        in_turns(name, server, rounds, || traffic(server, SLICE))?;
    }
    Ok(())
}

/// Measures in turns, which the server gives.
fn in_turns(
    name: &str,
    server: &str,
    rounds: usize,
    measure: impl Fn() -> io::Result<Measured>,
) -> io::Result<()> {
    for _ in 0..rounds {
        let mut turn = connect(server, TURN)?;
        turn.read_exact(&mut [0])?;
        let (count, elapsed) = measure()?;
        drop(turn);
        report(name, count, elapsed)?;
    }
    Ok(())
}

/// Writes small blocks, one after the other, and reports the longest time of one at short intervals, until it is ended.
fn pauses(device: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).custom_flags(DIRECT).open(device)?;
    let longest = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&longest);
    // The console is slow: the writes do not wait for it.
    let writer = std::thread::spawn(move || -> io::Result<()> {
        let (block, mut random) = (Block::new(ALIGNMENT), Random(1));
        loop {
            let at = random.next() % PAUSE_BLOCKS * ALIGNMENT as u64;
            let began = Instant::now();
            file.write_all_at(block.bytes(), at)?;
            let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            seen.fetch_max(took, Ordering::Relaxed);
        }
    });
    while !writer.is_finished() {
        std::thread::sleep(PAUSE_REPORT);
        writeln!(io::stdout(), "guest-load pause {}", longest.swap(0, Ordering::Relaxed))?;
    }
    writer.join().unwrap_or_else(|_| Err(io::Error::other("the writer panicked")))
}

/// Returns the number of accesses before `end`.
fn accesses(file: &File, size: u64, access: &Access, end: Instant) -> io::Result<u64> {
    let next = AtomicU64::new(0);
    let blocks = size / access.block as u64;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=access.depth)
            .map(|seed| {
                let next = &next;
                scope.spawn(move || -> io::Result<u64> {
                    let (mut block, mut random, mut done) = (Block::new(access.block), Random(seed), 0);
                    while Instant::now() < end {
                        let number =
                            if access.random { random.next() } else { next.fetch_add(1, Ordering::Relaxed) };
                        let at = number % blocks * access.block as u64;
                        if access.writes {
                            file.write_all_at(block.bytes(), at)?;
                        } else {
                            file.read_exact_at(block.bytes_mut(), at)?;
                        }
                        done += 1;
                    }
                    Ok(done)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("it does not panic")).sum()
    })
}

/// Measures each kind of traffic.
fn network(server: &str, time: Duration) -> io::Result<()> {
    for (name, traffic) in TRAFFIC {
        let (count, elapsed) = traffic(server, time)?;
        report(name, count, elapsed)?;
    }
    Ok(())
}

/// Opens a connection of a kind. Every connection is opened by the guest.
fn connect(server: &str, kind: u8) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    stream.write_all(&[kind])?;
    Ok(stream)
}

fn sends(server: &str, time: Duration) -> io::Result<Measured> {
    let buffer = vec![b'x'; BUFFER];
    let mut stream = connect(server, SINK)?;
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < time {
        count += stream.write(&buffer)? as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // The server answers when it has read all.
    stream.read_exact(&mut [0])?;
    Ok((count, began.elapsed()))
}

fn receives(server: &str, time: Duration) -> io::Result<Measured> {
    let mut buffer = vec![b'x'; BUFFER];
    let mut stream = connect(server, SOURCE)?;
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < time {
        count += stream.read(&mut buffer)? as u64;
    }
    Ok((count, began.elapsed()))
}

fn round_trips(server: &str, time: Duration) -> io::Result<Measured> {
    let mut stream = connect(server, ECHO)?;
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < time {
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])?;
        count += 1;
    }
    Ok((count, began.elapsed()))
}

fn packets(server: &str, time: Duration) -> io::Result<Measured> {
    let arrived = || -> io::Result<u64> {
        let mut total = [0; 8];
        connect(server, PACKETS)?.read_exact(&mut total)?;
        Ok(u64::from_be_bytes(total))
    };
    let packet = [b'x'; PACKET];
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(server)?;
    let (before, began) = (arrived()?, Instant::now());
    while began.elapsed() < time {
        // A full queue of the device is no failure: the packet counts as lost.
        let _lost = socket.send(&packet);
    }
    let elapsed = began.elapsed();
    // The last packets are on their way.
    std::thread::sleep(Duration::from_millis(200));
    Ok((arrived()? - before, elapsed))
}

/// Serves until it is ended. `turns` is the file that servers lock which give turns.
fn serve(address: &str, turns: Option<&str>) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let socket = UdpSocket::bind(address)?;
    let packets = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&packets);
    std::thread::spawn(move || {
        while socket.recv(&mut [0; PACKET]).is_ok() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    for stream in listener.incoming() {
        let (stream, packets, turns) = (stream?, Arc::clone(&packets), turns.map(str::to_owned));
        // A client that goes away ends its connection only.
        std::thread::spawn(move || answer(stream, &packets, turns));
    }
    Ok(())
}

fn answer(mut stream: TcpStream, packets: &AtomicU64, turns: Option<String>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    let mut buffer = vec![b'x'; BUFFER];
    match kind[0] {
        SINK => {
            while stream.read(&mut buffer)? > 0 {}
            stream.write_all(b"x")
        }
        SOURCE => loop {
            stream.write_all(&buffer)?;
        },
        ECHO => loop {
            stream.read_exact(&mut kind)?;
            stream.write_all(&kind)?;
        },
        TURN => {
            let file = File::open(turns.ok_or(io::ErrorKind::Unsupported)?)?;
            file.lock()?;
            stream.write_all(b"x")?;
            // The turn lasts until the client closes the connection.
            stream.read(&mut kind).map(drop)
        }
        _ => stream.write_all(&packets.load(Ordering::Relaxed).to_be_bytes()),
    }
}

/// Aligned bytes without long runs of zeros, which disks may leave out.
struct Block {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Block {
    fn new(length: usize) -> Self {
        let mut random = Random(length as u64);
        let mut bytes = vec![0; length + ALIGNMENT];
        for part in bytes.chunks_exact_mut(8) {
            part.copy_from_slice(&random.next().to_ne_bytes());
        }
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start, length }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
