#!/bin/sh
# tpm?write=WORD: stores the eight letters of the word in the TPM's memory. Answers with those that are there.
echo "Content-Type: text/plain"
echo
[ -c /dev/tpm0 ] || { echo "tpm=none"; exit 0; }
echo "tpm=$(cat /sys/class/tpm/tpm0/tpm_version_major)"
word=$(echo "$QUERY_STRING" | sed -n 's/.*write=\([0-9a-z]*\).*/\1/p')
# One session with the empty password of the owner.
auth='\x00\x00\x00\x09\x40\x00\x00\x09\x00\x00\x00\x00\x00'
owner='\x40\x00\x00\x01' index='\x01\x80\x00\x01'
# A command is one write, and its answer one read.
send() {
	exec 3<>/dev/tpm0
	printf "$1" >/tmp/tpm
	dd if=/tmp/tpm bs=4096 2>/dev/null >&3
	dd bs=4096 count=1 <&3 2>/dev/null >/tmp/tpm
	exec 3>&-
}
code() {
	dd if=/tmp/tpm bs=1 skip=6 count=4 2>/dev/null | hexdump -ve '1/1 "%02x"'
}
if [ -n "$word" ]; then
	# TPM2_NV_DefineSpace, then TPM2_NV_Write.
	send "\x80\x02\x00\x00\x00\x2d\x00\x00\x01\x2a$owner$auth\x00\x00\x00\x0e$index\x00\x0b\x02\x06\x00\x06\x00\x00\x00\x08"
	echo "defined=$(code)"
	send "\x80\x02\x00\x00\x00\x2b\x00\x00\x01\x37$owner$index$auth\x00\x08$word\x00\x00"
	echo "written=$(code)"
fi
# TPM2_NV_Read
send "\x80\x02\x00\x00\x00\x23\x00\x00\x01\x4e$owner$index$auth\x00\x08\x00\x00"
echo "read=$(code)"
echo "word=$(dd if=/tmp/tpm bs=1 skip=16 count=8 2>/dev/null)"
