#!/bin/sh
# Gives the small guest its IPv6 address, as a DHCPv6 client would: busybox has none. The prefix is known by router advertisements.
for _ in $(seq 60); do
	ip -6 route | grep -q '^fd00:60::/64' && break
	sleep 1
done
address=ADDRESS
# The number of its IPv4 address, in a network of 8 bits for it.
[ -n "$address" ] || address=$(ip -o -4 addr show dev eth0 | sed -n 's/.*inet [0-9]*\.[0-9]*\.[0-9]*\.\([0-9]*\)\/.*/\1/p' | xargs printf 'fd00:60::%x')
ip -6 addr add "$address/128" dev eth0
# Until it is known that no other machine has it, nothing is sent from it.
for _ in $(seq 30); do
	ip -6 addr show dev eth0 | grep -q tentative || break
	sleep 1
done
# six?to=fd00:60::2&as=fd00:60::3: the routes, and whether there answers a ping, also under another address, and a web server.
cat >/www/cgi-bin/six <<'END'
#!/bin/sh
echo "Content-Type: text/plain"
echo
to=$(echo "$QUERY_STRING" | sed -n 's/.*to=\([0-9a-f:]*\).*/\1/p')
as=$(echo "$QUERY_STRING" | sed -n 's/.*as=\([0-9a-f:]*\).*/\1/p')
echo "prefix=$(ip -6 route | awk '$1 == "fd00:60::/64" { print $1; exit }')"
echo "default=$(ip -6 route | awk '$1 == "default" { print $3; exit }')"
if [ -n "$as" ]; then
	ip -6 addr add "$as/128" dev eth0 nodad
	ping -6 -c 2 -W 2 -I "$as" "$to" >/run/six.log 2>&1 && echo "ping=yes" || echo "ping=no"
	ip -6 addr del "$as/128" dev eth0
	exit 0
fi
ping -6 -c 2 -W 2 "$to" >/run/six.log 2>&1 && echo "ping=yes" || echo "ping=no"
name=$(printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 5 "$to" 80 2>/dev/null | sed -n 's/^hostname=//p')
echo "hostname=$name"
END
chmod 755 /www/cgi-bin/six
echo ready >/www/six-ready
