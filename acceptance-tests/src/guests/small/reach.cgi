#!/bin/sh
# reach?to=10.77.0.9: whether another guest answers this one's ping, who it says it is, and how much of a large page comes.
echo "Content-Type: text/plain"
echo
to=$(echo "$QUERY_STRING" | sed -n 's/.*to=\([0-9.]*\).*/\1/p')
# By nc: the wget of a statically linked busybox crashes.
get() {
	printf 'GET %s HTTP/1.0\r\n\r\n' "$1" | nc -w 5 "$to" 80 2>/dev/null | sed '1,/^\r*$/d'
}
ping -c 2 -W 2 "$to" >/dev/null 2>&1 &
name=$(get / | sed -n 's/^hostname=//p')
wait $! && echo "ping=yes" || echo "ping=no"
echo "hostname=$name"
[ -n "$name" ] && echo "bytes=$(get /big | wc -c)"
