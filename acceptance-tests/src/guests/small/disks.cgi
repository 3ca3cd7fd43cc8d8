#!/bin/sh
# One line a block device: name, size in bytes, serial number.
echo "Content-Type: text/plain"
echo
for path in /sys/block/*; do
	name=${path##*/}
	case "$name" in loop* | ram*) continue ;; esac
	serial=
	if [ -f "$path/serial" ]; then
		serial=$(cat "$path/serial")
	elif [ -f "$path/device/vpd_pg80" ]; then
		# Four bytes of header come first.
		serial=$(tail -c +5 "$path/device/vpd_pg80" | tr -d '\0')
	fi
	# The kernel reads the size of another medium when the drive is opened, and keeps the former one of an empty drive.
	empty=
	case "$name" in sr*) head -c 1 "/dev/$name" >/dev/null 2>&1 || empty=yes ;; esac
	size=0
	[ -z "$empty" ] && size=$(($(cat "$path/size") * 512))
	echo "name=$name size=$size serial=$serial ro=$(cat "$path/ro")"
done
