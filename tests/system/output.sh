#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Output that is lost, here on a disk that is full, is an error of every command: one message and exit status 1. And help is
# found wherever one looks for it.
# labels: beside
. "$(dirname "$0")/lib.sh"
clean_environment
export GANTRY_LOG=warn
[ -c /dev/full ] || skip "there is no /dev/full"

# Something for trace and stall to read.
few="-n 2 -w 1 --repeats 1"
GANTRY_TRACE=$tmp/trace-%r.jsonl timeout 280 "$gantry" perf sendrecv -b 8 -e 8 $few >"$tmp/out" 2>"$tmp/err" || die "no trace"
GANTRY_STALL_DIR=$tmp GANTRY_NET_DEVICE=7 timeout 280 "$gantry" perf sendrecv --transport net -b 8 -e 8 $few >"$tmp/out" 2>"$tmp/err" && die "no stall"
ls "$tmp"/trace-0.jsonl "$tmp"/stall-*-0.jsonl >/dev/null || die "no files to read"

# lost ARGUMENT...: exits with 0 when the output goes somewhere, and with 1 and one line when it is lost.
lost() {
	local rc
	expect 0 "$gantry" "$@"
	[ -s "$tmp/out" ] || die "gantry $* prints nothing"
	timeout 280 "$gantry" "$@" >/dev/full 2>"$tmp/err"
	rc=$?
	[ $rc = 1 ] || die "gantry $* with a full disk: exit status $rc, expected 1"
	[ "$(grep -c . "$tmp/err")" = 1 ] || die "gantry $* with a full disk: not one message"
	grep -q "^gantry: the output is not complete: standard output: " "$tmp/err" || die "gantry $*: another message"
	echo "ok: gantry $* sees that its output is lost"
}

lost --version
lost --help
lost help
lost help perf
lost perf help
lost perf help net
lost perf --help
for op in net sendrecv gin fifo rx unpack; do
	lost perf $op --help
done
for json in "" --json; do
	lost perf net -b 64 -e 64 $few $json
	lost perf sendrecv -b 8 -e 8 $few $json
	lost perf gin -b 8 -e 8 $few $json
	lost perf fifo -n 10 --repeats 1 $json
	lost perf rx -e 64k --repeats 1 $json
	lost perf unpack --check-only --kind unpack --shape odd --blocks 1 -e 64k $json
	lost check --list $json
	lost stall "$tmp" $json
done
lost doctor --params
lost doctor --params-markdown
lost trace "$tmp"/trace-*.jsonl
lost trace --summary "$tmp"/trace-*.jsonl
lost trace --json "$tmp"/trace-*.jsonl

# doctor's own verdict on this machine may be 1 as well.
"$gantry" doctor >/dev/full 2>"$tmp/err"
[ $? = 1 ] && grep -q "the output is not complete" "$tmp/err" || die "doctor with a full disk"

# A file of its own.
expect 1 "$gantry" trace -o /dev/full "$tmp"/trace-*.jsonl
like err "^gantry trace: /dev/full: No space left on device"

# A standard output that was closed: who prints nothing there does not mind.
"$gantry" trace -o "$tmp/picture" "$tmp"/trace-*.jsonl >&- 2>"$tmp/err" || die "trace -o without a standard output"
"$gantry" --version >&- 2>"$tmp/err" && die "--version without a standard output"

# Help.
"$gantry" perf --help >"$tmp/want" || die "perf --help"
for form in "perf help" "perf -h" "help perf"; do
	"$gantry" $form >"$tmp/out" 2>"$tmp/err" && cmp -s "$tmp/want" "$tmp/out" || die "gantry $form is not gantry perf --help"
done
"$gantry" perf net --help >"$tmp/want" || die "perf net --help"
for form in "perf help net" "help perf net"; do
	"$gantry" $form >"$tmp/out" 2>"$tmp/err" && cmp -s "$tmp/want" "$tmp/out" || die "gantry $form is not gantry perf net --help"
done
expect 2 "$gantry" perf help nett
has err "did you mean 'net'"
expect 2 "$gantry" perf hepl
has err "did you mean 'help'"
echo "ok: help is found"
