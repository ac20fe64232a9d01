#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The plugin holds what it calls: nothing of the emulated NIC, of host streams, of kernels. And the emulated NIC, a library
# of its own, is found beside the plugin, behind a link, or where libraries are looked for; else both places are named.
# Catches: a plugin that is made of all objects again, a table that drags streams in, an error that does not help.
. "$(dirname "$0")/lib.sh"
lib=$BUILD_DIR/lib
plugin=$lib/libnccl-net-gantry.so
for file in "$plugin" "$lib/libgantry.so" "$lib/libgantry-emulated.so"; do
	[ -f "$file" ] || skip "no $file"
done
need nm

# What must not be in it, as symbols; each has to be found where it belongs, or the pattern has gone stale.
absent() {
	local what=$1 pattern=$2 home=$3
	nm "$lib/$home" | grep -qE " [A-Za-z] ($pattern)$" || fail "no symbol $pattern in $home: what of $what is looked for?"
	! nm "$plugin" | grep -E " [A-Za-z] ($pattern)$" || fail "the plugin has these symbols of $what"
}
if nm "$plugin" 2>&1 | grep -q ' gantry_'; then
	absent "the emulated NIC" 'emu_[a-z_]+|emulated_ops' libgantry-emulated.so
	absent "host streams" 'gantry_host_(stream|event|enqueue|launch|run|helper)[a-z_]*' libgantry.so
	absent "kernels on the host" 'gantry_kernel_[a-z0-9_]+' libgantry.so
	absent "kernels for GPUs" 'register_kernels|find_kernel' libgantry.so
	absent "the loader of plugins" 'gantry_loader_[a-z_]+' libgantry.so
else
	echo "the plugin is stripped: no look at its symbols"
fi
# The kernels themselves, by the first bytes of a fatbin: in libgantry.so where nvcc was found, never in the plugin.
has_fatbin() { LC_ALL=C grep -qaP '\x50\xed\x55\xba' "$1"; }
if nm "$lib/libgantry.so" 2>/dev/null | grep -q gantry_fatbin_product; then
	has_fatbin "$lib/libgantry.so" || fail "libgantry.so has kernels that do not begin as they should"
	has_fatbin "$plugin" && fail "the plugin has the kernels"
fi

# moves NAME PLUGIN [SETTING...]: the emulated NIC is found and every byte comes.
moves() {
	local name=$1 file=$2
	shift 2
	if env GANTRY_UNPACK=emulated GANTRY_IFNAME=lo NCCL_PAT_ENABLE=0 GANTRY_LOG=debug "$@" timeout 200 "$gantry" perf net \
		--plugin "$file" -b 64k -e 64k -n 10 --repeats 1 --timeout 100s >"$tmp/out" 2>&1 && grep -q 'wrong bytes: 0; OK' "$tmp/out"; then
		echo "ok: $name"
	else
		cat "$tmp/out"
		fail "$name"
	fi
}
mkdir "$tmp/both" "$tmp/alone" "$tmp/link"
cp "$plugin" "$lib/libgantry-emulated.so" "$tmp/both"
cp "$plugin" "$tmp/alone"
ln -s "$plugin" "$tmp/link/libnccl-net-linked.so"
moves "beside the plugin" "$tmp/both/libnccl-net-gantry.so"
grep -q "emulated NIC: $tmp/both/libgantry-emulated.so" "$tmp/out" || fail "another library than the one beside it"
moves "beside the file that a link leads to" "$tmp/link/libnccl-net-linked.so"
moves "by the search of libraries" "$tmp/alone/libnccl-net-gantry.so" LD_LIBRARY_PATH="$lib"

GANTRY_UNPACK=emulated GANTRY_IFNAME=lo "$gantry" perf net --plugin "$tmp/alone/libnccl-net-gantry.so" -b 8 -e 8 -n 1 \
	--timeout 50s >"$tmp/out" 2>&1 && fail "it worked without the library"
for words in "$tmp/alone/libgantry-emulated.so: cannot open" "libgantry-emulated.so: cannot open shared object file" "neither next to"; do
	grep -qF "$words" "$tmp/out" && continue
	cat "$tmp/out"
	fail "no word of '$words'"
done
exit $failed
