#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# libnccl.so.2 can be taken for NCCL's: its name, every function of the manifest as weak ncclX and strong pncclX at one
# address, nothing else, no versions of symbols, and no library needed but libc. Manifest and prototypes are the same list.
# Catches: a name that is missing (a program would not start), a symbol of ours that gets out (it would clash with others),
# a call of a library that lazy.c does not know.
. "$(dirname "$0")/lib.sh"
lib=$BUILD_DIR/lib/libnccl.so.2 manifest=$SOURCE_DIR/src/nccl/manifest
[ -f "$lib" ] || skip "no $lib"
need nm readelf

[ "$(readelf -d "$lib" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')" = libnccl.so.2 ] || fail "another SONAME"
# Under sanitizers their own libraries are needed too.
if [ -z "${GANTRY_SANITIZED:-}" ]; then
	readelf -d "$lib" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc|libm|libpthread|libdl)\.so\.[0-9]+$|^ld-linux' >"$tmp/needed"
	[ ! -s "$tmp/needed" ] || fail "needs $(xargs <"$tmp/needed"): src/nccl/lazy.c lacks a function of it"
fi
! readelf -V "$lib" 2>/dev/null | grep -q "Version definition section" || fail "its symbols have versions"

grep -v '^#' "$manifest" >"$tmp/list"
awk 'NF < 3 || $2 !~ /^(full|hint|refused)$/ || $3 !~ /^2\.[0-9]+$/ { print; bad = 1 } END { exit bad }' "$tmp/list" || die "lines of the manifest that make no sense"
[ "$(wc -l <"$tmp/list")" -ge 91 ] || die "the manifest has $(wc -l <"$tmp/list") names"
diff <(awk '{ print $1, toupper($2) }' "$tmp/list" | sort) \
	<(sed -nE 's/^API\(([A-Z]+), [^,]+, ([A-Za-z0-9]+),.*/\2 \1/p' "$SOURCE_DIR/src/nccl/api.def" | sort) ||
	fail "manifest (<) and api.def (>) differ"

nm -D --defined-only "$lib" | awk '{ print $2, $3 }' | sort -k2 >"$tmp/found"
awk '{ print "W nccl" $1; print "T pnccl" $1 }' "$tmp/list" | sort -k2 >"$tmp/expected"
diff "$tmp/expected" "$tmp/found" || fail "exports: expected (<), found (>)"
nm -D --defined-only "$lib" | awk '{ sub(/^p?nccl/, "", $3); n[$1 " " $3]++ } END { for (k in n) if (n[k] != 2) { print k; exit 1 } }' ||
	fail "ncclX and pncclX are different functions"

echo "$(wc -l <"$tmp/list") functions, each twice, and nothing else"
exit $failed
