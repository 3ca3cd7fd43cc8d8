//! A picture of a screen, read by the protocol of VNC: RFB 3.8, RFC 6143.

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const VERSION: &[u8; 12] = b"RFB 003.008\n";
/// The security type of a server without a password.
const NO_PASSWORD: u8 = 1;
/// The encodings that this client reads: pixels as they are, and a new size of the screen.
const RAW: i32 = 0;
const DESKTOP_SIZE: i32 = -223;
/// The bytes of a pixel: red, green, blue and one without a meaning.
const PIXEL: usize = 4;
/// The largest screen that is read, in pixels: 128 MiB.
const MOST_PIXELS: usize = 32 << 20;
/// The longest text that is read.
const MOST_TEXT: u32 = 1 << 20;

/// A picture of a screen.
#[derive(Debug)]
pub(super) struct Picture {
    pub(super) width: usize,
    pub(super) height: usize,
    /// In rows from the top, [`PIXEL`] bytes each.
    pixels: Vec<u8>,
}

impl Picture {
    /// Reads one picture of the whole screen from a VNC server without a password.
    ///
    /// *Errors:* the connection breaks; the server requires a password, or does not follow the protocol.
    pub(super) async fn take(mut server: impl AsyncRead + AsyncWrite + Unpin) -> anyhow::Result<Self> {
        let server = &mut server;
        let mut version = [0; VERSION.len()];
        server.read_exact(&mut version).await?;
        ensure!(version.starts_with(b"RFB 003."), "it is no VNC server");
        server.write_all(VERSION).await?;
        server.flush().await?;
        authenticate(server).await?;
        // Others stay connected.
        server.write_all(&[1]).await?;
        server.flush().await?;
        let (width, height) = (server.read_u16().await?, server.read_u16().await?);
        skip(server, 16).await?;
        let name = server.read_u32().await?;
        skip(server, name).await?;
        let mut picture = Self::blank(width, height)?;
        server.write_all(&set_pixel_format()).await?;
        server.write_all(&set_encodings(&[RAW, DESKTOP_SIZE])).await?;
        picture.request(server).await?;
        let mut left = picture.pixels.len();
        while left > 0 {
            match server.read_u8().await? {
                0 => {
                    skip(server, 1).await?;
                    for _ in 0..server.read_u16().await? {
                        match picture.read_rectangle(server).await? {
                            Some(bytes) => left = left.saturating_sub(bytes),
                            None => {
                                picture.request(server).await?;
                                left = picture.pixels.len();
                            }
                        }
                    }
                }
                // The clipboard.
                3 => {
                    skip(server, 3).await?;
                    let length = server.read_u32().await?;
                    skip(server, length).await?;
                }
                // The bell.
                2 => {}
                other => bail!("unknown message {other}"),
            }
        }
        Ok(picture)
    }

    fn blank(width: u16, height: u16) -> anyhow::Result<Self> {
        let (width, height) = (usize::from(width), usize::from(height));
        ensure!((1..=MOST_PIXELS).contains(&(width * height)), "a screen of {width} × {height} pixels");
        Ok(Self { width, height, pixels: vec![0; width * height * PIXEL] })
    }

    /// Requests all of the screen.
    async fn request(&self, server: &mut (impl AsyncWrite + Unpin)) -> anyhow::Result<()> {
        let mut request = vec![3, 0, 0, 0, 0, 0];
        for size in [self.width, self.height] {
            request.extend(u16::try_from(size).context("the size")?.to_be_bytes());
        }
        server.write_all(&request).await?;
        Ok(server.flush().await?)
    }

    /// Reads a part of the screen, and returns its size in bytes. None: the screen has another size now.
    async fn read_rectangle(
        &mut self,
        server: &mut (impl AsyncRead + Unpin),
    ) -> anyhow::Result<Option<usize>> {
        let [x, y, width, height] = [
            server.read_u16().await?,
            server.read_u16().await?,
            server.read_u16().await?,
            server.read_u16().await?,
        ];
        match server.read_i32().await? {
            DESKTOP_SIZE => {
                *self = Self::blank(width, height)?;
                Ok(None)
            }
            RAW => {
                let [x, y, width, height] = [x, y, width, height].map(usize::from);
                let is_inside = x + width <= self.width && y + height <= self.height;
                ensure!(is_inside, "a part of {width} × {height} pixels at {x}, {y} is not on the screen");
                for row in y..y + height {
                    let start = (row * self.width + x) * PIXEL;
                    server.read_exact(&mut self.pixels[start..start + width * PIXEL]).await?;
                }
                Ok(Some(width * height * PIXEL))
            }
            other => bail!("unknown encoding {other}"),
        }
    }

    /// Encodes it as PNG.
    pub(super) fn to_png(&self) -> anyhow::Result<Vec<u8>> {
        let mut file = Vec::new();
        let (width, height) = (u32::try_from(self.width)?, u32::try_from(self.height)?);
        let mut encoder = png::Encoder::new(&mut file, width, height);
        encoder.set_color(png::ColorType::Rgb);
        let rgb: Vec<u8> =
            self.pixels.chunks_exact(PIXEL).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&rgb)?;
        writer.finish()?;
        Ok(file)
    }
}

async fn authenticate(server: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> anyhow::Result<()> {
    let count = server.read_u8().await?;
    if count == 0 {
        bail!("the VNC server refused: {}", reason(server).await?);
    }
    let mut types = vec![0; usize::from(count)];
    server.read_exact(&mut types).await?;
    ensure!(types.contains(&NO_PASSWORD), "the VNC server requires a password");
    server.write_all(&[NO_PASSWORD]).await?;
    server.flush().await?;
    if server.read_u32().await? != 0 {
        bail!("the VNC server refused: {}", reason(server).await?);
    }
    Ok(())
}

async fn reason(server: &mut (impl AsyncRead + Unpin)) -> anyhow::Result<String> {
    let length = server.read_u32().await?.min(MOST_TEXT);
    let mut text = vec![0; usize::try_from(length)?];
    server.read_exact(&mut text).await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Reads this many bytes, and forgets them.
async fn skip(server: &mut (impl AsyncRead + Unpin), bytes: u32) -> anyhow::Result<()> {
    ensure!(bytes <= MOST_TEXT, "a text of {bytes} bytes");
    let mut left = server.take(bytes.into());
    let skipped = tokio::io::copy(&mut left, &mut tokio::io::sink()).await?;
    ensure!(skipped == u64::from(bytes), "the connection broke");
    Ok(())
}

/// 32 bits for each pixel, of which the first byte is red, the second green, the third blue.
fn set_pixel_format() -> [u8; 20] {
    let mut message = [0; 20];
    let (bits, depth, big_endian, true_colour) = (32, 24, 0, 1);
    message[4..8].copy_from_slice(&[bits, depth, big_endian, true_colour]);
    // The largest value of each colour, in 16 bits, and how far it is shifted.
    message[8..17].copy_from_slice(&[0, 255, 0, 255, 0, 255, 0, 8, 16]);
    message
}

fn set_encodings(encodings: &[i32]) -> Vec<u8> {
    let count = u8::try_from(encodings.len()).unwrap_or(u8::MAX);
    let mut message = vec![2, 0, 0, count];
    message.extend(encodings.iter().flat_map(|encoding| encoding.to_be_bytes()));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a server up to its first message, for a screen of this size.
    fn greeting(width: u16, height: u16) -> Vec<u8> {
        let mut sent = VERSION.to_vec();
        sent.extend([1, NO_PASSWORD, 0, 0, 0, 0]);
        sent.extend([width.to_be_bytes(), height.to_be_bytes()].concat());
        sent.extend([0; 16]);
        sent.extend([0, 0, 0, 4]);
        sent.extend(b"QEMU");
        sent
    }

    fn rectangle([x, y, width, height]: [u16; 4], encoding: i32, pixels: &[u8]) -> Vec<u8> {
        let mut sent: Vec<u8> = [x, y, width, height].iter().flat_map(|n| n.to_be_bytes()).collect();
        sent.extend(encoding.to_be_bytes());
        sent.extend(pixels);
        sent
    }

    fn update(rectangles: &[Vec<u8>]) -> Vec<u8> {
        let count = u8::try_from(rectangles.len()).expect("few");
        [&[0, 0, 0, count][..], &rectangles.concat()].concat()
    }

    /// Reads a picture from a server that sends these bytes, and ends then.
    async fn picture_of(sent: &[u8]) -> anyhow::Result<Picture> {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        far.write_all(sent).await.expect("room");
        let drained = tokio::spawn(async move {
            far.shutdown().await.expect("open");
            tokio::io::copy(&mut far, &mut tokio::io::sink()).await
        });
        let taken = Picture::take(near).await;
        drained.await.expect("no panic").expect("read");
        taken
    }

    #[tokio::test]
    async fn a_screen_is_put_together_from_its_parts() {
        let (red, blue) = ([255, 0, 0, 9], [0, 0, 255, 9]);
        let bell_and_clipboard = [&[2, 3, 0, 0, 0, 0, 0, 0, 2][..], b"hi"].concat();
        let first = rectangle([0, 0, 2, 1], RAW, &[red, blue].concat());
        let second = rectangle([0, 1, 2, 1], RAW, &[blue, red].concat());
        let sent = [greeting(2, 2), update(&[first]), bell_and_clipboard, update(&[second])].concat();
        let picture = picture_of(&sent).await.expect("taken");
        assert_eq!((picture.width, picture.height), (2, 2));
        let mut reader = png::Decoder::new(std::io::Cursor::new(picture.to_png().expect("encoded")))
            .read_info()
            .expect("PNG");
        let mut decoded = vec![0; 12];
        reader.next_frame(&mut decoded).expect("a picture");
        assert_eq!(decoded, [255, 0, 0, 0, 0, 255, 0, 0, 255, 255, 0, 0]);
    }

    #[tokio::test]
    async fn a_screen_that_changes_its_size_is_read_again() {
        let part = rectangle([0, 0, 1, 1], RAW, &[1, 2, 3, 0]);
        let sent =
            [greeting(640, 480), update(&[rectangle([0, 0, 1, 1], DESKTOP_SIZE, &[])]), update(&[part])]
                .concat();
        let picture = picture_of(&sent).await.expect("taken");
        assert_eq!((picture.width, picture.pixels), (1, vec![1, 2, 3, 0]));
    }

    #[tokio::test]
    async fn a_server_that_does_not_follow_the_protocol_is_an_error() {
        let refused = [&VERSION[..], &[0, 0, 0, 0, 4], b"full"].concat();
        let password = [&VERSION[..], &[1, 2]].concat();
        let long_name = [&greeting(2, 2)[..38], &[255; 4]].concat();
        for (sent, expected) in [
            (b"HTTP/1.1 400".to_vec(), "no VNC server"),
            (refused, "refused: full"),
            (password, "requires a password"),
            (long_name, "a text of"),
            (greeting(0, 5), "a screen of 0 × 5"),
            (greeting(u16::MAX, u16::MAX), "a screen of 65535"),
            (
                [greeting(2, 2), update(&[rectangle([1, 0, 2, 1], RAW, &[0; 8])])].concat(),
                "not on the screen",
            ),
            ([greeting(2, 2), update(&[rectangle([0, 0, 1, 1], 5, &[])])].concat(), "unknown encoding 5"),
            ([greeting(2, 2), vec![9]].concat(), "unknown message 9"),
            (greeting(2, 2), "end of file"),
        ] {
            let error = picture_of(&sent).await.expect_err(expected);
            assert!(format!("{error:#}").contains(expected), "{error:#} instead of {expected}");
        }
    }
}
