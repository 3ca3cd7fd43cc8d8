#!/bin/sh
# The small guest's only process of its own: brings up what the tests look at, then reaps and waits.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
echo "berth-guest-started" >/dev/ttyS0
for module in $(cat /modules/order); do
	insmod "/modules/$module.ko"
done

# An installer: writes the disk image of its medium to the disk that can be written, ejects the medium, and starts what it has
# installed. The volume of cloud-init is a SCSI disk too, and the kernel names them in the order in which they answer.
if grep -q berth.install /proc/cmdline; then
	for _ in $(seq 40); do
		disk=$(grep -lx 0 /sys/block/sd*/ro | head -n 1 | cut -d / -f 4)
		[ -b /dev/sr0 ] && [ -b "/dev/${disk:-none}" ] && break
		sleep 0.2
	done
	mount -t iso9660 -o ro /dev/sr0 /mnt
	zcat /mnt/disk.gz | dd of="/dev/$disk" bs=1M conv=fsync
	echo 1 >/proc/sys/dev/cdrom/autoeject
	umount /mnt
	reboot -f
fi

ip link set lo up
acpid -l /run/acpid.log

# NoCloud: a volume labelled cidata, which may appear seconds after its controller. Meta-data is YAML or JSON.
hostname berth-guest
volume=
for _ in $(seq 40); do
	volume=$(findfs LABEL=cidata 2>/dev/null || findfs LABEL=CIDATA 2>/dev/null) && break
	sleep 0.2
done
mkdir -p /run/cidata
if [ -n "$volume" ] && { mount -t vfat -o ro "$volume" /run/cidata || mount -t iso9660 -o ro "$volume" /run/cidata; }; then
	for name in meta-data user-data network-config vendor-data; do
		[ -f "/run/cidata/$name" ] && cp "/run/cidata/$name" "/www/$name"
	done
	umount /run/cidata
	name=$(sed -n 's/^ *"\{0,1\}local-hostname"\{0,1\}: *"\{0,1\}\([^", ]*\).*/\1/p' /www/meta-data | head -n 1)
	# Of a fully qualified name the first label, as cloud-init does.
	[ -n "$name" ] && hostname "${name%%.*}"
	grep -hEo '(ssh-(rsa|ed25519)|ecdsa-[a-z0-9-]+) [A-Za-z0-9+/=]+[^"]*' /www/meta-data /www/user-data >/www/authorized_keys 2>/dev/null
fi

# Also where it is not configured, to show that there is no lease. Nothing is waited for there.
tries="-t 8 -T 2"
if grep -q '"dhcp4": *false' /www/network-config 2>/dev/null && ! grep -q '"dhcp4": *true' /www/network-config; then
	tries="-t 2 -T 1"
fi
request() {
	ip link set "$1" up
	udhcpc -i "$1" -s /etc/dhcp.sh -x "hostname:$(hostname)" -O mtu -O search -O staticroutes $tries -b -p "/run/udhcpc.$1.pid" >"/run/udhcpc.$1.log" 2>&1
}
for card in /sys/class/net/eth*; do
	case "$card" in
	*/eth0) request eth0 ;;
	*/eth[1-9]) request "${card##*/}" & ;;
	esac
done

{
	echo "berth small guest"
	echo "hostname=$(hostname)"
	echo "kernel=$(uname -r)"
	[ -d /sys/firmware/efi ] && echo "firmware=uefi" || echo "firmware=bios"
	dmesg | grep -q "Secure boot enabled" && echo "secure_boot=on" || echo "secure_boot=off"
} >/www/index.html
# More than any packet holds.
head -c 300000 /dev/zero >/www/big
httpd -p 80 -h /www

if [ -f /www/user-data ] && [ "$(head -c 2 /www/user-data)" = '#!' ]; then
	cp /www/user-data /run/user-data
	chmod 755 /run/user-data
	/run/user-data >/www/user-data.out 2>&1 </dev/null &
fi

# Answers what is typed at the serial console.
while read -r line; do
	echo "berth-guest-read $line"
done </dev/ttyS0 >/dev/ttyS0 2>&1 &

# CPUs that are plugged in are used, as where udev has a rule for it.
uevent /cpu-online.sh &

# The screen: blue, and what is typed there is written to the serial console.
printf '\033[44m\033[2J' >/dev/tty1
while read -r line; do
	echo "berth-guest-typed $line" >/dev/ttyS0
done </dev/tty1 &

# The second serial port, where the machine has one.
echo "berth-guest-second-port" >/dev/ttyS1 2>/dev/null &

echo "berth-guest-ready $(hostname)" >/dev/ttyS0
while :; do
	sleep 3600 &
	wait
done
