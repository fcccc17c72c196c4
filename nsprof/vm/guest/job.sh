#!/bin/bash
# Process 1 of the guest after the switch to the host's root: runs the command, keeps what it says, powers off.
# The words and the environment come NUL-separated from files, so no shell ever reads the user's words.
mapfile -d '' -t words </job/argv
mapfile -d '' -t settings </job/env
read -r place </job/cwd
mkdir -p /run/nsprof-bin
ln -s /job/nsprof /run/nsprof-bin/nsprof
cd "$place" 2>/dev/null || cd /
read -r uptime _ </proc/uptime
echo "$uptime" >/job/started
env -i "${settings[@]}" "${words[@]}" </dev/null >>/job/stdout 2>>/job/stderr
status=$?
echo "$status" >/job/status.part
mv /job/status.part /job/status
sync -f /job/status 2>/dev/null
echo o >/proc/sysrq-trigger # at once: there is nothing to shut down
sleep 60
