//! The options of `berth import`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `berth import`
#[derive(Args, Debug)]
pub struct ImportOptions {
    /// The hypervisor to read.
    #[command(subcommand)]
    pub source: ImportSource,
}

/// A hypervisor.
#[derive(Debug, Subcommand)]
pub enum ImportSource {
    /// Writes HCL for the domains of libvirt, their networks and their disks, with the steps that bring the disks in. Changes
    /// nothing in libvirt or in berth.
    Libvirt(LibvirtOptions),
    /// Writes HCL for the guests of QEMU processes that scripts, users or Proxmox VE started, by their command lines, with the
    /// steps that bring their disks in. Changes nothing in the guests or in berth.
    Qemu(QemuOptions),
    /// Writes HCL for the virtual systems of an appliance, an OVA or an OVF, and extracts the disks of an OVA. Terraform uploads them.
    Ova(OvaOptions),
}

/// `berth import libvirt`
#[derive(Args, Debug)]
pub struct LibvirtOptions {
    /// Files with the output of `virsh dumpxml` and `virsh net-dumpxml`. Default: all domains that virsh lists.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// virsh's connection. Default: virsh's own.
    #[arg(long, value_name = "URI", conflicts_with = "files")]
    pub connect: Option<String>,
    #[command(flatten)]
    pub written: WrittenOptions,
}

/// `berth import qemu`
#[derive(Args, Debug)]
pub struct QemuOptions {
    /// Numbers of running processes, and files with command lines: as in `/proc/PID/cmdline`, as in a shell, or the output of `qm
    /// showcmd`. Paths in files are relative to the working directory. Default: all QEMU processes of this machine that neither
    /// berth nor libvirt runs.
    #[arg(value_name = "PID|FILE")]
    pub guests: Vec<PathBuf>,
    #[command(flatten)]
    pub written: WrittenOptions,
}

/// `berth import ova`
#[derive(Args, Debug)]
pub struct OvaOptions {
    /// An OVA, or the descriptor (`.ovf`) of an appliance whose disks are beside it.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The folder for the configuration, main.tf, and for the disks of an OVA. It is created; an existing file is not replaced.
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
}

/// How the configuration is written.
#[derive(Args, Debug)]
pub struct WrittenOptions {
    /// The folder for the configuration, main.tf. It is created; an existing file is not replaced.
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
    /// The folder that the files of disks are to be copied into: the one that berth is started with.
    #[arg(long, value_name = "FOLDER", default_value = "/srv/images")]
    pub image_dir: PathBuf,
    /// Has berth take over the qcow2 files of disks where they are (`berth up --disk-dir`), instead of images of copies. A file that
    /// several disks have, and every other format, becomes an image as without this option.
    #[arg(long)]
    pub in_place: bool,
    /// Does not read the files of disks. Each checksum is then a variable.
    #[arg(long)]
    pub no_checksums: bool,
}
