#!/bin/sh
# The power button was pressed.
echo "berth-guest-powering-off" >/dev/ttyS0
sync
poweroff -f
