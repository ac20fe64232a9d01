# SPDX-License-Identifier: Apache-2.0
"""Which branches of PTX depend on registers that nothing has written, along some way through the code.

A register is garbage until it is written, and again when it is computed from garbage. What is found is a branch whose
guard may be garbage. Memory is not followed: a load brings what somebody has stored, so its result is garbage only if
its address is. A guarded load counts as writing: what it leaves alone, its author does not look at.

Ways that no run takes would make false alarms: code that says "if (found) use(what)" after a loop that sets both. So
ways are told apart by what is known of them: constants in registers, and the outcome of branches. A branch of known
outcome goes one way only. Ways on which all that is read was written are not followed. Where more than MOST sets of
knowledge meet at a place they are merged: that can add alarms, and hides none.
"""
import heapq
import re
import sys

MOST = 4096
TOKEN = re.compile(r'%[A-Za-z_]\w*(?:\.[xyz])?|\b[A-Za-z_]\w*\b')
NUMBER = re.compile(r'-?\d+$|0x[0-9a-fA-F]+$')
# No result; everything they name is read.
NO_RESULT = re.compile(r'(st|red|bar\.sync|bar\.warp\.sync|barrier\.sync|membar|fence|nanosleep|prefetch|discard|trap'
                       r'|exit|ret|bra|brx|call|cp\.async|griddepcontrol)(\.|$)')


class Instruction:
    def __init__(self, op, guard, negated, to, of, text, target=None):
        self.op, self.guard, self.negated, self.to, self.of, self.text, self.target = op, guard, negated, to, of, text, target


def pieces(body):
    """Braces that open or close a scope, labels, and statements (calls span lines, inline asm has several in one)."""
    rest = ''
    for line in body.split('\n'):
        if re.match(r'\s*\$[\w$]+:\s*$', line):
            yield line.strip()
            continue
        rest += ' ' + line
        while True:
            rest = rest.lstrip()
            if rest[:1] in ('{', '}'):
                yield rest[0]
                rest = rest[1:]
            elif ';' in rest:
                s, _, rest = rest.partition(';')
                yield s.strip()
            else:
                break


def parse(body):
    """The instructions and where the labels are. Registers of an inner scope get names of their own."""
    scopes, count, code, labels = [{}], 0, [], {}
    for s in pieces(body):
        if s == '{':
            scopes.append({})
            count += 1
        elif s == '}':
            scopes.pop()
        elif s.endswith(':'):
            labels[s[:-1]] = len(code)
        elif s.startswith('.reg'):
            name, many = re.match(r'\.reg\s+\.\w+\s+(%?\w+)(<\d+>)?', s).groups()
            if not many: # else they are all known by their kind
                scopes[-1][name] = '%s/%d' % (name, count)
        elif s and not s.startswith('.'):
            code.append(instruction(s, scopes))
    return code, labels


def registers(text, scopes):
    found = []
    for name in TOKEN.findall(text):
        for scope in reversed(scopes):
            if name in scope:
                found.append(scope[name])
                break
        else:
            if re.match(r'%(p|r|rd|rs|f|fd|h|hh|rq|b)\d+$', name):
                found.append(name)
    return found


def instruction(s, scopes):
    m = re.match(r'@(!?)(%?\w+)\s+(.*)', s, re.S)
    negated, guard, text = (m.group(1) == '!', registers(m.group(2), scopes)[0], m.group(3)) if m else (False, None, s)
    op, _, rest = re.sub(r'\s+', ' ', text).partition(' ')
    text = re.sub(r'\s+', ' ', s)
    if NO_RESULT.match(op):
        target = re.search(r'\$[\w$]+', rest) if op.startswith('bra') else None
        return Instruction(op, guard, negated, [], registers(rest, scopes), text, target.group() if target else None)
    to, _, of = rest.partition('}' if rest.startswith('{') else ',')
    to = registers(to, scopes)
    if not to and not re.search(r'\b_\b', rest.split(',')[0]):
        raise ValueError('what does it write? ' + text)
    of = of.lstrip(', ')
    i = Instruction(op, guard, negated, to, registers(of, scopes), text)
    i.operands = [registers(o, scopes)[0] if registers(o, scopes) else o.strip() for o in of.split(',')]
    return i


class Block:
    def __init__(self):
        self.code, self.next, self.live = [], [], 0


def blocks_of(code, labels):
    starts = sorted({0} | set(labels.values()) | {i + 1 for i, c in enumerate(code) if c.op.split('.')[0] in ('bra', 'ret', 'exit', 'trap', 'brx')})
    starts = [s for s in starts if s < len(code)]
    at = {s: k for k, s in enumerate(starts)}
    blocks = [Block() for _ in starts]
    for k, s in enumerate(starts):
        b, end = blocks[k], starts[k + 1] if k + 1 < len(starts) else len(code)
        b.code = code[s:end]
        last, kind = b.code[-1], b.code[-1].op.split('.')[0]
        if kind == 'brx':
            raise ValueError('a table of targets is not understood: ' + last.text)
        if kind == 'bra' and labels[last.target] < len(code):
            b.next.append((at[labels[last.target]], last.guard, not last.negated)) # the value of the guard on this way
        if (kind not in ('bra', 'ret', 'exit', 'trap') or last.guard) and k + 1 < len(starts):
            b.next.append((k + 1, last.guard if kind in ('bra', 'ret', 'exit') else None, last.negated))
    return blocks


def constant(text):
    return int(text, 0) if NUMBER.match(text) else None


def outcome(i, env):
    """What an instruction that writes a flag gives it, if that can be known: an int, or None."""
    op = i.op.split('.')
    known = [constant(o) if constant(o) is not None else env.get(o) for o in i.operands]
    if i.guard:
        return None
    if op[0] == 'mov':
        return known[0]
    if op[0] == 'setp' and len(op) == 3 and op[1] in ('eq', 'ne') and len(known) == 2 and None not in known:
        bits = int(op[2][1:]) if op[2][1:].isdigit() else 64
        same = (known[0] - known[1]) % (1 << bits) == 0
        return int(same == (op[1] == 'eq'))
    if op[-1] == 'pred':
        known = [None if k is None else int(k != 0) for k in known]
        if op[0] == 'not' and known[0] is not None:
            return 1 - known[0]
        if op[0] == 'and':
            return 0 if 0 in known else 1 if known == [1, 1] else None
        if op[0] == 'or':
            return 1 if 1 in known else 0 if known == [0, 0] else None
        if op[0] == 'xor' and None not in known:
            return known[0] ^ known[1]
    if op[0] == 'selp' and known[2] is not None:
        return known[0] if known[2] else known[1]
    return None


def flags_of(code):
    """Registers whose value may decide a branch, if it is known."""
    writes = {}
    for i in code:
        for r in i.to:
            writes.setdefault(r, []).append(i)
    flags, todo = set(), [i.guard for i in code if i.target and i.guard]
    while todo:
        r = todo.pop()
        if r in flags:
            continue
        flags.add(r)
        for i in writes.get(r, []):
            op = i.op.split('.')
            if op[0] in ('mov', 'selp', 'setp') or op[-1] == 'pred':
                todo += i.of
    return flags


def find_live(blocks, bit):
    """The registers that are read before they are written, from the start of each block on."""
    reads, writes, before = [], [], [[] for _ in blocks]
    for k, b in enumerate(blocks):
        read = written = 0
        for i in b.code:
            for r in [i.guard] + i.of:
                if r and not written & bit[r]:
                    read |= bit[r]
            for r in i.to:
                written |= bit[r]
        reads.append(read)
        writes.append(written)
        for n, _, _ in b.next:
            before[n].append(k)
    todo = list(range(len(blocks)))
    while todo:
        k = todo.pop()
        live = reads[k]
        for n, _, _ in blocks[k].next:
            live |= blocks[n].live & ~writes[k]
        if live & ~blocks[k].live:
            blocks[k].live |= live
            todo += before[k]


def run_block(b, env, garbage, bit, alarm):
    """The state after a block; calls alarm(instruction) where it branches on garbage."""
    env = dict(env)
    for i in b.code:
        if i.target and i.guard and garbage & bit[i.guard] and i.guard not in env:
            alarm(i)
        if not i.to:
            continue
        value = outcome(i, env) if len(i.to) == 1 else None
        dirty = value is None and any(garbage & bit[o] for o in i.of if o not in env)
        for r in i.to:
            garbage = garbage | bit[r] if dirty else garbage & ~bit[r]
            env.pop(r, None)
            if value is not None:
                env[r] = value
    return env, garbage


def check(body):
    """(instructions, alarms): how many there are, and the branches that may depend on what nothing has written."""
    code, labels = parse(body)
    blocks, flags, bit = blocks_of(code, labels), flags_of(code), {}
    for i in code:
        for r in [i.guard] + i.to + i.of:
            if r and r not in bit:
                bit[r] = 1 << len(bit)
    find_live(blocks, bit)
    states = [{} for _ in blocks] # of each block: values of flags -> garbage that is still to be read
    states[0][frozenset()] = blocks[0].live
    todo, number, merged, alarms = [(0, 0, frozenset())], 0, set(), {}
    while todo:
        k, _, key = heapq.heappop(todo)
        if key not in states[k]:
            continue # merged meanwhile
        env, garbage = run_block(blocks[k], dict(key), states[k][key], bit, lambda i: alarms.setdefault(id(i), i))
        for n, guard, value in blocks[k].next:
            if guard in env and bool(env[guard]) != value:
                continue
            dirty = garbage & blocks[n].live
            if not dirty:
                continue # all that this way reads was written: there is nothing to find on it
            after = dict(env)
            if guard:
                after[guard] = int(value)
            key2 = frozenset((r, v) for r, v in after.items() if r in flags and blocks[n].live & bit[r])
            if n not in merged and len(states[n]) >= MOST and key2 not in states[n]:
                merged.add(n)
                for old in states[n].values():
                    dirty |= old
                states[n] = {}
            if n in merged:
                key2 = frozenset()
            old = states[n].get(key2, 0)
            if dirty & ~old:
                states[n][key2] = old | dirty
                number += 1
                heapq.heappush(todo, (n, number, key2))
    return len(code), list(alarms.values())


def functions(text):
    """Name and body of all kernels and functions."""
    text = re.sub(r'//[^\n]*', '', text)
    for m in re.finditer(r'\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)\s*\([^)]*\)[^{;]*?\n\{\n(.*?)\n\}\n', text, re.S):
        yield m.group(1), m.group(2)


FLAG = """
        mov.u32 %r4, %tid.x; mov.u32 %r2, 0; setp.eq.s32 %p1, %r4, 0;
        @%p1 bra $A;
        ld.global.u32 %r1, [%r4]; mov.u32 %r2, 2;
    $A:
        setp.ne.s32 %p2, %r2, 2;
        @%p2 bra $B;
        setp.eq.s32 %p3, %r1, 0;
        @%p3 bra $B;
    $B:
        ret;"""

# Small functions, and the branches that are to be found in each, by their guards.
SAMPLES = [
    ('a register that one way leaves unwritten', '%p2', """
        mov.u32 %r9, %tid.x; setp.eq.s32 %p1, %r9, 0;
        @%p1 bra $A;
        mov.u32 %r1, 1;
    $A:
        setp.ne.s32 %p2, %r1, 0;
        @%p2 bra $B;
    $B:
        ret;"""),
    ('garbage that goes through arithmetic, a choice and a copy', '%p5', """
        mov.u32 %r4, %tid.x; setp.eq.s32 %p1, %r4, 0;
        @%p1 bra $A;
        ld.global.u32 %r1, [%rd1];
    $A:
        add.s32 %r2, %r1, 4; selp.b32 %r3, %r2, 7, %p1; mov.u32 %r5, %r3; setp.gt.s32 %p5, %r5, 2;
        @!%p5 bra $B;
    $B:
        ret;"""),
    ('a flag that says whether it was written', '', FLAG),
    ('the same flag, asked the wrong way round', '%p3', FLAG.replace("setp.ne", "setp.eq")),
    ('a loop whose first round has nothing from the round before', '', """
        mov.u32 %r4, %tid.x; mov.u32 %r2, 0;
    $A:
        setp.eq.s32 %p1, %r2, 0;
        @%p1 bra $B;
        setp.lt.s32 %p2, %r1, 9;
        @%p2 bra $C;
    $B:
        ld.global.u32 %r1, [%r4]; ld.global.u32 %r2, [%r4];
        bra.uni $A;
    $C:
        ret;"""),
    ('a register of an inner scope with the name of another', '%p1', """
        mov.u32 %r4, %tid.x;
        {
        .reg .pred %p1;
        setp.ne.u32 %p1, %r4, 0; bar.red.and.pred %p1, 0, %p1; selp.u32 %r5, 1, 0, %p1;
        }
        @%p1 bra $A;
    $A:
        ret;"""),
    ('the answer of a call, and of a vote', '', """
        mov.u32 %r4, %tid.x;
        { .param .b32 retval0; call.uni (retval0),
        f,
        (
        ); ld.param.b32 %r5, [retval0+0]; }
        setp.eq.s32 %p1, %r5, 0; vote.sync.any.pred %p2, %p1, -1;
        @%p2 bra $A;
    $A:
        ret;"""),
]


def try_samples():
    """The check itself, before it is believed: also with ways merged at once, which may only add alarms."""
    global MOST
    bad = 0
    for most in (MOST, 1):
        MOST, kept = most, MOST
        for what, expected, body in SAMPLES:
            found = ' '.join(sorted(i.guard for i in check(body)[1]))
            if found != expected and (most > 1 or expected not in found):
                print('the check is wrong about %s: "%s" instead of "%s"' % (what, found, expected))
                bad += 1
        MOST = kept
    return bad


def main(path, expected):
    if try_samples():
        return 1
    seen, instructions, bad = [], 0, 0
    for name, body in functions(open(path).read()):
        n, alarms = check(body)
        seen.append(name)
        instructions += n
        for i in alarms:
            print('%s: %s: may depend on what nothing has written' % (name, i.text))
        bad += len(alarms)
    missing = [k for k in expected if 'gantry_' + k not in seen]
    if missing:
        print('not found: ' + ', '.join(missing))
    print('%d kernels, %d other functions, %d instructions: %d branches on garbage' %
          (len(expected), len(seen) - len(expected), instructions, bad))
    return 1 if bad or missing or not expected or instructions < 1000 * len(expected) else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1], sys.argv[2:]))
