#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# The Makefile and its scripts, as somebody meets them who builds for the first time.
# Catches: a build folder that a failed configuration leaves half made, noise where there is nothing to do, a set-up that
# installs or asks for more than the target needs, an apt-get command that cannot be pasted, a build that stays without what
# was installed after it was configured.
. "$(dirname "$0")/lib.sh"
cd "$SOURCE_DIR" || exit 1
unset MAKEFLAGS MFLAGS MAKELEVEL CC BUILD CMAKE_ARGS V

# A compiler that is not there, and one that makes nothing: an error that names it, and no folder.
for cc in /nowhere/cc false; do
	make BUILD="$tmp/b" CC=$cc >"$tmp/out" 2>&1 && fail "make CC=$cc succeeds"
	grep -q "$cc" "$tmp/out" || fail "make CC=$cc does not name the compiler: $(cat "$tmp/out")"
	[ ! -e "$tmp/b" ] || fail "make CC=$cc leaves $(ls "$tmp/b")"
done

# What an interrupted configuration leaves is not taken for a whole one: CMake's cache says what it found, or did not.
if command -v cmake >/dev/null; then
	mkdir -p "$tmp/b/CMakeFiles"
	echo 'CMAKE_C_COMPILER:FILEPATH=' >"$tmp/b/CMakeCache.txt"
	(. scripts/lib.sh && configure "$tmp/b" -DGANTRY_CUDA=OFF) >"$tmp/out" 2>&1 ||
		fail "a half-made folder is in the way: $(cat "$tmp/out")"
	grep -q '^-- OpenSSL' "$tmp/out" || fail "configuring does not say what this build can do: $(cat "$tmp/out")"
fi

# What is installed after the first build is found by the next one, and only then does that configure again. The machine here
# is a folder, in which CMake looks for headers and libraries and finds none at first.
if command -v cmake >/dev/null; then
	mkdir -p "$tmp/root/usr/include" "$tmp/root/usr/lib"
	build_there()
	{
		(. scripts/lib.sh && build "$tmp/c" gantry_gone -DGANTRY_CUDA=OFF -DCMAKE_FIND_ROOT_PATH="$tmp/root" \
			-DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY) >"$tmp/out" 2>&1 ||
			fail "building where there is no library: $(cat "$tmp/out")"
	}
	has_hwloc() { grep -rqF 'GANTRY_HAVE_HWLOC=1' "$tmp/c/CMakeFiles/gantry_net.dir"; }
	build_there
	for part in OpenSSL hwloc libmnl; do grep -q "^-- $part: not found" "$tmp/out" || fail "$part is found in an empty folder: $(cat "$tmp/out")"; done
	has_hwloc && fail "a build without hwloc has it"
	made=$(stat -c %Y%y "$tmp/c/CMakeFiles/cmake.check_cache")
	build_there
	[ "$made" = "$(stat -c %Y%y "$tmp/c/CMakeFiles/cmake.check_cache")" ] || fail "a build with nothing new configures again"
	touch "$tmp/root/usr/include/hwloc.h" "$tmp/root/usr/lib/libhwloc.so"
	build_there
	has_hwloc || fail "a build does not find what was installed after the first one: $(cat "$tmp/out")"
fi

# Nothing to do, nothing to say.
if [ -f "$BUILD_DIR/Makefile" ]; then
	out=$(make BUILD="$BUILD_DIR" 2>&1) || fail "make in a built tree: status $?"
	[ -z "$out" ] || fail "make with nothing to do says: $out"
fi

# setup without root: nothing is installed, one line says what would do it. The machine in PATH has no CMake, no sudo.
mkdir "$tmp/bin"
for tool in bash env cat cut echo grep head mktemp rm sed sleep sort tail tr xargs cc gcc make ld as; do
	path=$(type -P $tool) && ln -s "$path" "$tmp/bin/$tool"
done
printf '#!/bin/bash\necho 1000\n' >"$tmp/bin/id"
printf '#!/bin/bash\necho "apt-get was called: $*" >&2; exit 1\n' >"$tmp/bin/apt-get"
chmod +x "$tmp/bin/id" "$tmp/bin/apt-get"
setup() { PATH=$tmp/bin bash scripts/setup.sh "$@" >"$tmp/out" 2>&1; }
lines() { grep -c "apt-get install" "$tmp/out"; }

setup run && fail "setup run without CMake succeeds"
[ "$(lines)" = 1 ] && grep -q 'apt-get install --no-install-recommends -y cmake$' "$tmp/out" ||
	fail "setup run does not give one command for CMake alone: $(cat "$tmp/out")"
setup test && fail "setup test without CMake succeeds"
[ "$(lines)" = 2 ] || fail "setup test does not give two commands, for what is required and what is optional: $(cat "$tmp/out")"
grep -q 'apt-get was called' "$tmp/out" && fail "setup calls apt-get without root"
printf '#!/bin/bash\nexit 0\n' >"$tmp/bin/cmake"
chmod +x "$tmp/bin/cmake"
setup run || fail "setup run fails where all is there: $(cat "$tmp/out")"
[ ! -s "$tmp/out" ] || fail "setup run says something where all is there: $(cat "$tmp/out")"
setup sideways && fail "setup takes any word"

[ $failed = 0 ] && echo "configuring, building and set-up are well behaved"
exit $failed
