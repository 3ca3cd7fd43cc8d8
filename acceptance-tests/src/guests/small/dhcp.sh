#!/bin/sh
# What udhcpc runs when the lease changes.
case "$1" in
deconfig)
	ip addr flush dev "$interface"
	ip link set "$interface" up
	;;
bound | renew)
	[ -n "$mtu" ] && ip link set dev "$interface" mtu "$mtu"
	ip addr flush dev "$interface"
	ip addr add "$ip/${mask:-32}" dev "$interface"
	for gateway in $router; do
		# With a /32 the gateway is on the link all the same.
		ip route add "$gateway/32" dev "$interface" 2>/dev/null
		ip route replace default via "$gateway" dev "$interface"
		break
	done
	: >/etc/resolv.conf
	for server in $dns; do
		echo "nameserver $server" >>/etc/resolv.conf
	done
	;;
esac
