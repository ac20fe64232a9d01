#!/usr/bin/env bash
# labels: slow
# No branch of the unpack kernels depends on a register that nothing has written. Their warps shuffle, and a shuffle
# waits for all lanes: a branch to it that lanes take by what a register happened to hold stops the warp for good (it
# did, see docs/design/0007-unpack-kernel.md), and no compiler warns. So the PTX is asked: from the start of a kernel
# along all its ways, which registers may still be unwritten where a comparison reads them.
set -u
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || { echo "skipped: no nvcc here"; exit 77; }
command -v python3 >/dev/null || { echo "skipped: no python3 here"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cat >"$tmp/k.cu" <<'CU'
#include "device/dev.h"
#include "device/work.h"

#include "device/k_unpack.h"
#include "device/k_unpack_reduce.h"
#include "device/k_unpack_ring.h"
#include "device/k_unpack_tune.h"
#define KERNEL(name, args)                                                                                             \
	extern "C" __global__ void __launch_bounds__(512, 1)                                                           \
		gantry_##name(const __grid_constant__ struct gantry_##args##_args a, const uint32_t *abort)            \
	{                                                                                                              \
		dev_begin(abort);                                                                                      \
		k_##name(&a);                                                                                          \
	}
KERNEL(unpack, unpack)
KERNEL(unpack_reduce, unpack_reduce)
KERNEL(unpack_ring, unpack_ring)
KERNEL(unpack_tune, unpack_tune)
KERNEL(unpack_tune2, unpack_tune)
CU
"$nvcc" -std=c++17 -O3 -arch=sm_90 -ptx -I"$SOURCE_DIR/src" -I"$SOURCE_DIR/include" -o "$tmp/k.ptx" "$tmp/k.cu" >"$tmp/log" 2>&1 || {
	echo "skipped: nvcc does not compile here: $(head -1 "$tmp/log")"
	exit 77
}
python3 - "$tmp/k.ptx" <<'PY'
import re, sys

REG = re.compile(r'%[a-z]+\d+')

def parse(body):
    """Per instruction: what follows it, what it writes, what it reads, its text."""
    code = [l.split('//')[0].strip() for l in body.split('\n')]
    code = [l for l in code if l and not l.startswith('.') and l not in '{}']
    at = {l[:-1]: i for i, l in enumerate(code) if l.endswith(':')}
    out = []
    for i, l in enumerate(code):
        m = re.match(r'@!?(%p\d+|q)\s+(.*)', l)
        guard, text = m.groups() if m else (None, l)
        reads = {guard} if guard and guard != 'q' else set()
        op = text.split()[0]
        rest = text[len(op):].strip()
        if l.endswith(':'):
            out.append(([i + 1], set(), set(), l))
        elif op.startswith('bra'):
            to = at[re.search(r'\$\w+', rest).group()]
            out.append(([to, i + 1] if guard else [to], set(), reads, l))
        elif op.startswith('ret'):
            out.append(([i + 1] if guard else [], set(), reads, l))
        elif re.match(r'st|bar|red|membar|fence|nanosleep|call|cp|mbarrier.(init|arrive)|\(', op):
            out.append(([i + 1], set(REG.findall(rest)) if 'call' in text else set(), set(), l))
        else: # a guarded load counts as writing: what it leaves alone is not compared
            to, _, of = rest.partition('}' if rest.startswith('{') else ',')
            out.append(([i + 1], set(REG.findall(to)), reads | set(REG.findall(of)), l))
    return out

def check(name, body):
    code = parse(body)
    number = {} # of each register: sets of them are bits
    bits = lambda regs: sum(1 << number.setdefault(r, len(number)) for r in regs)
    writes = [bits(w) for _, w, _, _ in code]
    reads = [bits(r) for _, _, r, _ in code]
    unwritten = [None] * len(code) # on some way to this instruction
    unwritten[0] = (1 << len(number)) - 1
    todo = [0]
    while todo:
        later = set()
        for i in todo:
            after = unwritten[i] & ~writes[i]
            for n in code[i][0]:
                if n < len(code) and (unwritten[n] is None or after & ~unwritten[n]):
                    unwritten[n] = (unwritten[n] or 0) | after
                    later.add(n)
        todo = sorted(later)
    bad = [i for i, c in enumerate(code) if unwritten[i] and c[3].startswith('setp') and reads[i] & unwritten[i]]
    for i in bad:
        regs = sorted(r for r in code[i][2] if unwritten[i] >> number[r] & 1)
        print('%s: %s: %s may be unwritten' % (name, ' '.join(code[i][3].split()), ', '.join(regs)))
    return len(code), len(bad)

kernels = re.findall(r'\.entry (\w+)\(.*?\)\n(.*?)\n\}\n', open(sys.argv[1]).read(), re.S)
sizes = [check(*k) for k in kernels]
print('%d kernels of %s instructions' % (len(sizes), ', '.join(str(n) for n, _ in sizes)))
sys.exit(len(sizes) != 5 or min(n for n, _ in sizes) < 500 or any(bad for _, bad in sizes))
PY
