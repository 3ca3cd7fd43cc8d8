//! The sum of the amounts of many objects, of which each can be taken out again: a sum of amounts that has reached the greatest number
//! could not be reduced, and summing all of them up anew for each change would cost more with each object.

use berth_api::QuotaAmounts;

/// The sum that the module describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum([i128; 12]);

impl Sum {
    pub(super) fn add(&mut self, amounts: QuotaAmounts) {
        for (sum, amount) in self.0.iter_mut().zip(numbers(amounts)) {
            *sum += amount;
        }
    }

    /// Takes out what was added before.
    pub(super) fn take(&mut self, amounts: QuotaAmounts) {
        for (sum, amount) in self.0.iter_mut().zip(numbers(amounts)) {
            *sum -= amount;
        }
    }

    /// Returns the sum; the greatest number for more than that.
    pub(super) fn amounts(self) -> QuotaAmounts {
        let [disk_size, used_storage, image_storage, backup_storage, memory, counts @ ..] = self.0;
        let [cpus, vms, disks, snapshots, images, backups, public_ips] = counts;
        let size = |sum: i128| u64::try_from(sum).unwrap_or(u64::MAX);
        let count = |sum: i128| i64::try_from(sum).unwrap_or(i64::MAX);
        QuotaAmounts {
            disk_size: size(disk_size),
            used_storage: size(used_storage),
            image_storage: size(image_storage),
            backup_storage: size(backup_storage),
            memory: size(memory),
            cpus: count(cpus),
            vms: count(vms),
            disks: count(disks),
            snapshots: count(snapshots),
            images: count(images),
            backups: count(backups),
            public_ips: count(public_ips),
        }
    }
}

/// The amounts in an order of their own.
fn numbers(amounts: QuotaAmounts) -> [i128; 12] {
    let QuotaAmounts {
        disk_size,
        used_storage,
        image_storage,
        backup_storage,
        memory,
        cpus,
        vms,
        disks,
        snapshots,
        images,
        backups,
        public_ips,
    } = amounts;
    [
        disk_size.into(),
        used_storage.into(),
        image_storage.into(),
        backup_storage.into(),
        memory.into(),
        cpus.into(),
        vms.into(),
        disks.into(),
        snapshots.into(),
        images.into(),
        backups.into(),
        public_ips.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_beyond_the_greatest_number_is_reduced_again() {
        let huge = QuotaAmounts { disk_size: u64::MAX, cpus: i64::MAX, vms: 1, ..QuotaAmounts::default() };
        let mut sum = Sum::default();
        sum.add(huge);
        sum.add(huge);
        assert_eq!(sum.amounts(), QuotaAmounts { vms: 2, ..huge });
        sum.take(huge);
        assert_eq!(sum.amounts(), huge);
        sum.take(huge);
        assert_eq!(sum, Sum::default());
    }
}
