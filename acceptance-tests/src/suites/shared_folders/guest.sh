#!/bin/sh
# Mounts both shares and tries what they allow: one line for each, NAME=yes or NAME=no.
mkdir -p /mnt/media /mnt/work
{
	try() {
		name=$1
		shift
		if "$@" >/dev/null 2>&1; then echo "$name=yes"; else echo "$name=no"; fi
	}
	text() {
		printf %s "$2" >"$1"
	}
	try media mount -t virtiofs media /mnt/media
	try work mount -t virtiofs work /mnt/work
	echo "film=$(cat /mnt/media/film)"
	try written text /mnt/work/from-guest 'hello host'
	try folder mkdir /mnt/work/made
	try media_written text /mnt/media/new x
	try media_removed rm /mnt/media/film
	try media_changed chmod 777 /mnt/media/film
	text /mnt/work/program x
	try executable chmod 755 /mnt/work/program
	try set_user_id chmod 4755 /mnt/work/program
	try set_group_id chmod 2755 /mnt/work/program
	try device mknod /mnt/work/device c 1 3
	# Links of the host, and a way up: the guest follows them in its own files.
	try link cat /mnt/work/link
	try far_link cat /mnt/work/far-link
	try above cat /mnt/work/../secret
	try above_root sh -c 'cd /mnt/work && cat ../../../../../../../../SECRET'
	# Its own link is followed by nobody but itself.
	try own_link ln -s SECRET /mnt/work/own-link
	try own_link_read cat /mnt/work/own-link
	echo done=yes
} >/run/shares 2>&1
cp /run/shares /www/shares
