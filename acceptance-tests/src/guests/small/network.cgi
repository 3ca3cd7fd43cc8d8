#!/bin/sh
# The addresses, the MTU and the MAC of the first network card, and the PCI ids of all cards.
echo "Content-Type: text/plain"
echo
echo "mac=$(cat /sys/class/net/eth0/address)"
echo "mtu=$(cat /sys/class/net/eth0/mtu)"
ip -o -4 addr show dev eth0 | awk '{ print "address=" $4 }'
ip route | awk '$1 == "default" { print "gateway=" $3 }'
for card in /sys/bus/pci/devices/*; do
	case $(cat "$card/class") in
	0x0200*) echo "card=$(cat "$card/vendor"):$(cat "$card/device")" ;;
	esac
done
