#!/bin/sh
# sum?dev=sdb: the checksum of the first 8 MiB, read from the disk and not from the cache.
echo "Content-Type: text/plain"
echo
dev=$(echo "$QUERY_STRING" | sed -n 's/.*dev=\([a-z]*\).*/\1/p')
[ -b "/dev/$dev" ] || { echo "error=no block device $dev"; exit 0; }
blockdev --flushbufs "/dev/$dev"
echo 3 >/proc/sys/vm/drop_caches
echo "sha256=$(head -c 8388608 "/dev/$dev" | sha256sum | cut -d ' ' -f 1)"
