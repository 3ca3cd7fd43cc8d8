#!/bin/sh
# Configures the first network card as the network configuration of cloud-init says, if that has an address.
address=$(sed -n 's/^ *"\([0-9.]*\/[0-9]*\)"$/\1/p' /www/network-config | head -n 1)
gateway=$(sed -n 's/.*"via": "\([0-9.]*\)".*/\1/p' /www/network-config | head -n 1)
[ -n "$address" ] || exit 0
killall udhcpc
ip addr flush dev eth0
ip addr add "$address" dev eth0
[ -n "$gateway" ] && ip route replace default via "$gateway" dev eth0
echo "configured $address"
