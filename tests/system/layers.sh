#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# The layer rule of the design. Layers are a tree: a file includes headers of its own folder and of the folders that
# `below` lists for it. The parts of net, tcp/, devmem/ and emulated/, know each other by headers of net/ itself only.
#
# include/gantry may be included by all and includes only itself. src/*.c, the public face of libgantry.so, stands
# above all its layers. An include counts by the file it reaches, so neither "../" nor <> is a way around.
#
# In tools a folder is a command: it includes no header of another one, but for common/ and kernels/, which are for all.
#
# Before the tree is believed, the check is tried on copies of it with a planted violation each.
. "$(dirname "$0")/lib.sh"

# The first layer of a list is the branch on which a layer stands in the tree of README.md and docs/architecture.md, which
# scripts/layers.py draws from this table with the texts behind it.
declare -A below=(
	[include]=""                                                                 # public headers, C99, no CUDA needed
	[abi]=""                                                                     # NCCL's struct layouts, what its unpack kernels read
	[base]="abi"                                                                 # log, errors, parameters, mutexes, clock, JSON, HMAC
	[inet]="base abi"                                                            # NICs, addresses, listening ports, handshake, service thread
	[ctl]="inet base abi"                                                        # the control plane: bootstrap root, membership, exchange, liveness
	[device]="base abi"                                                          # kernels and where they run: host/ CPU threads, cuda/ GPUs, hip/ AMD's
	[net]="inet device base abi"                                                 # net.h, the contract of a network; loads foreign plugins
	[net/tcp]="net inet device base abi"                                         # the TCP network
	[net/devmem]="net inet device base abi"                                      # payload in device memory: devmem TCP of Linux
	[net/emulated]="net inet device base abi"                                    # the same from a NIC played in user space
	[reducer]="net inet device base abi"                                         # all-reduce through reducers instead of peers
	[rma]="net inet device base abi"                                             # remote memory access: put, get, signals in order
	[plugin]="rma reducer net inet device base abi"                              # libnccl-net-gantry.so: NCCL's tables
	[rx]="net/tcp net inet device base abi"                                      # gantry/rx.h: the pipeline
	[proxy]="net inet device base abi"                                           # the progress thread
	[transport]="proxy reducer net inet device base abi"                         # p2p, shm, net, collnet: between two ranks
	[coll]="device base abi"                                                     # algorithms, plans, the cost model
	[comm]="transport rma ctl coll proxy net inet device base abi"                   # gantry/comm.h: the communicator
	[nccl]="comm ctl coll transport proxy net inet device base abi"              # libnccl.so.2: NCCL's C API
	[face]="comm ctl reducer coll rx transport proxy net inet device base abi"   # what libgantry.so exports of its own
	[tools]="comm ctl net/devmem reducer coll rx transport proxy net inet device base abi" # the gantry command
)

# The functions that are called for every include answer in REPLY: a process each would take most of the time.

# The layer of a file, given relative to the root; empty for what is no part of the layers.
layer_of() {
	REPLY=
	case $1 in
	include/*) REPLY=include ;;
	tools/*) REPLY=tools ;;
	src/net/tcp/*) REPLY=net/tcp ;;
	src/net/devmem/*) REPLY=net/devmem ;;
	src/net/emulated/*) REPLY=net/emulated ;;
	src/*/*) REPLY=${1#src/}; REPLY=${REPLY%%/*} ;;
	src/*) REPLY=face ;;
	esac
}

# The folder of tools that a file is in; empty for main.c and the commands beside it.
room_of() {
	REPLY=${1#tools/}
	case $REPLY in
	*/*) REPLY=${REPLY%%/*} ;;
	*) REPLY= ;;
	esac
}

# Whether file $1 of tools may include $2 of tools.
room_allows() {
	local from
	room_of "$1"
	from=$REPLY
	room_of "$2"
	case $REPLY in
	"$from" | kernels) return 0 ;;
	common) [ "$from" != kernels ] ;;
	*) return 1 ;;
	esac
}

# Where an include written in file $2 leads, relative to root $1: the compiler's search, in its order.
reached() {
	local root=$1 file=$2 name=$3 folder
	for folder in "${file%/*}" include src tools; do
		[ -f "$root/$folder/$name" ] || continue
		REPLY=$folder/$name
		if [[ $name == *./* || -L $root/$REPLY ]]; then
			REPLY=$(realpath --relative-to="$root" "$root/$REPLY")
		fi
		return
	done
	REPLY=
}

# Prints a line for each violation in tree $1; fails if there is one or if there was nothing to look at.
check_tree() {
	local root bad=0 seen=0 file line name target from to
	root=$(realpath "$1")
	while IFS=: read -r file line name; do
		file=${file#"$root"/}
		reached "$root" "$file" "$name"
		target=$REPLY
		layer_of "$file"
		from=$REPLY
		layer_of "$target"
		to=$REPLY
		[ -n "$to" ] || continue # a system header or a generated one
		seen=$((seen + 1))
		if [ -z "${below[$from]+known}" ] || [ -z "${below[$to]+known}" ]; then
			echo "$file:$line includes $target: one of the folders is no layer of the table in layers.sh"
			bad=1
		elif [ "$from" != "$to" ] && [ "$to" != include ] && [[ " ${below[$from]} " != *" $to "* ]]; then
			echo "$file:$line includes $target: $to is not below $from"
			bad=1
		elif [ "$from$to" = toolstools ] && ! room_allows "$file" "$target"; then
			echo "$file:$line includes $target: a header of another command"
			bad=1
		fi
	done < <(grep -rnE --include=*.[ch] --include=*.cu --include=*.cuh --include=*.def --include=*.inc \
		'^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' "$root/include" "$root/src" "$root/tools" |
		sed -E 's/^([^:]+:[0-9]+):[^"<]*["<]([^">]+)[">].*/\1:\2/')
	[ "$seen" -gt 0 ] || { echo "no includes found under $root"; return 1; }
	return $bad
}

# A small tree with one header a layer, all of it allowed, and file $1 that includes $2.
plant() {
	local folder
	rm -rf "$tmp/tree"
	for folder in include/gantry src/abi src/base src/net src/net/tcp src/comm src/plugin tools tools/common tools/kernels tools/perf \
		tools/stall src/elsewhere; do
		mkdir -p "$tmp/tree/$folder"
		echo '/* empty */' >"$tmp/tree/$folder/h.h"
	done
	printf '#include "gantry/h.h"\n#include "base/h.h"\n#include "net/h.h"\n' >"$tmp/tree/src/net/tcp/fine.c"
	printf '#include <stdio.h>\n#include "h.h"\n#include "comm/h.h"\n' >"$tmp/tree/tools/fine.c"
	echo "#include $2" >"$tmp/tree/$1"
}

must_pass() {
	plant "$1" "$2"
	check_tree "$tmp/tree" || die "$2 in $1 is allowed, but the check refuses it"
}

must_fail() {
	plant "$1" "$2"
	! check_tree "$tmp/tree" >"$tmp/out" && grep -q "^$1:1 " "$tmp/out" && [ "$(wc -l <"$tmp/out")" = 1 ] ||
		die "the check does not see, or misnames, $2 in $1"
}

must_pass src/base/x.c '"abi/h.h"'
must_pass src/net/tcp/x.h '"../h.h" /* "comm/h.h" */'
must_pass src/x.c '"comm/h.h"'
must_pass tools/perf/x.c '"common/h.h"'
must_pass tools/perf/x.c '"perf/h.h"'
must_pass tools/common/x.h '"kernels/h.h"'
must_fail tools/perf/x.c '"stall/h.h"'
must_fail tools/x.c '"stall/h.h"'
must_fail tools/common/x.c '"perf/h.h"'
must_fail tools/kernels/x.h '"common/h.h"'
must_fail src/base/x.c '"net/h.h"'
must_fail src/base/x.h '"../net/h.h"'
must_fail src/base/x.def ' <net/tcp/h.h>'
must_fail src/abi/x.h '"base/h.h"'
must_fail src/net/tcp/x.cu '"comm/h.h"'
must_fail src/plugin/x.c '"../../tools/h.h"'
must_fail tools/x.c '"plugin/h.h"'
must_fail tools/x.c '"net/tcp/h.h"'
must_fail include/gantry/x.h '"base/h.h"'
must_fail tools/x.c '"elsewhere/h.h"'

# The real tree, with one violation more than it has: found beside all that is allowed.
cp -r "$SOURCE_DIR/include" "$SOURCE_DIR/src" "$SOURCE_DIR/tools" "$tmp/"
echo '#include "net/net.h"' >"$tmp/src/base/planted.c"
! check_tree "$tmp" >"$tmp/out" && grep -q '^src/base/planted.c:1 includes src/net/net.h' "$tmp/out" ||
	die "a violation planted in a copy of the tree was not found"

check_tree "$SOURCE_DIR" || exit 1
echo "the layer rule holds"
