#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two sides that cannot work together refuse each other, long before a deadline, and both say what differs and, unless it is secret,
# both values. A side that has not proved that it knows the secret changes nothing at the other but a counter and a line in the log, until no
# other has come for GANTRY_CONNECT_TIMEOUT: then accept fails with the cause.
# Catches: a check that is made on one side only or dropped, a refusal that leaves accept or connect waiting until its
# deadline, a message without its values, a secret in a message.
. "$(dirname "$0")/lib.sh"
no_leaks
driver=$BUILD_DIR/drivers/agree
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_CONNECT_TIMEOUT=100s GANTRY_TIMEOUT=100s
out=$tmp/out file=$tmp/file
secrets=0
has_openssl && secrets=1

# try NAME ARGUMENTS... -- PATTERN...: each pattern must be found in the output.
try()
{
	local name=$1 args=()
	shift
	while [ "$1" != -- ]; do
		args+=("$1")
		shift
	done
	shift
	[[ $secrets = 1 || "${args[*]}" != *GANTRY_SECRET* ]] || return 0
	"$driver" "${args[@]}" >"$out" 2>"$out.err" || { fail "$name: the driver ended badly"; cat "$out.err"; }
	cat "$out.err" >>"$out"
	for pattern in "$@"; do
		grep -Eq -- "$pattern" "$out" && continue
		fail "$name: no line like '$pattern' in"
		cat "$out"
	done
	! grep -Eq 'alpha|omega' "$out" || fail "$name: a secret is in the output"
	echo "-- $name"
	sed 's/^/   /' "$out"
}

# The same beside the others: it waits for a while.
jobs=()
beside()
{
	(
		failed=0 out=$tmp/beside.$BASHPID
		try "$@" >"$out.said"
		cat "$out.said"
		exit $failed
	) &
	jobs+=($!)
}

echo alpha >"$file"
try "no settings" pair "" "" -- '^transfer OK'
try "same secret" pair GANTRY_SECRET=alpha GANTRY_SECRET=alpha -- '^transfer OK'
try "secret from a file on one side" pair GANTRY_SECRET_FILE="$file" GANTRY_SECRET=alpha -- '^transfer OK'
try "secrets differ" pair "GANTRY_SECRET=alpha;GANTRY_LOG=warn" GANTRY_SECRET=omega -- \
	'^accept none, 1 strangers' 'WARN .*refused unauthenticated connection from 127.*: GANTRY_SECRET differs' \
	'^connect ERR_AUTH .*GANTRY_SECRET differs'
try "secret file differs" pair GANTRY_SECRET_FILE="$file" GANTRY_SECRET=omega -- \
	'^accept none, 1 strangers' '^connect ERR_AUTH .*GANTRY_SECRET differs'
try "secret on the accepting side only" pair "GANTRY_SECRET=alpha;GANTRY_LOG=warn" "" -- \
	'^accept none, 1 strangers' 'WARN .*refused unauthenticated connection from .*: GANTRY_SECRET is set only on the accepting side' \
	'^connect ERR_AUTH .*GANTRY_SECRET is set only on the accepting side'
short="GANTRY_SECRET=alpha;GANTRY_CONNECT_TIMEOUT=3s"
beside "secrets differ, and nobody else comes" wait "$short" GANTRY_SECRET=omega -- \
	'^accept ERR_AUTH refused 127.*: GANTRY_SECRET differs' '^connect ERR_AUTH .*GANTRY_SECRET differs'
beside "secret on the accepting side only, and nobody else comes" wait "$short" "" -- \
	'^accept ERR_AUTH refused 127.*: GANTRY_SECRET is set only on the accepting side' \
	'^connect ERR_AUTH .*GANTRY_SECRET is set only on the accepting side'
beside "secret on the connecting side only" wait "" GANTRY_SECRET=alpha -- \
	'^accept ERR_AUTH .*GANTRY_SECRET is set only on the connecting side' \
	'^connect ERR_AUTH .*GANTRY_SECRET is set only on the connecting side'
: >"$file"
try "empty secret file" pair GANTRY_SECRET_FILE="$file" GANTRY_SECRET=alpha -- "^init ERR_CONFIG .*$file"
try "no secret file" pair GANTRY_SECRET_FILE=/nonexistent/x GANTRY_SECRET=alpha -- '^init ERR_CONFIG .*/nonexistent/x'
try "same crc" pair GANTRY_CRC=1 GANTRY_CRC=1 -- '^transfer OK'
beside "crc differs" wait GANTRY_CRC=1 GANTRY_CRC=0 -- \
	'^accept ERR_SETTING .*GANTRY_CRC differs: 1 \(accepting side\) and 0 \(connecting side\)' \
	'^connect ERR_SETTING .*GANTRY_CRC differs: 1 \(accepting side\) and 0 \(connecting side\)'
try "crc differs, with a secret" pair "GANTRY_CRC=1;GANTRY_SECRET=alpha" "GANTRY_CRC=0;GANTRY_SECRET=alpha" -- \
	'^accept ERR_SETTING .*GANTRY_CRC differs: 1 \(accepting side\) and 0 \(connecting side\)' \
	'^connect ERR_SETTING .*GANTRY_CRC differs: 1 \(accepting side\) and 0 \(connecting side\)'
both="GANTRY_SECRET=alpha;GANTRY_ENCRYPT"
if [ $secrets = 1 ]; then
	try "both encrypt" pair "$both=require" "$both=on" -- '^transfer OK'
	try "one would encrypt" pair "$both=on" "$both=off" -- '^transfer OK'
	try "encryption is required, the connecting side has it off" pair "$both=require" "$both=off" -- \
		'^accept ERR_AUTH .*GANTRY_ENCRYPT=require on the accepting side, but the connecting side does not encrypt' \
		'^connect ERR_AUTH .*GANTRY_ENCRYPT=require on the accepting side, but the connecting side does not encrypt'
	try "encryption is required, the accepting side has it off" pair "$both=off" "$both=require" -- \
		'^accept ERR_AUTH .*GANTRY_ENCRYPT=require on the connecting side, but the accepting side does not encrypt' \
		'^connect ERR_AUTH .*GANTRY_ENCRYPT=require on the connecting side, but the accepting side does not encrypt'
	try "encryption with another secret" pair "$both=require" "GANTRY_SECRET=omega;GANTRY_ENCRYPT=require" -- \
		'^accept none, 1 strangers' '^connect ERR_AUTH .*GANTRY_SECRET differs'
	try "encryption without a secret" pair GANTRY_ENCRYPT=on "$both=on" -- '^init ERR_CONFIG .*GANTRY_ENCRYPT needs a secret'
fi
beside "version of the connecting side" hello -- \
	'^welcome protocol version differs: 7 \(accepting side\) and 8 \(connecting side\)' \
	'^accept ERR_VERSION .*elsewhere pid 4711.*protocol version differs: 7 \(accepting side\) and 8 \(connecting side\)'
beside "another version with the cookie, then the peer" stray -- '^accept OK'
GANTRY_SECRET=alpha beside "the same with a secret" stray -- '^accept OK'
try "version of the accepting side, which refuses" welcome 2 -- \
	'^connect ERR_VERSION .*protocol version differs: 8 \(accepting side\) and 7 \(connecting side\)'
try "version of the accepting side, which does not" welcome 0 -- \
	'^connect ERR_VERSION .*protocol version differs: 7 \(connecting side\) and 8 \(accepting side\)'
try "version of the accepting side, with a verdict of its own" welcome 99 -- '^connect ERR_VERSION .*version differs: 7 .*and 8 '
for job in "${jobs[@]}"; do
	wait "$job" || failed=1
done
exit $failed
