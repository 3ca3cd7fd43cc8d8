//! The scratch disk of a VM: empty at each start, and gone when the machine ends.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{DiskFilesystem, Quantity};

/// A temporary disk on the host of a VM. It is no Disk: it has no snapshots and no backups, and goes to no other host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!isQuantity(self.size) || quantity(self.size).compareTo(quantity(has(self.filesystem) && self.filesystem.type == 'xfs' ? '300Mi' : '16Mi')) >= 0").message("the size of a scratch disk is at least 16Mi, with an xfs file system 300Mi").field_path(".size"),
    validation = Rule::new("!isQuantity(self.size) || quantity(self.size).compareTo(quantity('15Ti')) <= 0").message("the size of a scratch disk is at most 15Ti").field_path(".size")
)]
pub struct ScratchDisk {
    /// The size, for example `100Gi`: from 16Mi to 15Ti. The file takes the space of the data in it.
    pub size: Quantity,
    /// The file system that the host makes on it at each start. Default: none, the disk is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<Box<DiskFilesystem>>,
}

impl ScratchDisk {
    /// Returns its size in whole sectors of 512 bytes; 0 for one that is no size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.size.bytes().map_or(0, |bytes| bytes.next_multiple_of(512))
    }
}
