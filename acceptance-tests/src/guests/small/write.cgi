#!/bin/sh
# write?dev=sdb&seed=7: writes 8 MiB made from the seed and flushes; answers with their checksum.
echo "Content-Type: text/plain"
echo
dev=$(echo "$QUERY_STRING" | sed -n 's/.*dev=\([a-z]*\).*/\1/p')
seed=$(echo "$QUERY_STRING" | sed -n 's/.*seed=\([0-9a-zA-Z]*\).*/\1/p')
[ -b "/dev/$dev" ] || { echo "error=no block device $dev"; exit 0; }
yes "berth acceptance pattern $seed" | head -c 8388608 >/tmp/pattern
dd if=/tmp/pattern of="/dev/$dev" bs=1M conv=fsync,notrunc 2>/run/dd.log || { echo "error=$(tail -n 1 /run/dd.log)"; exit 0; }
echo "sha256=$(sha256sum </tmp/pattern | cut -d ' ' -f 1)"
rm -f /tmp/pattern
