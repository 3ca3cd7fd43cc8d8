#!/bin/sh
# Gives the small guest an address with an identifier that does not follow from its MAC address, beside the one that its kernel forms.
for _ in $(seq 90); do
	ip -6 -o addr show dev eth0 | grep -q 'inet6 fd00:92:' && break
	sleep 1
done
end=$(sed 's/.*:\(..\):\(..\)$/\1\2/' /sys/class/net/eth0/address)
printf 'fd00:92::c0de:0:1:%x' "0x$end" >/run/chosen
ip -6 addr add "$(cat /run/chosen)/64" dev eth0
# Until it is known that no other machine has it, nothing is sent from it.
for _ in $(seq 30); do
	ip -6 addr show dev eth0 | grep -q tentative || break
	sleep 1
done
# chosen?to=fd00:92::1&as=fd00:92::2: the address that it has chosen, and whether there answers a ping, also under another address.
cat >/www/cgi-bin/chosen <<'END'
#!/bin/sh
echo "Content-Type: text/plain"
echo
echo "chosen=$(cat /run/chosen)"
to=$(echo "$QUERY_STRING" | sed -n 's/.*to=\([0-9a-f:]*\).*/\1/p')
as=$(echo "$QUERY_STRING" | sed -n 's/.*as=\([0-9a-f:]*\).*/\1/p')
[ -n "$to" ] || exit 0
[ -z "$as" ] || ip -6 addr add "$as/128" dev eth0 nodad
ping -6 -c 1 -W 2 -I "${as:-$(cat /run/chosen)}" "$to" >/run/ping6.log 2>&1 && echo "ping=yes" || echo "ping=no"
[ -z "$as" ] || ip -6 addr del "$as/128" dev eth0
END
chmod 755 /www/cgi-bin/chosen
echo ready >/www/chosen-ready
