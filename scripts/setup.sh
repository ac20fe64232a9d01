#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that a target needs, and only those that are missing.
#
#   scripts/setup.sh run        a compiler, CMake and make: all that building and running needs
#   scripts/setup.sh test       those, and what features and tests can use
#   scripts/setup.sh [run|test] --check    say what is missing, change nothing
#
# Everything but compiler, CMake and make is optional: without it a feature is left out or a test is skipped, and either
# says so. So this fails only when a required tool is missing and cannot be installed; a machine without apt, without a
# network or without root goes on with what it has, and the commands that would install the rest are printed.
set -euo pipefail

# how to see that it is there | package | what it is for
required='
c_compiler          | gcc libc6-dev | the compiler
command cmake       | cmake         | the build
command make        | make          | the build
'
optional='
header openssl/hmac.h | libssl-dev    | authenticated connections (GANTRY_SECRET)
header hwloc.h        | libhwloc-dev  | pinning the progress thread (GANTRY_PROXY_PIN)
header libmnl/libmnl.h | libmnl-dev   | devmem TCP (GANTRY_UNPACK=kernel)
command pkg-config    | pkg-config    | finding OpenSSL
command git           | git           | the commit in version and bench output
command ip            | iproute2      | tests in network namespaces
command tc            | iproute2      | tests with slowed links
command strace        | strace        | tests that count system calls
command ps            | procps        | tests that look at processes
command spin          | spin          | tests that check the models of the protocols
command python3       | python3       | tests that read JSON or play a stranger
command groff         | groff-base    | the test of the man pages
command man           | man-db        | the test of the man pages
command dpkg-shlibdeps | dpkg-dev     | make deb, and its test
command file          | file          | make deb, and its test
command debootstrap   | debootstrap   | the test of the first commands on a bare machine
command clang         | clang         | the second compiler of the suite
clang_fuzzer          | libclang-rt-dev | fuzz targets
command clang-format  | clang-format  | make format
'

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
c_compiler() { echo 'int main(void){return 0;}' | cc -include stdio.h -x c - -o "$scratch/a" 2>/dev/null; }
header() { echo "#include <$1>" | cc -E -x c - >/dev/null 2>&1; }
command_there() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }
clang_fuzzer()
{
	command -v clang >/dev/null || return 1
	echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n){return d && n > 1u << 30;}' |
		clang -fsanitize=fuzzer,address,undefined -x c - -o "$scratch/a" 2>/dev/null
}

# The packages of a list whose check fails, as "package<TAB>purpose" lines.
missing()
{
	local check package purpose
	while IFS='|' read -r check package purpose; do
		[ -n "${check// /}" ] || continue
		read -r package <<<"$package" # without the blanks around it
		read -r purpose <<<"$purpose"
		# shellcheck disable=SC2086 # a check is a word and its argument
		set -- $check
		case $1 in
		command) command_there "$2" ;;
		header) header "$2" ;;
		*) "$1" ;;
		esac || printf '%s\t%s\n' "$package" "$purpose"
	done <<<"$1" | sort -u
}

# How to become root: nothing, "sudo", or "no".
root_by()
{
	if [ "$(id -u)" = 0 ]; then
		return
	elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
		echo sudo
	else
		echo no
	fi
}

# Runs apt-get with its output in $scratch/log, and shows that it is at work.
apt()
{
	local status=0 start=$SECONDS pid
	# shellcheck disable=SC2086 # nothing, or sudo
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=2 -o Acquire::http::Timeout=30 \
		-o Acquire::https::Timeout=30 -o DPkg::Lock::Timeout=120 "$@" >"$scratch/log" 2>&1 &
	pid=$!
	while sleep 1 && kill -0 $pid 2>/dev/null; do
		[ $(((SECONDS - start) % 5)) != 0 ] || printf '.'
		[ $(((SECONDS - start) % 60)) != 0 ] || printf ' %d s ' $((SECONDS - start))
	done
	wait $pid || status=$?
	return $status
}

why() { grep -m1 '^[EW]:' "$scratch/log" || tail -n1 "$scratch/log"; }

# All at once is fast; one by one, so that one that does not exist here costs only itself.
install_packages()
{
	local p failed=()
	printf 'setup: installing %s ' "$*"
	apt update || failed+=("the package lists could not be fetched: $(why)")
	if ! apt install --no-install-recommends "$@"; then
		for p in "$@"; do
			apt install --no-install-recommends "$p" || failed+=("$p was not installed: $(why)")
		done
	fi
	echo
	for p in "${failed[@]}"; do
		echo "setup: $p" >&2
	done
}

packages() { cut -f1 <<<"$1" | tr ' ' '\n' | sort -u | xargs; }

# report WORD LIST: what is missing, what for, and one line that installs it.
report()
{
	local package purpose
	[ -n "$2" ] || return 0
	while IFS=$'\t' read -r package purpose; do
		echo "setup: missing, $1: $package ($purpose)"
	done <<<"$2"
	if command -v apt-get >/dev/null; then
		echo "setup: what is $1 is installed, as root, by: apt-get install --no-install-recommends -y $(packages "$2")"
	fi
}

target=test check=
for word in "$@"; do
	case $word in
	run | test) target=$word ;;
	--check) check=1 ;;
	*)
		echo "usage: scripts/setup.sh [run|test] [--check]" >&2
		exit 2
		;;
	esac
done
[ $target = test ] || optional=
find_missing()
{
	need=$(missing "$required")
	want=$(missing "$optional")
}
find_missing
[ -n "$need$want" ] || exit 0
sudo=$(root_by)
if [ -z "$check" ] && command -v apt-get >/dev/null && [ "$sudo" != no ]; then
	# shellcheck disable=SC2046 # package names are words
	install_packages $(packages "$need"$'\n'"$want")
	# Older releases have no package that follows clang's version; ask for the one that fits.
	if [ $target = test ] && command -v clang >/dev/null && ! clang_fuzzer; then
		install_packages "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
	fi
	find_missing
fi
report optional "$want"
report REQUIRED "$need" >&2
[ -z "$need" ]
