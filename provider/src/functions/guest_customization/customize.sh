# Written by berth: sets the host name, the time zone and static addresses of a guest, each only where it is another.
PATH="$PATH:/usr/sbin:/sbin"
failed=0
mac= addresses= addresses4= addresses6= gateway4= gateway6= nameservers4= nameservers6= search=
has() { command -v "$1" >/dev/null 2>&1; }
host_name() {
	# Without it sudo warns and "hostname -f" fails, where no module of the C library knows the own name.
	grep -qwF -e "$1" "/etc/hosts" 2>/dev/null || echo "127.0.1.1 $1" >>"/etc/hosts"
	[ "$(uname -n)" = "$1" ] && [ "$(cat "/etc/hostname" 2>/dev/null)" = "$1" ] && return
	has hostnamectl && hostnamectl set-hostname "$1" && return
	echo "$1" >"/etc/hostname" && hostname "$1"
}
time_zone() {
	has timedatectl && timedatectl set-timezone "$1" && return
	[ -f "/usr/share/zoneinfo/$1" ] || return
	ln -sf "/usr/share/zoneinfo/$1" "/etc/localtime" || return
	[ ! -f "/etc/timezone" ] || echo "$1" >"/etc/timezone"
}
commas() { echo "$1" | tr ' ' ,; }
method() { if [ -n "$1" ]; then echo manual; else echo "$2"; fi; }
by_network_manager() {
	nmcli connection show "$name" >/dev/null 2>&1 ||
		nmcli connection add type ethernet con-name "$name" ifname "$device" || return
	nmcli connection modify "$name" connection.autoconnect-priority 100 \
		ipv4.addresses "$(commas "$addresses4")" ipv4.gateway "$gateway4" ipv4.dns "$(commas "$nameservers4")" \
		ipv4.dns-search "$(commas "${addresses4:+$search}")" ipv4.method "$(method "$addresses4" disabled)" \
		ipv6.addresses "$(commas "$addresses6")" ipv6.gateway "$gateway6" ipv6.dns "$(commas "$nameservers6")" \
		ipv6.dns-search "$(commas "$search")" ipv6.method "$(method "$addresses6" auto)" && nmcli connection up "$name"
}
lines() {
	printf '[Match]\nMACAddress=%s\n[Network]\n' "$mac"
	for one in $addresses; do echo "Address=$one"; done
	for one in $gateway4 $gateway6; do echo "Gateway=$one"; done
	for one in $nameservers4 $nameservers6; do echo "DNS=$one"; done
	[ -z "$search" ] || echo "Domains=$search"
}
resolver() {
	[ -z "$nameservers4$nameservers6" ] || {
		[ -z "$search" ] || echo "search $search"
		for one in $nameservers4 $nameservers6; do echo "nameserver $one"; done
	} >"/etc/resolv.conf"
}
by_networkd() {
	file="/etc/systemd/network/05-$name.network"
	[ "$(cat "$file" 2>/dev/null)" = "$(lines)" ] || {
		mkdir -p "/etc/systemd/network" && lines >"$file" && networkctl reload && networkctl reconfigure "$device"
	} || return
	# systemd-networkd passes name servers to systemd-resolved only.
	systemctl is-active --quiet systemd-resolved || resolver
}
# Until the guest boots: it is done again after each start.
by_hand() {
	ip link set dev "$device" up || return
	for one in $addresses; do
		ip addr show dev "$device" | grep -qF " $one " || ip addr add "$one" dev "$device" || return
	done
	[ -z "$gateway4" ] || ip route replace default via "$gateway4" dev "$device" || return
	[ -z "$gateway6" ] || ip -6 route replace default via "$gateway6" dev "$device" || return
	resolver
}
network() {
	device=
	for file in /sys/class/net/*/address; do
		[ "$(cat "$file")" = "$mac" ] && device="${file%/address}" && device="${device##*/}" && break
	done
	[ -n "$device" ] || { echo "no network card has the MAC address $mac" >&2; return 1; }
	name="berth-$(echo "$mac" | tr : -)"
	addresses="$addresses4 $addresses6"
	if has nmcli && nmcli general status >/dev/null 2>&1; then
		by_network_manager
	elif has networkctl && systemctl is-active --quiet systemd-networkd; then
		by_networkd
	else
		by_hand
	fi
}
for setting in "$@"; do
	value="${setting#*=}"
	case "$setting" in
	hostname=*) host_name "$value" ;;
	timezone=*) time_zone "$value" ;;
	mac=*) mac="$value" addresses4= addresses6= gateway4= gateway6= nameservers4= nameservers6= search= ;;
	addresses4=*) addresses4="$value" ;;
	addresses6=*) addresses6="$value" ;;
	gateway4=*) gateway4="$value" ;;
	gateway6=*) gateway6="$value" ;;
	nameservers4=*) nameservers4="$value" ;;
	nameservers6=*) nameservers6="$value" ;;
	search=*) search="$value" ;;
	apply) network ;;
	esac || { echo "failed: $setting" >&2; failed=1; }
done
exit "$failed"
