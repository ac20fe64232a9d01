#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow idle
# time limit: 1800
# The installed tree is enough to build upon: the examples, outside of the source tree, by pkg-config and by
# find_package; the versions agree; headers, man pages and docs are there, and no link between pages is dead; `make uninstall` leaves nothing.
. "$(dirname "$0")/lib.sh"
[ -z "${GANTRY_SANITIZED:-}" ] || skip "what is built with a sanitizer is not for programs built without"
need cmake cc pkg-config
# deb.sh may run beside this: the records of what is installed are one per build folder.
exec 9>"$BUILD_DIR/installing.lock" && flock 9
at_exit() { cd / && cmake -DGANTRY_LIBNCCL_NET=OFF "$BUILD_DIR" >/dev/null 2>&1; uninstall; uninstall DESTDIR="$tmp/stage"; } # the records in BUILD_DIR go too
unset DESTDIR LD_LIBRARY_PATH PKG_CONFIG_PATH CMAKE_PREFIX_PATH
prefix=$tmp/prefix doc=$tmp/prefix/share/doc/gantry

# install [SETTING]...: with a linker's cache that $tmp/bin/ldconfig plays.
install() { env PATH="$tmp/bin:$PATH" "$@" cmake --install "$BUILD_DIR" --prefix "$prefix" >"$tmp/log" 2>&1 || die "install $*"; }
uninstall() { env "$@" cmake -Dbuild="$BUILD_DIR" -Dprefix="$prefix" -P "$SOURCE_DIR/cmake/uninstall.cmake" >"$tmp/log" 2>&1; }
hint="The linker's cache does not have $prefix/lib/libgantry.so.0 yet: run ldconfig as root."
hinted() { grep -qxF "$hint" "$tmp/log"; }
# linker SEARCHED CACHED: what it says from now on.
linker() {
	printf '#!/bin/sh\nif [ "$1" = -p ]; then printf "%%b" "%s"; else printf "%%b" "%s"; fi\n' "$2" "$1" >"$tmp/bin/ldconfig"
	chmod +x "$tmp/bin/ldconfig"
}

# The hint about ldconfig: only where the linker looks for the library and does not find it yet.
mkdir "$tmp/bin"
cached="\tlibgantry.so.0 (libc6) => $prefix/lib/libgantry.so.0\n\tlibnccl-net-gantry.so (libc6) => $prefix/lib/libnccl-net-gantry.so\n"
linker "/elsewhere: (from <builtin>:0)\n" ""
install
hinted && die "a hint where the linker does not look"
linker "/lib: (from <builtin>:0)\n$prefix/lib: (from /etc/ld.so.conf:1)\n" ""
install DESTDIR="$tmp/stage"
hinted && die "a hint for another root"
install
hinted || die "no hint where the cache is old"
linker "$prefix/lib: (from /etc/ld.so.conf:1)\n" "$cached"
install
hinted && die "a hint where the cache is fresh"
echo "ok: the hint about ldconfig"

# All that the tree has for users is there.
for file in "$SOURCE_DIR"/man/*; do
	[ -s "$prefix/share/man/man${file##*.}/${file##*/}" ] || die "man page ${file##*/} is not installed"
done
for function in $(sed -nE 's/^\t\t(gantry_[a-z_]+);$/\1/p' "$SOURCE_DIR/src/gantry.map"); do
	page=$(sed -n 's/^\.so //p' "$prefix/share/man/man3/$function.3") && grep -q "$function(" "$prefix/share/man/$page" ||
		die "man $function does not lead to its page"
done
for file in README.md CHANGELOG.md CONTRIBUTING.md LICENSE $(cd "$SOURCE_DIR" && echo docs/*.md examples/*); do
	cmp -s "$SOURCE_DIR/$file" "$doc/$file" || die "$file is not installed"
done
for file in bin/gantry lib/libnccl-net-gantry.so lib/libgantry-emulated.so lib/libgantry.so lib/gantry-nccl/libnccl.so.2; do
	[ -e "$prefix/$file" ] || die "$file is not installed"
done
[ ! -e "$prefix/lib/gantry" ] || die "lib/gantry is what NCCL_NET_PLUGIN=gantry opens first"
[ ! -L "$prefix/lib/libnccl-net-gantry.so" ] || die "the plugin's name is not plain"
[ ! -e "$prefix/lib/libnccl-net.so" ] || die "what NCCL opens by itself is installed without being asked for"
echo "ok: programs, libraries, man pages, docs"

# With the options NCCL finds the plugin without NCCL_NET_PLUGIN, and RCCL under a name of its own; uninstalling takes the links too.
links="libnccl-net.so librccl-net-gantry.so"
[ ! -e "$prefix/lib/librccl-net-gantry.so" ] || die "a link for RCCL is installed without being asked for"
cmake -DGANTRY_LIBNCCL_NET=ON -DGANTRY_LIBRCCL_NET=ON "$BUILD_DIR" >"$tmp/log" 2>&1 || die "GANTRY_LIBNCCL_NET, GANTRY_LIBRCCL_NET"
install
for link in $links; do
	[ "$(readlink "$prefix/lib/$link")" = libnccl-net-gantry.so ] || die "$link does not lead to the plugin"
	[ "$prefix/lib/$link" -ef "$prefix/lib/libnccl-net-gantry.so" ] || die "$link is a dead link"
done
uninstall
for link in $links; do
	[ ! -L "$prefix/lib/$link" ] || die "$link is still there"
done
cmake -DGANTRY_LIBNCCL_NET=OFF -DGANTRY_LIBRCCL_NET=OFF "$BUILD_DIR" >"$tmp/log" 2>&1 || die "GANTRY_LIBNCCL_NET=OFF"
install
echo "ok: libnccl-net.so, librccl-net-gantry.so"

# Links between the installed pages, and to files beside them, lead somewhere.
links=0 page=
while IFS=: read -r page link; do
	link=${link#*](}
	case $link in '' | *://* | mailto:*) continue ;; esac
	links=$((links + 1))
	[ -e "${page%/*}/$link" ] || fail "${page#"$doc/"}: the link to $link is dead"
done < <(grep -roE --include='*.md' '\]\([^)# ]+' "$doc")
[ $failed = 0 ] && [ $links -gt 100 ] || die "dead links, or too few of them were found: $links"
echo "ok: $links links"

# Each header by itself, in the strictest dialects that it promises.
for header in "$prefix"/include/gantry/*.h; do
	printf '#include <gantry/%s>\nint one;\n' "${header##*/}" >"$tmp/one.c"
	cc -std=c99 -pedantic-errors -Wall -Wextra -Werror -I"$prefix/include" -fsyntax-only "$tmp/one.c" 2>"$tmp/log" ||
		die "${header##*/} is not C99"
	! command -v c++ >/dev/null || c++ -x c++ -Wall -Werror -I"$prefix/include" -fsyntax-only "$tmp/one.c" 2>"$tmp/log" ||
		die "${header##*/} is not C++"
done
echo "ok: headers"

# checked PROGRAM...: needs the library by its versioned name, runs, and has every byte right.
checked() {
	for program; do
		ldd "$program" | grep -qF "libgantry.so.0 => $prefix/lib/libgantry.so.0 " || die "$program does not need $prefix's libgantry.so.0"
		GANTRY_IFNAME=lo timeout 280 "$program" 300001 >"$tmp/log" 2>&1 || die "$program gives $?"
		grep -qxF "0 wrong" "$tmp/log" || die "$program has bytes that are wrong"
	done
}
mkdir "$tmp/user"
cd "$tmp/user" || die "no folder"
cp "$doc"/examples/* .
cat >version.c <<'END'
#include <stdio.h>
#include <string.h>
#include <gantry/gantry.h>
int main(void)
{
	printf("%d.%d.%d\n", GANTRY_VERSION_MAJOR, GANTRY_VERSION_MINOR, GANTRY_VERSION_PATCH);
	return strncmp(gantry_version(), GANTRY_VERSION " (", strlen(GANTRY_VERSION " (")) != 0;
}
END

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
read -ra flags <<<"$(pkg-config --cflags --libs gantry)"
for program in sendrecv all_reduce rx_tensor version; do
	cc -Wall -Wextra -Werror $program.c "${flags[@]}" -o "$tmp/$program" >"$tmp/log" 2>&1 || die "$program by pkg-config"
done
(export LD_LIBRARY_PATH=$prefix/lib && checked "$tmp/sendrecv" "$tmp/all_reduce" "$tmp/rx_tensor") || exit 1
version=$(LD_LIBRARY_PATH=$prefix/lib "$tmp/version") || die "header and library are of different versions"
[ "$(pkg-config --modversion gantry)" = "$version" ] || die "gantry.pc is not of version $version"
[ "$("$prefix/bin/gantry" --version | cut -d' ' -f2)" = "$version" ] || die "the command is not of version $version"
[ "$(readlink -f "$prefix/lib/libgantry.so")" = "$(readlink -f "$prefix")/lib/libgantry.so.$version" ] || die "libgantry.so is not $version"
echo "ok: pkg-config"

cat >CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.16)
project(user C)
find_package(gantry ${version%.*} REQUIRED)
foreach(name sendrecv all_reduce rx_tensor)
  add_executable(\${name} \${name}.c)
  target_link_libraries(\${name} PRIVATE gantry::gantry)
endforeach()
foreach(other 99.0 ${version%%.*}.99)
  find_package(gantry \${other} QUIET)
  if(gantry_FOUND)
    message(FATAL_ERROR "version ${version} passes for \${other}")
  endif()
endforeach()
END
cmake -S . -B build -DCMAKE_PREFIX_PATH="$prefix" >"$tmp/log" 2>&1 || die "find_package"
cmake --build build >"$tmp/log" 2>&1 || die "the examples by find_package"
checked build/sendrecv build/all_reduce build/rx_tensor
echo "ok: find_package"

# What was there before stays, whatever the folder.
cd /
touch "$prefix/lib/mine"
uninstall || die "uninstall"
[ "$(cd "$prefix" && find . | sort | xargs)" = ". ./lib ./lib/mine" ] || die "left behind: $(find "$prefix")"
rm "$prefix/lib/mine"
install
uninstall || die "uninstall again"
[ "$(cd "$prefix" && find . | sort | xargs)" = ". ./lib" ] || die "left behind: $(find "$prefix")"
uninstall DESTDIR="$tmp/stage" || die "uninstall from another root"
[ ! -e "$tmp/stage" ] || die "left behind: $(find "$tmp/stage")"
uninstall && grep -q "nothing to uninstall" "$tmp/log" || die "uninstall once too often"
echo "ok: uninstall"
