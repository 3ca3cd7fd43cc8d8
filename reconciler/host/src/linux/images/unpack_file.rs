//! Takes an image out of compressed files and archives: from one file to another, with holes where the image has zeros.
//! Blocking.
//!
//! Runs in a process of its own (`berth unpack-image`), because a decoder that fails on hostile data must not end the
//! agent.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path};

use berth_qemu::qcow2::MAX_VIRTUAL_SIZE;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::ova;
use crate::Compression;

/// Zeros are looked for in blocks of this size.
const BLOCK: usize = 64 << 10;
/// The maximum dictionary of xz and zstd: that of `xz -9` and of `zstd --ultra -22` has 64 and 128 MiB.
const MAX_WINDOW: u64 = 256 << 20;
/// Up to this size the ratio does not matter.
const SMALL: u64 = 100 << 30;
/// The maximum number of bytes that one compressed byte may become: a larger disk that is almost empty is no image that
/// somebody has made to be downloaded.
const MAX_RATIO: u64 = 2000;

/// The beginning of the error about a file that becomes larger than any image that somebody has made.
pub(super) const BOMB: &str = "it becomes too large for its compressed size";

/// The archive that an image is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Archive {
    /// The image is the only file below `disk/`.
    ContainerDisk,
    /// The image is the disk with this number, from 1; 0 is the only one.
    Ova(u8),
}

/// Unpacks the input to the output, which exists and is empty.
///
/// *Errors*: [`io::ErrorKind::InvalidData`] when the input is not encoded like this or is incomplete;
/// [`io::ErrorKind::FileTooLarge`] when the output exceeds every reasonable size.
pub fn unpack(
    compression: Option<Compression>,
    archive: Option<Archive>,
    input: &Path,
    output: &Path,
) -> io::Result<()> {
    let mut writer = SparseWriter::create(output, File::open(input)?.metadata()?.len())?;
    unpack_to(compression, archive, input, &mut writer)?;
    writer.finish()
}

fn unpack_to(
    compression: Option<Compression>,
    archive: Option<Archive>,
    input: &Path,
    writer: &mut SparseWriter,
) -> io::Result<()> {
    let reader = || decoder(compression, BufReader::with_capacity(BLOCK, File::open(input)?));
    match archive {
        Some(Archive::ContainerDisk) => container_disk(reader()?, writer),
        Some(Archive::Ova(number)) => {
            let chosen = ova::choose(reader()?, number)?;
            ova::extract(reader()?, &chosen, |disk| copy(disk, writer))
        }
        None => copy(reader()?, writer),
    }
}

fn decoder(compression: Option<Compression>, reader: BufReader<File>) -> io::Result<Box<dyn Read>> {
    Ok(match compression {
        None => Box::new(reader),
        Some(Compression::Gzip) => Box::new(MultiGzDecoder::new(reader)),
        Some(Compression::Bzip2) => Box::new(bzip2::bufread::MultiBzDecoder::new(reader)),
        Some(Compression::Xz) => {
            let limit = u32::try_from(MAX_WINDOW >> 10).unwrap_or(u32::MAX);
            Box::new(XzReader::new_mem_limit(reader, true, limit))
        }
        Some(Compression::Zstd) => Box::new(ZstdFrames::start(reader)?),
    })
}

/// Copies the only file below `disk/` of a tar archive.
fn container_disk(reader: Box<dyn Read>, writer: &mut SparseWriter) -> io::Result<()> {
    let mut archive = tar::Archive::new(reader);
    let mut found = false;
    for entry in archive.entries()? {
        let entry = entry?;
        let path = entry.path()?;
        let mut parts =
            path.components().filter(|part| !matches!(part, Component::CurDir | Component::RootDir));
        if !entry.header().entry_type().is_file() || parts.next() != Some(Component::Normal("disk".as_ref()))
        {
            continue;
        }
        if found {
            return Err(invalid("the archive has more than one file below /disk"));
        }
        found = true;
        copy(entry, writer)?;
    }
    match found {
        true => Ok(()),
        false => Err(invalid("the archive has no file below /disk")),
    }
}

fn copy(mut from: impl Read, to: &mut SparseWriter) -> io::Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        let mut filled = 0;
        while filled < BLOCK {
            match from.read(&mut block[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        to.write_all(&block[..filled])?;
        if filled < BLOCK {
            return Ok(());
        }
    }
}

/// A file of frames, some of which may be skippable.
struct ZstdFrames {
    reader: BufReader<File>,
    frame: FrameDecoder,
}

impl ZstdFrames {
    fn start(reader: BufReader<File>) -> io::Result<Self> {
        let mut frame = FrameDecoder::new();
        frame.set_max_window_size(MAX_WINDOW);
        let mut frames = Self { reader, frame };
        match frames.next()? {
            true => Ok(frames),
            false => Err(invalid("the file is empty")),
        }
    }

    /// Begins the next frame with data. Returns false at the end of the file.
    fn next(&mut self) -> io::Result<bool> {
        while !self.reader.fill_buf()?.is_empty() {
            match self.frame.init(&mut self.reader) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(&mut (&mut self.reader).take(u64::from(length)), &mut io::sink())?;
                }
                Err(error) => return Err(invalid(&error.to_string())),
            }
        }
        Ok(false)
    }

    fn check_sum(&self) -> io::Result<()> {
        match (self.frame.get_checksum_from_data(), self.frame.get_calculated_checksum()) {
            (Some(declared), Some(found)) if declared != found => {
                Err(invalid("a frame has a wrong checksum"))
            }
            _ => Ok(()),
        }
    }
}

impl Read for ZstdFrames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.frame.can_collect() == 0 {
            if self.frame.is_finished() {
                self.check_sum()?;
                if !self.next()? {
                    return Ok(0);
                }
            }
            let strategy = BlockDecodingStrategy::UptoBlocks(1);
            let decoded = self.frame.decode_blocks(&mut self.reader, strategy);
            decoded.map_err(|error| invalid(&error.to_string()))?;
        }
        self.frame.read(buffer)
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Writes blocks, and leaves holes where they have only zeros.
struct SparseWriter {
    file: File,
    at: u64,
    max: u64,
}

impl SparseWriter {
    fn create(path: &Path, compressed: u64) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).truncate(true).open(path)?;
        let max = compressed.saturating_mul(MAX_RATIO).clamp(SMALL, MAX_VIRTUAL_SIZE);
        Ok(Self { file, at: 0, max })
    }

    fn finish(self) -> io::Result<()> {
        self.file.set_len(self.at)?;
        self.file.sync_all()
    }
}

impl Write for SparseWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.at + bytes.len() as u64 > self.max {
            let why = format!("{BOMB}: more than {} bytes", self.max);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        if bytes.iter().any(|byte| *byte != 0) {
            self.file.write_all_at(bytes, self.at)?;
        }
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    use super::*;

    const ALL: [(Compression, &str); 4] = [
        (Compression::Gzip, "gzip"),
        (Compression::Xz, "xz"),
        (Compression::Zstd, "zstd"),
        (Compression::Bzip2, "bzip2"),
    ];

    /// Compresses with the program that people use; `None` if it is not installed.
    fn compressed(program: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().expect("temporary folder");
        let plain = folder.path().join("plain");
        fs::write(&plain, bytes).expect("written");
        let output = Command::new(program).arg("-c").arg(&plain).stderr(Stdio::null()).output().ok()?;
        output.status.success().then_some(output.stdout)
    }

    fn run(compression: Compression, bytes: &[u8]) -> io::Result<(Vec<u8>, u64)> {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (input, output) = (folder.path().join("in"), folder.path().join("out"));
        fs::write(&input, bytes).expect("written");
        fs::write(&output, b"").expect("created");
        unpack(Some(compression), None, &input, &output)?;
        let blocks = fs::metadata(&output).expect("there").blocks();
        Ok((fs::read(&output).expect("read"), blocks * 512))
    }

    /// A disk with a little data at both ends and 8 MiB of zeros between.
    fn disk() -> Vec<u8> {
        let noise = |n: u32| n.wrapping_mul(2_654_435_761).to_be_bytes();
        let data: Vec<u8> = (0..50_000).flat_map(noise).collect();
        [data.clone(), vec![0; 8 << 20], data].concat()
    }

    #[test]
    fn what_the_usual_programs_have_compressed_comes_back_with_its_holes() {
        let disk = disk();
        let mut tried = 0;
        for (compression, program) in ALL {
            let Some(packed) = compressed(program, &disk) else { continue };
            let (unpacked, used) = run(compression, &packed).expect(program);
            assert!(unpacked == disk, "{program}");
            assert!(used < 1 << 20, "{program}: {used} bytes used");
            // Several members after each other are one file, as with cat.
            let twice = [packed.clone(), packed.clone()].concat();
            assert_eq!(run(compression, &twice).expect(program).0.len(), 2 * disk.len(), "{program}");
            tried += 1;
        }
        assert!(tried >= 2, "gzip and xz at least are installed");
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_refused() {
        let disk = disk();
        for (compression, program) in ALL {
            let Some(packed) = compressed(program, &disk) else { continue };
            let cut = &packed[..packed.len() / 2];
            assert!(run(compression, cut).is_err(), "{program}: half of it");
            assert!(run(compression, &disk).is_err(), "{program}: not compressed");
            assert!(run(compression, b"").is_err(), "{program}: nothing");
        }
    }

    #[test]
    fn a_bomb_ends_at_the_limit() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let output = folder.path().join("out");
        fs::write(&output, b"").expect("created");
        let mut writer = SparseWriter::create(&output, 10).expect("a writer");
        assert_eq!(writer.max, SMALL);
        writer.at = SMALL - 1;
        let error = writer.write(&[0, 0]).expect_err("one too many");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(error.to_string().starts_with(BOMB), "{error}");
    }

    /// Unpacks it with another limit than that of images. Returns the bytes that were written, and the error.
    fn with_limit(
        (compression, archive): (Compression, Option<Archive>),
        packed: &[u8],
        max: u64,
    ) -> (u64, io::Result<()>) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (input, output) = (folder.path().join("in"), folder.path().join("out"));
        fs::write(&input, packed).expect("written");
        fs::write(&output, b"").expect("created");
        let mut writer = SparseWriter::create(&output, packed.len() as u64).expect("a writer");
        writer.max = max;
        let done = unpack_to(Some(compression), archive, &input, &mut writer);
        (fs::metadata(&output).expect("there").len(), done)
    }

    #[test]
    fn a_bomb_of_each_program_ends_at_the_limit_and_not_later() {
        const LIMIT: u64 = 1 << 20;
        let mut tried = 0;
        for (compression, program) in ALL {
            for byte in [0, 0xff] {
                let Some(bomb) = compressed(program, &vec![byte; 4 << 20]) else { continue };
                assert!(bomb.len() < 64 << 10, "{program}: a bomb of {} bytes", bomb.len());
                // Members after each other count together.
                for packed in [bomb.clone(), [bomb.clone(), bomb.clone()].concat()] {
                    let (written, done) = with_limit((compression, None), &packed, LIMIT);
                    let error = done.expect_err(program);
                    assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{program}: {error}");
                    assert!(error.to_string().starts_with(BOMB), "{program}: {error}");
                    assert!(written <= LIMIT, "{program}: {written} bytes written");
                }
                let (_, done) = with_limit((compression, None), &bomb, 4 << 20);
                assert!(done.is_ok(), "{program}: exactly as much as is allowed: {done:?}");
                tried += 1;
            }
        }
        assert!(tried >= 4, "gzip and xz at least are installed");
    }

    #[test]
    fn a_bomb_in_the_archive_of_a_container_disk_ends_at_the_limit() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let script = "mkdir disk && head -c 16777216 /dev/zero > disk/a && tar -czf in disk";
        let status = Command::new("sh").arg("-ec").arg(script).current_dir(folder.path()).status();
        assert!(status.expect("a shell").success());
        let bomb = fs::read(folder.path().join("in")).expect("made");
        let (_, done) = with_limit((Compression::Gzip, Some(Archive::ContainerDisk)), &bomb, 1 << 20);
        let error = done.expect_err("it is a bomb");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{error}");
    }

    #[test]
    fn a_bomb_in_a_compressed_ova_ends_at_the_limit() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let script = "head -c 16777216 /dev/zero > a.vmdk && tar -czf in a.vmdk";
        let status = Command::new("sh").arg("-ec").arg(script).current_dir(folder.path()).status();
        assert!(status.expect("a shell").success());
        let bomb = fs::read(folder.path().join("in")).expect("made");
        let (_, done) = with_limit((Compression::Gzip, Some(Archive::Ova(0))), &bomb, 1 << 20);
        let error = done.expect_err("it is a bomb");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{error}");
    }

    fn from_archive(make: &str) -> io::Result<Vec<u8>> {
        let folder = tempfile::tempdir().expect("temporary folder");
        let script = format!("mkdir disk etc && {make} && tar -czf in disk etc");
        let status = Command::new("sh").arg("-ec").arg(script).current_dir(folder.path()).status();
        assert!(status.expect("a shell").success(), "{make}");
        let output = folder.path().join("out");
        fs::write(&output, b"").expect("created");
        unpack(Some(Compression::Gzip), Some(Archive::ContainerDisk), &folder.path().join("in"), &output)?;
        Ok(fs::read(&output).expect("read"))
    }

    #[test]
    fn the_only_file_below_disk_is_the_image_of_a_container_disk() {
        assert_eq!(from_archive("echo image > disk/a.qcow2; echo x > etc/y").expect("one"), b"image\n");
        for (make, why) in [
            ("echo x > etc/y", "no file below /disk"),
            ("echo a > disk/a; echo b > disk/b", "more than one"),
            ("ln -s /etc/passwd disk/a", "no file below /disk"),
        ] {
            let error = from_archive(make).expect_err(make).to_string();
            assert!(error.contains(why), "{make}: {error}");
        }
    }
}
