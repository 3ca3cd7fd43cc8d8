#!/bin/sh
# The addresses, the MTU and the MAC of the first network card; routes, name servers, MAC, link and the number of queues of each
# card; the PCI ids of all cards. `?renew` renews the leases first.
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
for card in /sys/class/net/eth*; do
	# A card that is not up has no link to read.
	ip link set "${card##*/}" up
	echo "link-$(cat "$card/address")=$(cat "$card/carrier")"
	echo "queues-$(cat "$card/address")=$(ls "$card/queues" | grep -c '^rx-')"
done
for card in /sys/bus/pci/devices/*; do
	case $(cat "$card/class") in
	0x0200*) echo "card=$(cat "$card/vendor"):$(cat "$card/device")" ;;
	esac
done
