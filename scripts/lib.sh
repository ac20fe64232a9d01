# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Shared by the scripts of this folder: sourced, not run. Leaves the shell in the repository's root.
# JOBS, V and CC come from the environment, as the Makefile sets them.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
unset MAKEFLAGS MFLAGS MAKELEVEL # CMake's make is not a child of the one that called us
JOBS=${JOBS:-$(nproc 2>/dev/null || echo 2)}
TEST_JOBS=${TEST_JOBS:-3} # one more than CPUs where those are two: many tests wait
GCC=${CC:-$(command -v gcc || command -v cc || true)}
CLANG=$(command -v clang || true)
VERBOSE=()
[ "${V:-}" != 1 ] || VERBOSE=(--verbose)

header() { printf '\n==== %s ====\n' "$*"; }

# Runs a command with its output in a log; shows the log if it fails, or always with V=1.
quietly()
{
	local log=$1
	shift
	if [ "${V:-}" = 1 ]; then
		"$@" 2>&1 | tee "$log"
		return "${PIPESTATUS[0]}"
	fi
	if ! "$@" >"$log" 2>&1; then
		cat "$log"
		echo "failed: $*"
		return 1
	fi
}

# configure DIR CMAKE-OPTION...: once, for the compiler COMPILER, else $CC, else gcc, else cc. Nothing is left of a configuration that failed or was interrupted: CMake would
# go on with what it had found until then.
configure()
{
	local dir=$1 tool log status=0
	shift
	if [ -f "$dir/Makefile" ] || [ -f "$dir/build.ninja" ]; then
		return 0
	fi
	for tool in cmake make "${COMPILER:-${GCC:-gcc}}"; do
		command -v "$tool" >/dev/null || { echo "$tool is not installed: scripts/setup.sh run does that" >&2; return 1; }
	done
	rm -rf "$dir/CMakeCache.txt" "$dir/CMakeFiles"
	log=$(mktemp)
	quietly "$log" cmake -S . -B "$dir" -DCMAKE_C_COMPILER="${COMPILER:-$GCC}" "$@" || status=1
	if [ $status != 0 ]; then
		rm -rf "$dir/CMakeCache.txt" "$dir/CMakeFiles"
		rmdir "$dir" 2>/dev/null || true
	elif [ "${V:-}" != 1 ]; then
		grep -E '^-- (OpenSSL|hwloc|libmnl|CUDA)' "$log" || true # what this build can do
	fi
	rm -f "$log"
	return $status
}

# Of what `cmake --build` prints this shows how far it is, and nothing where there is nothing to do. Warnings and errors
# go past it, on standard error.
show_progress()
{
	local line percent next=0 shown=
	while IFS= read -r line; do
		if [[ $line =~ ^\[\ *([0-9]+)%\]\ (Building|Linking|Compiling) ]]; then
			percent=${BASH_REMATCH[1]}
			if [ -t 1 ]; then
				printf '\rbuilding %s: %d%%' "$1" "$percent"
				shown=1
			elif [ "$percent" -ge $next ]; then
				echo "building $1: $percent%"
				next=$((percent + 20))
			fi
		fi
	done
	[ -z "$shown" ] || echo
}

# build DIR TARGET CMAKE-OPTION...: configures once, then builds.
build()
{
	local dir=$1 target=$2
	shift 2
	configure "$dir" "$@" || return 1
	if [ "${V:-}" = 1 ]; then
		cmake --build "$dir" --target "$target" --parallel "$JOBS" --verbose
		return
	fi
	cmake --build "$dir" --target "$target" --parallel "$JOBS" | show_progress "$dir"
	return "${PIPESTATUS[0]}"
}

# ctest_in DIR CTEST-OPTION...: runs the tests built there; ends with the list of what was left out and why.
ctest_in()
{
	local dir=$1 status=0
	shift
	rm -f "$dir/junit.xml"
	ctest --test-dir "$dir" --no-tests=error --output-junit junit.xml --test-output-size-passed 1000000 "$@" || status=$?
	scripts/show-skips.sh "$dir/junit.xml"
	return $status
}

# can_build COMPILER -fsanitize=...: whether such a program builds and starts here (a runtime may be missing); if not,
# prints why.
can_build()
{
	local dir status=0
	dir=$(mktemp -d)
	echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n > 1u << 30; }' >"$dir/a.c"
	case $2 in *fuzzer*) ;; *) echo 'int main(void) { return 0; }' >>"$dir/a.c" ;; esac
	"$1" -Wno-missing-prototypes "$2" "$dir/a.c" -o "$dir/a" >"$dir/why" 2>&1 || status=1
	[ $status != 0 ] || ASAN_OPTIONS=detect_leaks=0 "$dir/a" -runs=1 >"$dir/why" 2>&1 || status=1
	[ $status = 0 ] || head -n2 "$dir/why"
	rm -rf "$dir"
	return $status
}
