#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The public interface changes only together with its version, and what was built for the first version of it runs.
#
# tests/api/api.txt is the recorded list (tests/api/list.py) of what the present GANTRY_API_VERSION stands for, and
# tests/api/1.0-rc1/ has the headers of the first version. After a change that is meant, raise the number in
# include/gantry/version.h and run `BUILD_DIR=build tests/system/api.sh --record`.
#
# Catches: a member in the middle of a struct, a size that changed, a result code that another has become, a function
# or a symbol that went or takes something else; a library that reads or writes beyond what an older program has.
. "$(dirname "$0")/lib.sh"
need python3 cc nm
api=$SOURCE_DIR/tests/api first=$SOURCE_DIR/tests/api/1.0-rc1
library=$BUILD_DIR/lib/libgantry.so
list() { python3 "$api/list.py" "$@" || die "list.py $*"; }

# The symbols of a sanitizer's build are the same.
list "$SOURCE_DIR/include" "$library" >"$tmp/now" || exit 1
version=$(sed -n '1s/.* //p' "$tmp/now")
recorded=$(sed -n '1s/.* //p' "$api/api.txt" 2>/dev/null)

if [ "${1:-}" = --record ]; then
	if [ "$version" -le "${recorded:-0}" ] && ! cmp -s "$tmp/now" "$api/api.txt"; then
		die "the interface differs from that of version $recorded: raise GANTRY_API_VERSION in include/gantry/version.h"
	fi
	cp "$tmp/now" "$api/api.txt"
	echo "recorded: version $version, $(wc -l <"$api/api.txt") lines"
	exit 0
fi

# same LIST: is it the recorded one? Else says how it differs.
same() { diff "$api/api.txt" "$1" >"$tmp/diff"; }
if ! same "$tmp/now"; then
	cat "$tmp/diff"
	[ "$version" = "$recorded" ] && die "the interface has changed (>) and GANTRY_API_VERSION is $version still"
	die "version $version is not recorded: run tests/system/api.sh --record"
fi
echo "ok: $(wc -l <"$tmp/now") lines of version $version"

# Declared and exported is the same, but for what a transport's library defines.
diff <(sed -nE 's/^function .*\b(gantry_\w+)\(.*/\1/p' "$tmp/now" | grep -vx gantry_transport_init_v1 | sort) \
	<(sed -nE 's/^symbol (gantry_\w+)@@GANTRY_1$/\1/p' "$tmp/now" | sort) || die "declared (<) and exported (>) functions differ"
echo "ok: declared and exported"

# Of the first version: what its headers say; all functions that they declare were exported, but for that one.
list "$first/include" >"$tmp/first" || exit 1
sed -nE 's/^function .*\b(gantry_\w+)\(.*/symbol \1@@GANTRY_1/p' "$tmp/first" | grep -v gantry_transport_init_v1 | sort -u >"$tmp/symbols"
cat "$tmp/symbols" >>"$tmp/first"
python3 "$api/list.py" --keeps "$tmp/first" "$tmp/now" >"$tmp/lost" || { cat "$tmp/lost"; die "the above of the first version is gone"; }
echo "ok: what the first version had is there"

# planted WHAT FILE SED: with this change of a header the lists differ, or the header cannot be used at all.
planted() {
	rm -rf "$tmp/include"
	cp -r "$SOURCE_DIR/include" "$tmp/include"
	sed -i -E "$3" "$tmp/include/gantry/$2"
	! cmp -s "$SOURCE_DIR/include/gantry/$2" "$tmp/include/gantry/$2" || die "$1: nothing was planted"
	python3 "$api/list.py" "$tmp/include" "$library" >"$tmp/planted" 2>/dev/null || return 0
	! same "$tmp/planted" || die "not found: $1"
}
# breaks: the same, and programs of the first version would break.
breaks() {
	planted "$@"
	! python3 "$api/list.py" --keeps "$tmp/first" "$tmp/planted" >/dev/null || die "taken for harmless: $1"
}
planted "a member at the end of a struct" comm.h 's/^(\tint channels;.*)/\1\n\tint more;/'
python3 "$api/list.py" --keeps "$tmp/first" "$tmp/planted" || die "a member at the end breaks nobody"
planted "a new result code" result.h 's/(X\(ERR_DEVICE, .*\))$/\1 X(ERR_NEW, 25, "new")/'
python3 "$api/list.py" --keeps "$tmp/first" "$tmp/planted" || die "a new code breaks nobody"
breaks "a member in the middle" rx.h 's/^(\tenum gantry_rx_path path;)/\tint more, much;\n\1/'
breaks "a member of a struct that must not grow" rx.h 's/^(\tsize_t count;)/\1\n\tsize_t more;/'
breaks "a type of a member" comm.h 's/^\tuint64_t send_bytes, recv_bytes;/\tuint32_t send_bytes, recv_bytes;/'
breaks "a result code with another number" result.h 's/ERR_TIMEOUT,( +)11/ERR_TIMEOUT,\124/'
breaks "a parameter" rx.h 's/(gantry_rx_deregister\(struct gantry_rx \*rx, void \*ptr)\)/\1, int how)/'
breaks "a constant" api.h 's/GANTRY_WAIT_FOREVER \(-1\)/GANTRY_WAIT_FOREVER (-7)/'
sed '/^symbol gantry_comm_abort@/d' "$tmp/now" >"$tmp/planted"
! same "$tmp/planted" || die "not found: a symbol that went"
! python3 "$api/list.py" --keeps "$tmp/first" "$tmp/planted" >/dev/null || die "taken for harmless: a symbol that went"
echo "ok: planted changes are found"

[ -z "${GANTRY_SANITIZED:-}" ] || { echo "a program without sanitizers is not run with this library"; exit 0; }
# A program and a transport of the first version, with the library of today.
old="-std=c11 -Wall -Wextra -Werror -I$first/include"
cc $old -o "$tmp/client" "$api/client.c" -L"$BUILD_DIR/lib" -lgantry -lpthread "-Wl,-rpath,$BUILD_DIR/lib" || die "client.c does not build"
GANTRY_IFNAME=lo timeout 250 "$tmp/client" || die "a program of the first version: exit status $?"
cc $old -shared -fPIC -o "$tmp/libmailbox.so" "$SOURCE_DIR/tests/transport/mailbox.c" || die "mailbox.c does not build"
GANTRY_IFNAME=lo GANTRY_TRANSPORT_LIBS=$tmp/libmailbox.so GANTRY_TRANSPORT=mailbox timeout 250 "$tmp/client" mailbox ||
	die "a transport of the first version: exit status $?"
echo "ok: a program and a transport of the first version"
