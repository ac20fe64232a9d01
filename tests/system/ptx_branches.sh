#!/usr/bin/env bash
# labels: slow beside
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
#define KERNEL(name)                                                                                                   \
	extern "C" __global__ void __launch_bounds__(512, 1)                                                           \
		gantry_##name(const __grid_constant__ struct gantry_##name##_args a, const uint32_t *abort)            \
	{                                                                                                              \
		dev_begin(abort);                                                                                      \
		k_##name(&a);                                                                                          \
	}
KERNEL(unpack)
KERNEL(unpack_reduce)
KERNEL(unpack_ring)
CU
"$nvcc" -std=c++17 -O3 -arch=sm_80 -ptx -I"$SOURCE_DIR/src" -I"$SOURCE_DIR/include" -o "$tmp/k.ptx" "$tmp/k.cu" >"$tmp/log" 2>&1 || {
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
        elif re.match(r'st|bar|red|membar|fence|nanosleep|call|\(', op):
            out.append(([i + 1], set(REG.findall(rest)) if 'call' in text else set(), set(), l))
        else: # a guarded load counts as writing: what it leaves alone is not compared
            to, _, of = rest.partition('}' if rest.startswith('{') else ',')
            out.append(([i + 1], set(REG.findall(to)), reads | set(REG.findall(of)), l))
    return out

def check(name, body):
    code = parse(body)
    every = frozenset().union(*[w | r for _, w, r, _ in code])
    unwritten = {0: every}
    todo = [0]
    while todo:
        i = todo.pop()
        after = unwritten[i] - code[i][1]
        for n in code[i][0]:
            if n < len(code) and not after <= unwritten.get(n, frozenset()) or n < len(code) and n not in unwritten:
                unwritten[n] = unwritten.get(n, frozenset()) | after
                todo.append(n)
    bad = [(r & unwritten[i], l) for i, (_, _, r, l) in enumerate(code) if i in unwritten and l.startswith('setp') and r & unwritten[i]]
    for regs, line in bad:
        print('%s: %s: %s may be unwritten' % (name, ' '.join(line.split()), ', '.join(sorted(regs))))
    return len(code), len(bad)

kernels = re.findall(r'\.entry (\w+)\(.*?\)\n(.*?)\n\}\n', open(sys.argv[1]).read(), re.S)
sizes = [check(*k) for k in kernels]
print('%d kernels of %s instructions' % (len(sizes), ', '.join(str(n) for n, _ in sizes)))
sys.exit(len(sizes) != 3 or min(n for n, _ in sizes) < 500 or any(bad for _, bad in sizes))
PY
