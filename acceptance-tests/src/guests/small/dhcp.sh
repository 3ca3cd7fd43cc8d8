#!/bin/sh
# What udhcpc runs when the lease changes.
default() {
	# With a /32 the gateway is on the link all the same.
	ip route add "$1/32" dev "$interface" 2>/dev/null
	# Each card has a default route of its own, as elsewhere: the first card's comes first.
	ip route replace default via "$1" dev "$interface" metric "${interface#eth}"
}
case "$1" in
deconfig)
	ip addr flush dev "$interface"
	ip link set "$interface" up
	;;
bound | renew)
	[ -n "$mtu" ] && ip link set dev "$interface" mtu "$mtu"
	ip addr flush dev "$interface"
	ip addr add "$ip/${mask:-32}" dev "$interface"
	# RFC 3442: with such routes, the router does not count.
	if [ -n "$staticroutes" ]; then
		set -- $staticroutes
		while [ $# -ge 2 ]; do
			case "$1" in
			*/0) default "$2" ;;
			*) ip route replace "$1" via "$2" dev "$interface" ;;
			esac
			shift 2
		done
	else
		for gateway in $router; do
			default "$gateway"
			break
		done
	fi
	{
		[ -n "$search" ] && echo "search $search"
		for server in $dns; do
			echo "nameserver $server"
		done
	} >"/run/resolv.$interface"
	cat /run/resolv.* >/etc/resolv.conf
	;;
esac
