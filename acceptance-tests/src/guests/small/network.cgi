#!/bin/sh
# The addresses, the MTU and the MAC of the first network card.
echo "Content-Type: text/plain"
echo
echo "mac=$(cat /sys/class/net/eth0/address)"
echo "mtu=$(cat /sys/class/net/eth0/mtu)"
ip -o -4 addr show dev eth0 | awk '{ print "address=" $4 }'
ip route | awk '$1 == "default" { print "gateway=" $3 }'
