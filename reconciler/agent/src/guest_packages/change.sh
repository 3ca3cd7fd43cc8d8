# Upgrades or removes (action $1) the package of the guest agent, and writes the exit code to the file $2.
umask 077
exec >/var/log/berth-guest-agent.log 2>&1
export DEBIAN_FRONTEND=noninteractive
PATH="$PATH:/usr/sbin:/sbin"
name=qemu-guest-agent
has() { command -v "$1" >/dev/null 2>&1; }
upgrade() {
	if has apt-get; then
		# A question of dpkg about a changed configuration file would have no answer.
		apt-get -q update && apt-get -qy -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confdef \
			-o Dpkg::Options::=--force-confold install --only-upgrade "$name"
	elif has dnf; then
		dnf -qy upgrade "$name"
	elif has yum; then
		yum -qy update "$name"
	elif has zypper; then
		zypper --non-interactive update "$name"
	elif has apk; then
		apk -U add -u "$name"
	elif has pacman; then
		pacman -Sy --noconfirm --needed "$name"
	else
		return 64
	fi
}
remove() {
	# Other package managers stop it themselves.
	if has rc-service; then rc-service "$name" stop; fi
	if has apt-get; then
		apt-get -qy -o DPkg::Lock::Timeout=300 remove "$name"
	elif has dnf; then
		dnf -qy remove "$name"
	elif has yum; then
		yum -qy remove "$name"
	elif has zypper; then
		zypper --non-interactive remove "$name"
	elif has apk; then
		apk del "$name"
	elif has pacman; then
		pacman -R --noconfirm "$name"
	else
		return 64
	fi
}
program() { cksum "$(command -v qemu-ga)"; }
before=$(program)
if [ "$1" = remove ]; then
	remove
	code=$?
else
	upgrade
	code=$?
	if [ "$(program)" != "$before" ]; then
		if has systemctl; then systemctl try-restart "$name"; elif has rc-service; then rc-service "$name" restart; fi
	fi
fi
echo "$code" >"$2.new" && mv "$2.new" "$2"
