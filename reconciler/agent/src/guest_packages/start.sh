# Runs the script $1 with the action $2 outside of the guest agent's service, which its package manager stops.
umask 077
rm -f /run/berth-guest-agent-*
result="/run/berth-guest-agent-$3"
if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null 2>&1; then
	exec systemd-run --quiet --collect --unit="berth-guest-agent-$3" /bin/sh -c "$1" berth-guest-agent "$2" "$result"
fi
setsid /bin/sh -c "$1" berth-guest-agent "$2" "$result" </dev/null >/dev/null 2>&1 &
