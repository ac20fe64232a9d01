#!/usr/bin/env bash
# Installs the Debian packages that building and testing need, and only those that are missing.
#
#   scripts/setup.sh            install what is missing
#   scripts/setup.sh --check    say what is missing, change nothing
#
# A compiler, CMake and make are required. Everything else is optional: without it a feature is left
# out or a test is skipped, and either says so. So this fails only when a required tool is missing
# and cannot be installed; a machine without apt or without a network goes on with what it has.
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

as_root()
{
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		if [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi
	else
		echo "setup: not root, and there is no sudo" >&2
		return 1
	fi
}

apt()
{
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=2 -o Acquire::http::Timeout=30 \
		-o Acquire::https::Timeout=30 -o DPkg::Lock::Timeout=120 "$@"
}

# All at once is fast; one by one, so that one that does not exist here costs only itself.
install_packages()
{
	local log=$scratch/log p
	echo "setup: installing $*"
	if ! apt update >"$log" 2>&1; then
		echo "setup: the package lists could not be fetched: $(grep -m1 '^[EW]:' "$log" || tail -n1 "$log")" >&2
	fi
	if ! apt install --no-install-recommends "$@" >"$log" 2>&1; then
		for p in "$@"; do
			apt install --no-install-recommends "$p" >"$log" 2>&1 ||
				echo "setup: $p was not installed: $(grep -m1 '^E:' "$log" || tail -n1 "$log")" >&2
		done
	fi
}

report()
{
	while IFS=$'\t' read -r package purpose; do
		[ -z "$package" ] || echo "setup: $1: $package ($purpose)"
	done <<<"$2"
}

need=$(missing "$required")
want=$(missing "$optional")
if [ -z "$need$want" ]; then
	echo "setup: everything is there"
	exit 0
fi
if [ "${1:-}" != --check ]; then
	if command -v apt-get >/dev/null; then
		# shellcheck disable=SC2046 # package names are words
		install_packages $(printf '%s\n%s\n' "$need" "$want" | cut -f1 | tr ' ' '\n' | sort -u)
		# Older releases have no package that follows clang's version; ask for the one that fits.
		if command -v clang >/dev/null && ! clang_fuzzer; then
			install_packages "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
		fi
		need=$(missing "$required")
		want=$(missing "$optional")
	else
		echo "setup: there is no apt-get here, so nothing is installed"
	fi
fi
report "missing, optional" "$want"
report "missing, REQUIRED" "$need" >&2
if [ -n "$need" ]; then
	exit 1
fi
echo "setup: done"
