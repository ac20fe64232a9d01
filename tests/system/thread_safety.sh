#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# clang's thread-safety analysis (base/mutex.h) finds a missing lock: planted violations are compiled, each must be
# refused by its own warning, and the same code with the lock must pass. The clang stage compiles all of Gantry that way.
. "$(dirname "$0")/lib.sh"
CLANG=$(command -v clang || command -v clang-14) || skip "there is no clang here"

# compile BODY: of a function with an object `o` whose field `guarded` its mutex guards.
compile() {
	cat >"$tmp/a.c" <<EOF
#include "base/mutex.h"
MUTEX_KIND(planted_mu);
struct object { struct planted_mu mu; int guarded GUARDED_BY(planted_mu); };
static inline void needs(struct object *o) REQUIRES(planted_mu);
static inline void needs(struct object *o) { ASSERT_HELD(&o->mu); o->guarded++; }
static inline void takes(struct object *o) EXCLUDES(planted_mu);
static inline void takes(struct object *o) { planted_mu_lock(&o->mu); needs(o); planted_mu_unlock(&o->mu); }
void f(struct object *o);
void f(struct object *o) { $1 }
EOF
	"$CLANG" -std=gnu11 -Wall -Wno-unused-function -Wthread-safety -Werror -I"$SOURCE_DIR/src" -I"$SOURCE_DIR/include" -c "$tmp/a.c" \
		-o "$tmp/a.o" 2>"$tmp/err"
}
must_pass() { compile "$1" || die "this is right, and clang refuses it: $1"; }
must_fail() { ! compile "$1" && grep -q "$2" "$tmp/err" || die "clang does not find '$2' in: $1"; }

must_pass 'planted_mu_lock(&o->mu); needs(o); o->guarded = 1; planted_mu_unlock(&o->mu);'
must_pass 'takes(o);'
must_pass 'if (planted_mu_trylock(&o->mu)) { needs(o); planted_mu_unlock(&o->mu); }'
must_fail 'needs(o);' "requires holding mutex 'planted_mu'"
must_fail 'o->guarded = 1;' "requires holding mutex 'planted_mu'"
must_fail 'planted_mu_lock(&o->mu); needs(o);' 'still held at the end of function'
must_fail 'planted_mu_lock(&o->mu); takes(o); planted_mu_unlock(&o->mu);' "while mutex 'planted_mu' is held"
must_fail 'planted_mu_unlock(&o->mu);' 'that was not held'
must_fail 'if (planted_mu_trylock(&o->mu)) needs(o);' 'not held on every path'
echo "clang finds missing locks, locks kept, and locks taken twice"
