#!/bin/sh
# spoof?as=10.77.0.9&to=10.77.0.1: whether an echo request under an address of one's choice is answered.
echo "Content-Type: text/plain"
echo
as=$(echo "$QUERY_STRING" | sed -n 's/.*as=\([0-9.]*\).*/\1/p')
to=$(echo "$QUERY_STRING" | sed -n 's/.*to=\([0-9.]*\).*/\1/p')
ip addr add "$as/32" dev eth0 2>/dev/null && added=yes
ping -c 2 -W 2 -I "$as" "$to" >/run/spoof.log 2>&1 && echo "ping=yes" || echo "ping=no"
[ "$added" = yes ] && ip addr del "$as/32" dev eth0
exit 0
