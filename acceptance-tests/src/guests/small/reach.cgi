#!/bin/sh
# reach?to=10.77.0.9: whether another guest answers this one's ping, who it says it is, and how much of a large page comes.
echo "Content-Type: text/plain"
echo
to=$(echo "$QUERY_STRING" | sed -n 's/.*to=\([0-9.]*\).*/\1/p')
ping -c 2 -W 2 "$to" >/run/ping.log 2>&1 && echo "ping=yes" || echo "ping=no"
echo "hostname=$(wget -q -T 4 -O - "http://$to/" 2>/dev/null | sed -n 's/^hostname=//p')"
echo "bytes=$(wget -q -T 8 -O - "http://$to/big" 2>/dev/null | wc -c)"
