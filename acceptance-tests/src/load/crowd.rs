//! Clients that take what they can and give nothing: they hold connections, turns and answers.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::MAPS;
use crate::access::{Access, Stream};

const PATIENCE: Duration = Duration::from_secs(60);
/// Between two bytes of those who send slowly.
const PAUSE: Duration = Duration::from_millis(500);

/// They stay until it is dropped.
#[derive(Debug)]
pub struct Crowd {
    /// Say nothing more, or have said that they will not.
    silent: Vec<Stream>,
    over: Arc<AtomicBool>,
    slow: Option<JoinHandle<()>>,
    count: usize,
}

impl Crowd {
    pub(super) fn gather(access: &Access, each: usize) -> Result<Self> {
        let asks = |rest: &str| {
            let (host, token) = (&access.address, access.token());
            format!(
                "{rest} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            )
        };
        let open = |said: &str| -> Result<Stream> {
            let mut stream = access.stream(PATIENCE)?;
            stream.get_mut().write_all(said.as_bytes())?;
            stream.get_mut().flush()?;
            Ok(stream)
        };
        let (mut silent, mut slow) = (Vec::new(), Vec::new());
        for _ in 0..each {
            // A head without an end.
            slow.push(open(&format!("{}X-Slow: ", asks("GET /api")))?);
            // Bodies that come a byte at a time, small and large; each is let in, and so holds what a request may hold.
            slow.push(open(&format!("{}Content-Length: 1000\r\n\r\n{{", asks(&format!("POST {MAPS}"))))?);
            slow.push(open(&format!("{}Content-Length: 2000000\r\n\r\n{{", asks(&format!("POST {MAPS}"))))?);
            slow.push(open(&format!(
                "{}Transfer-Encoding: chunked\r\n\r\n",
                asks(&format!("PUT {MAPS}/n1"))
            ))?);
            // Lists that nobody reads.
            silent.push(open(&format!("{0}\r\n{0}\r\n{0}\r\n", asks(&format!("GET {MAPS}"))))?);
            // Watches that nobody reads.
            silent.push(open(&format!("{}\r\n", asks(&format!("GET {MAPS}?watch=1&resourceVersion=0"))))?);
            // Connections that say nothing.
            silent.push(open("")?);
            // And those that have asked and will not say more.
            let stream = open(&format!("{}\r\n", asks("GET /apis")))?;
            stream.get_ref().sock.shutdown(Shutdown::Write)?;
            silent.push(stream);
        }
        let count = silent.len() + slow.len();
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let slow = std::thread::Builder::new().spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                // Who is sent away is gone; the others go on.
                slow.retain_mut(|stream| {
                    let stream = stream.get_mut();
                    stream.write_all(b" ").and_then(|()| stream.flush()).is_ok()
                });
                std::thread::sleep(PAUSE);
            }
        })?;
        Ok(Self { silent, over, slow: Some(slow), count })
    }

    /// How many they were.
    pub fn count(&self) -> usize {
        self.count
    }

    /// They go.
    pub fn disperse(mut self) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        if let Some(slow) = self.slow.take() {
            slow.join().map_err(|_| anyhow!("those who send slowly panicked"))?;
        }
        self.silent.clear();
        Ok(())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
