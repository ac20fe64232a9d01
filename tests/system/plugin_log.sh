#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# What users of stock NCCL read of the plugin with NCCL_DEBUG=INFO and nothing else set: NCCL then shows what carries its
# subsystems INIT, BOOTSTRAP or ENV. One line about interfaces, one with version, lanes, tuning and security, one
# about UNPACK; no warning. And NCCL, which takes the plugin's name for that of a file too, finds no other file of this name.
. "$(dirname "$0")/lib.sh"
need python3
clean_environment
[ -z "${GANTRY_SANITIZED:-}" ] || skip "python loads no library with sanitizers"
export GANTRY_IFNAME=lo NCCL_DEBUG=INFO
lib=$BUILD_DIR/lib

# said VARIABLE=VALUE...: level and text of what NCCL would show, in $tmp/out.
said() {
	timeout 60 env "$@" python3 - "$lib/libnccl-net-gantry.so" >"$tmp/out" 2>"$tmp/err" <<'END' || die "$*: init"
import ctypes as c, sys
WARN, INFO, SHOWN = 2, 3, 0x1 | 0x100 | 0x1000  # NCCL's levels, and INIT, ENV, BOOTSTRAP of its subsystems
LOG = c.CFUNCTYPE(None, c.c_int, c.c_ulong, c.c_char_p, c.c_int, c.c_char_p, c.c_char_p)

@LOG
def log(level, flags, file, line, fmt, text):
    if level <= WARN or (level == INFO and flags & SHOWN):
        print("WARN" if level <= WARN else "INFO", fmt.decode().replace("%s", text.decode()), flush=True)

class Net(c.Structure):  # the first two entries of all versions
    _fields_ = [("name", c.c_char_p), ("init", c.CFUNCTYPE(c.c_int, LOG))]

net = Net.in_dll(c.CDLL(sys.argv[1]), "ncclNetPlugin_v9")
for _ in range(2):  # NCCL calls it for each communicator
    assert net.init(log) == 0
END
}
one() { [ "$(grep -cE -- "$1" "$tmp/out")" = 1 ] || { cat "$tmp/out"; die "not one line like: $1"; }; }

said
one '^INFO gantry: using lo 127\.0\.0\.1 \('
one '^INFO gantry: version [0-9.]+ \(.*\); [0-9]+ bulk lanes? per connection; tuning: NCCL_.*=.*; security: none \(GANTRY_SECRET is not set\)$'
one '^INFO gantry: UNPACK: off: '
[ "$(wc -l <"$tmp/out")" = 3 ] || { cat "$tmp/out"; die "more than three lines"; }
said GANTRY_TUNE=off GANTRY_LANES=3
one '; 3 bulk lanes per connection; tuning: off, NCCL chooses; '
if has_openssl; then
	said GANTRY_SECRET=alpha
	one '; security: peers prove the secret, nothing is encrypted$'
	lacks out alpha
fi
lacks out WARN
said NCCL_DEBUG=WARN GANTRY_LANS=3
one '^WARN gantry: unknown variable GANTRY_LANS is set; did you mean GANTRY_LANES\?$'

[ "$(wc -l <"$tmp/out")" = 1 ] || { cat "$tmp/out"; die "more than a warning"; }

[ ! -e "$lib/gantry" ] || die "NCCL_NET_PLUGIN=gantry would open $lib/gantry"
exit $failed
