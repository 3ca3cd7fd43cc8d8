#!/bin/sh
# Written by berth: installs qemu-guest-agent, unless the image has it, and starts it.
export DEBIAN_FRONTEND=noninteractive
has() { command -v "$1" >/dev/null 2>&1; }
install_agent() {
	if has apt-get; then
		# Another program may use apt at the first boot: `update` fails at once then, and only `install` can wait.
		for pause in 15 30 60; do
			apt-get update && apt-get -o DPkg::Lock::Timeout=300 install -y qemu-guest-agent && return
			sleep "$pause"
		done
		apt-get -o DPkg::Lock::Timeout=300 install -y qemu-guest-agent
	elif has dnf; then
		dnf install -y qemu-guest-agent
	elif has yum; then
		yum install -y qemu-guest-agent
	elif has zypper; then
		zypper --non-interactive install qemu-guest-agent
	elif has apk; then
		apk add --no-cache qemu-guest-agent
	elif has pacman; then
		pacman -Sy --noconfirm qemu-guest-agent
	else
		echo "no known package manager: qemu-guest-agent is not installed" >&2
		return 1
	fi
}
PATH="$PATH:/usr/sbin:/sbin"
has qemu-ga || install_agent || exit 1
if has systemctl; then
	# Debian's unit has no [Install] section: a device of udev starts it.
	systemctl enable qemu-guest-agent 2>/dev/null
	systemctl start qemu-guest-agent
elif has rc-service; then
	rc-update add qemu-guest-agent default
	rc-service qemu-guest-agent start
fi
