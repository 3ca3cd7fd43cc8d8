#!/bin/sh
# The addresses, the MTU and the MAC of the first network card; MAC and link of each card; the PCI ids of all cards.
echo "Content-Type: text/plain"
echo
echo "mac=$(cat /sys/class/net/eth0/address)"
echo "mtu=$(cat /sys/class/net/eth0/mtu)"
ip -o -4 addr show dev eth0 | awk '{ print "address=" $4 }'
ip route | awk '$1 == "default" { print "gateway=" $3 }'
for card in /sys/class/net/eth*; do
	# A card that is not up has no link to read.
	ip link set "${card##*/}" up
	echo "link-$(cat "$card/address")=$(cat "$card/carrier")"
done
for card in /sys/bus/pci/devices/*; do
	case $(cat "$card/class") in
	0x0200*) echo "card=$(cat "$card/vendor"):$(cat "$card/device")" ;;
	esac
done
