//! Turns verified bytes into an image: decompresses them, and converts foreign formats to qcow2.
//!
//! ```text
//!  <name>.partial ──berth unpack-image──▶ <name>.unpacked ──qemu-img convert──▶ <name>.converted
//! ```
//!
//! The caller holds the lock of the partial file, so nobody else makes these files at the same time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_qemu::machine::ForeignFormat;
use berth_qemu::process::{Filter, FilterError, RunAs};

use super::super::files::{self, blocking};
use super::super::qemu_img::{CONVERT_MEMORY, QEMU_IMG, no_space, text};
use super::Result;
use super::partial::Place;
use super::signature;
use super::unpack_file::BOMB;
use crate::{Encoding, ImageSource, SystemError};

/// This very program, also after its file was replaced by another version's.
const BERTH: &str = "/proc/self/exe";
/// Both steps are bounded by the disk and one processor: 256 GiB in three hours are 24 MiB a second.
pub(super) const TIME: Duration = Duration::from_secs(3 * 3600);
/// The memory of `berth`: its allocator takes more than it uses.
const UNPACK_MEMORY: u64 = 4 << 30;

/// The programs that unpack images, and their limits.
#[derive(Clone, Copy, Debug)]
pub(in crate::linux) struct Unpacker {
    /// The user that the programs run as; `None` for the agent's own.
    pub(in crate::linux) user: Option<RunAs>,
    pub(in crate::linux) max_bytes: u64,
}

impl Unpacker {
    /// Makes the image from verified bytes. `None`: the bytes are the image.
    pub(super) async fn run(&self, source: &ImageSource, place: &Place) -> Result<Option<PathBuf>> {
        if source.encoding.is_plain() {
            return Ok(None);
        }
        let before = place.clone();
        blocking(move || before.discard_made()).await?;
        let mut made = None;
        let encoding = source.encoding;
        if encoding.compression.is_some() || encoding.archive || encoding.ova.is_some() {
            self.unpack(source, &place.file, &place.unpacked).await?;
            made = Some(&place.unpacked);
        }
        if let Some(format) = source.encoding.foreign {
            let from = made.unwrap_or(&place.file).clone();
            self.convert(source, format, &from, &place.converted).await?;
            made = Some(&place.converted);
        }
        Ok(made.cloned())
    }

    async fn unpack(&self, source: &ImageSource, from: &Path, to: &Path) -> Result<()> {
        let Encoding { compression, archive, ova, .. } = source.encoding;
        let (from_text, to_text) = (text(from), text(to));
        let number = ova.map(|number| number.to_string());
        let mut args = vec!["unpack-image", &from_text, &to_text];
        let mut what = Vec::new();
        if archive {
            args.push("--archive");
            what.push("the archive of a container disk".to_owned());
        }
        if let Some(number) = number.as_deref() {
            args.extend(["--ova", number]);
            what.push("the archive of an OVA".to_owned());
        }
        if let Some(compression) = compression {
            args.extend(["--compression", compression.name()]);
            what.push(format!("its {} compression", compression.name()));
        }
        let filter = self.filter(PathBuf::from(BERTH), &args, (from, to), UNPACK_MEMORY);
        self.carry_out(source, &filter, &what.join(" with ")).await
    }

    async fn convert(
        &self,
        source: &ImageSource,
        format: ForeignFormat,
        from: &Path,
        to: &Path,
    ) -> Result<()> {
        let (of_source, file) = (source.clone(), from.to_owned());
        blocking(move || signature::check(&of_source, format, &file)).await?;
        let program = QEMU_IMG.find()?;
        // A path with a colon would be taken for a protocol.
        let [input, output] = [from, to].map(|path| format!("file:{}", text(path)));
        let args = ["convert", "-f", format.driver(), "-O", "qcow2", &input, &output];
        let filter = self.filter(program, &args, (from, to), CONVERT_MEMORY);
        self.carry_out(source, &filter, &format!("the format {}", format.name())).await
    }

    fn filter(&self, program: PathBuf, args: &[&str], files: (&Path, &Path), memory: u64) -> Filter {
        Filter {
            program,
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            input: files.0.to_owned(),
            further: Vec::new(),
            output: Some(files.1.to_owned()),
            changed: Vec::new(),
            lock: None,
            key: None,
            user: self.user,
            max_bytes: self.max_bytes,
            memory,
            time: TIME,
        }
    }

    async fn carry_out(&self, source: &ImageSource, filter: &Filter, what: &str) -> Result<()> {
        if let Some(user) = self.user {
            let input = filter.input.clone();
            blocking(move || files::grant(&input, Some(&user))).await?;
        }
        filter.run().await.map_err(|error| explain(source, what, filter, error))?;
        let output = filter.output.clone();
        blocking(move || output.iter().try_for_each(|output| files::take_back(output))).await
    }
}

fn explain(source: &ImageSource, what: &str, filter: &Filter, error: FilterError) -> SystemError {
    let url = source.shown.clone();
    match error {
        FilterError::TooLarge { max_bytes } => {
            let detail = format!("it becomes more than the {max_bytes} bytes this host allows for an image");
            SystemError::ImageTooLarge { url, detail }
        }
        FilterError::Failed { said, .. } if said.contains(BOMB) => {
            SystemError::ImageTooLarge { url, detail: said.trim_start_matches("berth: ").to_owned() }
        }
        FilterError::Failed { said, .. } if said.contains("No space left") => {
            no_space(filter.output.as_deref().unwrap_or(&filter.input))
        }
        FilterError::Failed { said, status } => {
            let said = said.trim_start_matches("berth: ").trim_start_matches("qemu-img: ");
            let why = if said.is_empty() { &status } else { said };
            SystemError::ImageRefused { url, detail: format!("{what} cannot be undone: {why}") }
        }
        FilterError::TooSlow { after } => {
            let detail = format!("undoing {what} took longer than {} minutes", after.as_secs() / 60);
            SystemError::Download { url, detail }
        }
        FilterError::File { path, source } => SystemError::File { attempt: "use", path, source },
        FilterError::Launch(error) => SystemError::Launch(error),
        FilterError::Process(error) => SystemError::Process(error),
    }
}

#[cfg(test)]
mod tests {
    use berth_qemu::machine::Format;

    use super::*;

    /// The output of a program decides whether its image is refused, is too large, or is tried again.
    #[test]
    fn a_bomb_a_full_disk_and_broken_data_are_told_apart() {
        let source = ImageSource {
            namespace: "ns".to_owned(),
            shared: false,
            url: "http://a/b".to_owned(),
            shown: "http://a/b".to_owned(),
            digest: "ab".repeat(32),
            format: Format::Raw,
            encoding: Encoding::default(),
            secret: None,
            host: None,
            limits: crate::DownloadLimits::default(),
        };
        let folder = tempfile::tempdir().expect("temporary folder");
        let unpacker = Unpacker { user: None, max_bytes: 1 };
        let files = (folder.path().join("in"), folder.path().join("out"));
        let filter = unpacker.filter("x".into(), &[], (&files.0, &files.1), 1);
        let explained = |said: &str| {
            let error = FilterError::Failed { status: "exit status: 1".to_owned(), said: said.to_owned() };
            explain(&source, "its xz compression", &filter, error)
        };
        let bomb = explained(&format!("berth: {BOMB}: more than 7 bytes"));
        assert!(matches!(bomb, SystemError::ImageTooLarge { .. }), "{bomb:?}");
        assert_eq!(bomb.chain(), format!("http://a/b is too large: {BOMB}: more than 7 bytes"));
        let full = explained("qemu-img: error while writing at byte 0: No space left on device");
        assert!(matches!(full, SystemError::NoSpace { .. }), "{full:?}");
        let broken = explained("berth: invalid gzip header").chain();
        assert!(broken.ends_with("its xz compression cannot be undone: invalid gzip header"), "{broken}");
        assert!(explained("").chain().ends_with("exit status: 1"));
    }
}
