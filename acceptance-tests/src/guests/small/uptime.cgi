#!/bin/sh
# Whether this is still the same boot.
echo "Content-Type: text/plain"
echo
echo "boot_id=$(cat /proc/sys/kernel/random/boot_id)"
echo "uptime=$(cut -d ' ' -f 1 /proc/uptime)"
echo "uuid=$(cat /sys/class/dmi/id/product_uuid)"
echo "cpus=$(grep -c '^processor' /proc/cpuinfo)"
echo "memory_kib=$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)"
echo "serial=$(cat /sys/class/dmi/id/product_serial)"
echo "avx2=$(grep -cw avx2 /proc/cpuinfo)"
echo "watchdogs=$(cat /sys/bus/pci/devices/*/device | grep -c 0x25ab)"
echo "sound_cards=$(cat /sys/bus/pci/devices/*/device | grep -c 0x293e)"
# Of each NUMA node, in their order.
echo "node_cpus=$(cat /sys/devices/system/node/node*/cpulist | tr '\n' :)"
echo "node_memory_kib=$(awk '/ MemTotal:/ { print $4 }' /sys/devices/system/node/node*/meminfo | tr '\n' :)"
