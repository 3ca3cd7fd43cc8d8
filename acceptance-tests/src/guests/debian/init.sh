#!/bin/busybox sh
# Finds the root file system and hands over to systemd.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
for module in $($b cat /modules/order); do
	$b insmod "/modules/$module.ko"
done
tries=0
until root=$($b findfs LABEL=berth-root) 2>/dev/null; do
	tries=$((tries + 1))
	if [ "$tries" -gt 100 ]; then
		echo "no file system labelled berth-root"
		exec $b poweroff -f
	fi
	$b sleep 0.1
done
$b mount -o rw "$root" /root
$b mount --move /dev /root/dev
$b umount /sys /proc
exec $b switch_root /root /sbin/init
