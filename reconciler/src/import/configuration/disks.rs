//! The blocks of disks that are not copied into the folder for images: files that berth takes over, files that Terraform uploads.

use berth_api::Quantity;
use berth_hcl::{self as hcl, Expression};

use super::{Disk, Domain, quoted, text};
use crate::import::origin::Origin;

/// The disk that this file becomes, with the steps before it.
pub(super) fn taken_over(domain: &Domain, name: &str, disk: &Disk, path: &str) -> String {
    let folder = path.rsplit_once('/').map_or("/", |(folder, _)| folder);
    let mut lines = vec![
        format!("Disk {} of {}: {path}. berth moves this file into its pool.", disk.target, domain.name),
        format!("  berth up --disk-dir {} (or berth host), on the host that has the file", quoted(folder)),
        format!("  {}", domain.origin.no_autostart(&domain.name)),
    ];
    if domain.is_running != Some(false) {
        lines.push("After the apply, the disk and its VM wait until the guest is shut down:".to_owned());
        lines.push(format!("  {}", domain.origin.shutdown(&domain.name)));
    }
    let source = Expression::Object(vec![text("file", path)]);
    let body = [text("name", name), ("source".to_owned(), source), imported_from(domain, disk)];
    let block = hcl::block("resource", &["berth_disk", &hcl::identifier(name)], &body);
    format!("\n{}{block}", hcl::comment(&lines))
}

/// The image whose file, with its compression, Terraform uploads.
pub(super) fn uploaded(
    domain: &Domain,
    name: &str,
    disk: &Disk,
    (file, compression): (&str, Option<&'static str>),
    sha256: Option<String>,
) -> String {
    let line = format!("Disk {} of {}. Terraform uploads this file.", disk.target, domain.name);
    let mut source = vec![("file".to_owned(), path_of(file))];
    source.extend(sha256.map(|sha256| text("sha256", &sha256)));
    let mut body = vec![text("name", name)];
    body.extend(domain.guest.attributes());
    body.push(("source".to_owned(), Expression::Object(source)));
    if disk.format != "qcow2" {
        body.push(text("format", &disk.format));
    }
    body.extend(compression.map(|compression| text("compression", compression)));
    let block = hcl::block("resource", &["berth_image", &hcl::identifier(name)], &body);
    format!("\n{}{block}", hcl::comment(&[line]))
}

/// The disk that the data comes from, without names that are no plain ones: they are in a comment.
pub(super) fn imported_from(domain: &Domain, disk: &Disk) -> (String, Expression) {
    let is_plain = |name: &str, most: usize| {
        let is_known = |c: char| c.is_alphanumeric() || " ._-:".contains(c);
        !name.is_empty() && name.chars().count() <= most && name.chars().all(is_known)
    };
    let id = match &domain.origin {
        Origin::Proxmox(id) => Some(id.to_string()),
        _ => domain.uuid.clone(),
    };
    let mut from = vec![text("system", domain.origin.system())];
    from.extend(is_plain(&domain.name, 256).then(|| text("guest", &domain.name)));
    from.extend(id.map(|id| text("guest_identity", &id)));
    from.extend(is_plain(&disk.target, 64).then(|| text("disk", &disk.target)));
    ("imported_from".to_owned(), Expression::Object(from))
}

/// The size of a disk.
pub(super) fn size(bytes: u64) -> (String, Expression) {
    text("size", Quantity::from_bytes(bytes).as_str())
}

/// A path that is relative to the folder of the configuration is so wherever Terraform runs.
fn path_of(file: &str) -> Expression {
    let literal = hcl::quoted(file);
    if file.starts_with('/') {
        return Expression::Raw(literal);
    }
    Expression::Raw(format!("\"${{path.module}}/{}", literal.strip_prefix('"').unwrap_or_default()))
}
