#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# Handshakes whose messages come in rare orders, or late, end in a connection all the same; with and without a secret.
# Catches: a direction that is given away before the peer has proved itself, a slow peer that is dialled again and refused,
# a lane that broke early and ends the whole connect.
. "$(dirname "$0")/lib.sh"
no_leaks
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_CONNECT_TIMEOUT=100s GANTRY_TIMEOUT=100s
driver=$BUILD_DIR/drivers/handshake
jobs=()

# Side by side: each mostly waits.
for secret in "" $(has_openssl && echo alpha); do
	for name in share welcome proof redial; do
		lanes=1
		[ $name = redial ] && lanes=2
		env GANTRY_LANES=$lanes ${secret:+GANTRY_SECRET=$secret} "$driver" $name >"$tmp/$name-${secret:-none}" 2>&1 &
		jobs+=("$! $name-${secret:-none}")
	done
done
for job in "${jobs[@]}"; do
	read -r pid name <<<"$job"
	wait "$pid" || fail "$name"
	cat "$tmp/$name"
done
exit $failed
