#!/bin/sh
# For each event of the kernel: sets a CPU online that was plugged in.
[ "$ACTION $SUBSYSTEM" = "add cpu" ] && echo 1 >"/sys$DEVPATH/online"
