#!/bin/sh
# Adds a page to the guest that ends it: /cgi-bin/end?reboot, ?poweroff, ?panic or ?watchdog, or ?later-reboot and so on.
cat >/run/arm-watchdog <<'SCRIPT'
#!/bin/sh
# There is no driver of the i6300ESB in this kernel: two stages of a second each, then it is enabled. Registers: Intel 6300ESB datasheet.
for device in /sys/bus/pci/devices/*; do
	[ "$(cat $device/device)" = 0x25ab ] && watchdog=$device
done
base=$(head -n 1 $watchdog/resource | cut -d ' ' -f 1)
for register in 0 4; do
	devmem $((base + 12)) 16 0x80
	devmem $((base + 12)) 16 0x86
	devmem $((base + register)) 32 1000
done
printf '\002' | dd of=$watchdog/config bs=1 seek=104 conv=notrunc
SCRIPT
cat >/www/cgi-bin/end <<'SCRIPT'
#!/bin/sh
echo "Content-Type: text/plain"
echo
echo "ending=$QUERY_STRING"
{
	sleep 1
	case $QUERY_STRING in
	later-*) sleep 5 ;;
	esac
	case ${QUERY_STRING#later-} in
	reboot) reboot -f ;;
	poweroff) poweroff -f ;;
	panic) echo c >/proc/sysrq-trigger ;;
	watchdog) sh /run/arm-watchdog 2>/dev/ttyS0 ;;
	esac
} >/dev/null 2>&1 </dev/null &
SCRIPT
chmod 755 /www/cgi-bin/end
echo endings
