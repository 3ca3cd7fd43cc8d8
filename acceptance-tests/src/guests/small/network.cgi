#!/bin/sh
# The addresses, the MTU and the MAC of the first network card, the routes and name servers of all cards, and their PCI ids.
# `?renew` renews the leases first.
echo "Content-Type: text/plain"
echo
[ "$QUERY_STRING" = renew ] && for pid in /run/udhcpc.*.pid; do
	kill -USR1 "$(cat "$pid")"
done
echo "mac=$(cat /sys/class/net/eth0/address)"
echo "mtu=$(cat /sys/class/net/eth0/mtu)"
ip -o -4 addr show dev eth0 | awk '{ print "address=" $4 }'
ip route | awk '$1 == "default" { print "gateway=" $3 }'
ip route | awk '$1 != "default" && $2 == "via" { print "route=" $1 "," $3 }'
for file in /run/resolv.eth*; do
	[ -e "$file" ] && awk -v card="${file##*.}" '{ key = $1; $1 = ""; sub(/^ /, ""); gsub(/ /, ","); print card "_" key "=" $0 }' "$file"
done
for card in /sys/bus/pci/devices/*; do
	case $(cat "$card/class") in
	0x0200*) echo "card=$(cat "$card/vendor"):$(cat "$card/device")" ;;
	esac
done
