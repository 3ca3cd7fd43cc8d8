#!/bin/sh
# claim?as=2001:db8:7::77&to=2001:db8:7::1: takes an IPv6 address as a guest that forms it does, and says whether an echo request from
# it is answered.
cat >/www/cgi-bin/claim <<'END'
#!/bin/sh
echo "Content-Type: text/plain"
echo
as=$(echo "$QUERY_STRING" | sed -n 's/.*as=\([0-9a-f:]*\).*/\1/p')
to=$(echo "$QUERY_STRING" | sed -n 's/.*to=\([0-9a-f:]*\).*/\1/p')
ip -6 addr add "$as/64" dev eth0
ping=no
for _ in $(seq 5); do
	# Until the guest has looked for duplicates, it sends nothing from the address.
	sleep 1
	ping -6 -c 1 -W 2 -I "$as" "$to" >/run/claim.log 2>&1 && ping=yes && break
done
echo "ping=$ping"
ip -6 addr del "$as/64" dev eth0
END
chmod 755 /www/cgi-bin/claim
echo ready >/www/claim-ready
