#!/bin/sh
# Mounts both shares and tries what they allow: one line for each, NAME=yes or NAME=no.
mkdir -p /mnt/media /mnt/data
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
	try work mount -t virtiofs work /mnt/data
	echo "film=$(cat /mnt/media/film)"
	try written text /mnt/data/from-guest 'hello host'
	try folder mkdir /mnt/data/made
	try media_written text /mnt/media/new x
	try media_removed rm /mnt/media/film
	try media_changed chmod 777 /mnt/media/film
	text /mnt/data/program x
	try executable chmod 755 /mnt/data/program
	try set_user_id chmod 4755 /mnt/data/program
	try set_group_id chmod 2755 /mnt/data/program
	try device mknod /mnt/data/device c 1 3
	# Links of the host, and a way up: the guest follows them in its own files.
	try link cat /mnt/data/link
	try far_link cat /mnt/data/far-link
	try above cat /mnt/data/../secret
	try above_root sh -c 'cd /mnt/data && cat ../../../../../../../../SECRET'
	# Its own link is followed by nobody but itself.
	try own_link ln -s SECRET /mnt/data/own-link
	try own_link_read cat /mnt/data/own-link
	echo done=yes
} >/run/shares 2>&1
cp /run/shares /www/shares
