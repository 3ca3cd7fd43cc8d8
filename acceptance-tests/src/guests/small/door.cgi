#!/bin/sh
# door?to=10.77.0.1&port=7443: whether a connection to there is accepted.
echo "Content-Type: text/plain"
echo
to=$(echo "$QUERY_STRING" | sed -n 's/.*to=\([0-9.]*\).*/\1/p')
port=$(echo "$QUERY_STRING" | sed -n 's/.*port=\([0-9]*\).*/\1/p')
# It ends with 1 where nothing answers, and is ended where something does and waits.
timeout 5 nc -w 3 "$to" "$port" </dev/null >/dev/null 2>&1
[ $? = 1 ] && echo "open=no" || echo "open=yes"
