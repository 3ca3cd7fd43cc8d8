#!/bin/sh
# Mounts the file system with this label, and says whether an earlier start has written to it.
export PATH=/bin
device=
for _ in $(seq 40); do
	device=$(findfs LABEL=THE_LABEL 2>/dev/null) && break
	sleep 0.2
done
mkdir -p /mnt/labelled
mount -t ext4 "${device:-/dev/none}" /mnt/labelled && echo mounted=yes || echo mounted=no
[ -e /mnt/labelled/first ] && echo kept=yes || echo kept=no
echo written >/mnt/labelled/first
sync
umount /mnt/labelled
echo done=yes
