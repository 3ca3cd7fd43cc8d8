#!/bin/sh
# resolve?name=db: the name and the addresses that a name leads to, or the name of an address. `unknown=yes`: there is no such name.
echo "Content-Type: text/plain"
echo
name=$(echo "$QUERY_STRING" | sed -n 's/.*name=\([0-9a-zA-Z.:-]*\).*/\1/p')
nslookup "$name" 2>&1 | awk '
	$1 == "Name:" { print "name=" $2; found = 1 }
	$1 == "Address:" && found { print "address=" $2 }
	$2 == "name" && $3 == "=" { print "name=" $4 }
	/NXDOMAIN/ && !unknown { print "unknown=yes"; unknown = 1 }'
