//! Bodies at and above the size limits, many at once.

use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::{MAPS, STACK, Site};

/// The size limits of a body and of a ConfigMap.
const BODY: usize = 3 << 20;
const MAP: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

/// A name, a body of a given size, and the correct status code.
type Body = (&'static str, fn(usize) -> String, u16);

const BODIES: [Body; 7] = [
    ("as large as a ConfigMap may be", |number| map(number, MAP - 4096), 201),
    ("larger than a ConfigMap", |number| map(number, MAP + 4096), 422),
    ("as large as a body may be", |number| map(number, BODY - 4096), 422),
    ("larger than a body", |number| map(number, BODY + 4096), 413),
    ("as many values as fit", |_| format!("[{}0]", "0,".repeat(BODY / 2 - 8)), 413),
    ("as many objects as fit", |_| format!("[{}0]", "{},".repeat(BODY / 3 - 8)), 413),
    ("as deep as it gets", |_| "[".repeat(BODY - 8), 413),
];
/// The status codes with which an overloaded server may respond.
const SHED: [u16; 2] = [408, 429];

fn map(number: usize, size: usize) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"big-{number}"}},"data":{{"x":"{}"}}}}"#,
        "x".repeat(size)
    )
}

/// Lets this many clients send one body of each kind at the same time. Returns the number of bytes sent.
///
/// # Errors
/// An incorrect response.
pub fn flood(site: &Site, clients: usize) -> Result<u64> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 0..clients {
            let thread = std::thread::Builder::new().stack_size(STACK);
            threads.push(thread.spawn_scoped(scope, move || {
                let mut sent = 0;
                for (what, body, right) in BODIES {
                    let body = body(number);
                    sent += body.len() as u64;
                    match answer(site, &body).with_context(|| what.to_owned())? {
                        Some(code) if code != right && !SHED.contains(&code) => {
                            bail!("{what}: {code}")
                        }
                        _ => {}
                    }
                }
                Ok(sent)
            })?);
        }
        let all = threads.into_iter().map(|one| one.join().map_err(|_| anyhow!("a client panicked"))?);
        Ok(all.collect::<Result<Vec<u64>>>()?.into_iter().sum())
    })
}

/// The status code of the response; `None` when the server has closed the connection instead, because it refused the rest.
fn answer(site: &Site, body: &str) -> Result<Option<u16>> {
    let access = site.access();
    let mut stream = access.stream(PATIENCE)?;
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        access.address,
        access.token(),
        body.len()
    );
    let out = stream.get_mut();
    let sent = out
        .write_all(head.as_bytes())
        .and_then(|()| out.write_all(body.as_bytes()))
        .and_then(|()| out.flush());
    let mut line = String::new();
    match stream.read_line(&mut line) {
        Ok(count) if count > 0 => {
            let code = line.split(' ').nth(1).and_then(|word| word.parse().ok());
            Ok(Some(code.with_context(|| format!("no status line: {line:?}"))?))
        }
        _ if sent.is_err() || body.len() > BODY => Ok(None),
        other => Err(anyhow!("no answer: {other:?}")),
    }
}
