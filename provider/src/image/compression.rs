//! A warning about a source that is named like a compressed file, and is not declared as one.

use tfplugin6::{AttributePath, Diagnostic};

use crate::change::PlannedChange;

/// The ends of the names of compressed files, and their compressions.
const ENDINGS: [(&str, &str); 4] = [(".gz", "gzip"), (".xz", "xz"), (".zst", "zstd"), (".bz2", "bzip2")];

/// Warns when an image is created: its host reads the bytes as the declaration says, and refuses most of such files only after the
/// download. A server may decompress a file of this name itself, so that this is no error.
pub(super) fn warn(change: &mut PlannedChange<'_>) {
    if !change.is_create() || change.is_applied || !change.planned.get("compression").is_null() {
        return;
    }
    let source = change.planned.get("source");
    let named = ["url", "file"].into_iter().find_map(|name| Some((name, source.get(name).as_str()?)));
    let Some((attribute, place)) = named.filter(|(_, place)| !place.starts_with("oci://")) else { return };
    let path = match attribute {
        "url" => place.split(['?', '#']).next().unwrap_or_default(),
        _ => place,
    };
    let path = path.to_ascii_lowercase();
    let Some((ending, compression)) = ENDINGS.iter().find(|(ending, _)| path.ends_with(ending)) else {
        return;
    };
    let at = AttributePath::root("source").attribute(attribute);
    let detail = format!(
        "{at}: its name ends in {ending}, and the compression is never guessed. If the file is compressed, set compression = \"{compression}\"."
    );
    change.diagnostics.push(Diagnostic::warning("The compression is not declared", detail).at(at));
}
