#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# Nothing is compiled that no product reaches, or only the tool without a reason (scripts/unreached.py); and what is planted
# in a copy of the tree is found.
. "$(dirname "$0")/lib.sh"
need python3

python3 "$SOURCE_DIR/scripts/unreached.py" || die "no product reaches these"

mkdir "$tmp/scripts" && cp "$SOURCE_DIR"/scripts/{house.py,unreached.py,tool_only.txt} "$tmp/scripts/" && cp -r "$SOURCE_DIR"/{src,tools} "$tmp/" || exit 1
# plant FILE TEXT WHAT...: appended to that file, and what has to be named then.
plant() {
	printf '%s\n' "$2" >>"$tmp/$1"
	shift 2
	wanted+=("$@")
}
wanted=()
plant src/rx/op.c "int planted_a(void) { return 0; }" "function planted_a"
plant src/comm/coll.c "static struct comm_op planted_b(void) { return planted_c(); } static struct comm_op planted_c(void) { return planted_b(); }" \
	"function planted_b" "function planted_c"
plant src/base/clock.h "static inline int planted_d(void) { return 0; }" "function planted_d"
plant src/device/types_cuda.h "DEV int dev_sown(void) { return 0; }" "function dev_sown"
plant src/net/net.h "#define PLANTED 1" "macro PLANTED"
plant src/coll/ring.c "const struct coll_algo planted_e = {.plan = planted_f}; static void planted_f(struct coll_builder *b) { (void)b; }" \
	"table planted_e" "function planted_f"
plant src/device/kernels.def "KERNEL(planted, gantry_coll_args, 512, 1)" "kernel gantry_kernel_planted"
plant src/device/k_coll.h "DEV void k_planted(const struct gantry_coll_args *a) { (void)a; }" "function k_planted"
plant src/device/ops.def "OP(planted, (struct gantry_device *dev))" "operation of devices planted"
plant src/device/host/host_device.c "gantry_result gantry_host_planted(struct gantry_device *dev) { return dev->planted; }" "function gantry_host_planted"
plant src/base/params.def 'P_BOOL(planted, "GANTRY_PLANTED", 0, "Nothing.")' "parameter GANTRY_PLANTED"
plant src/base/text.c "static int planted_h(void) { return 0; } int planted_g(void) { return planted_h(); }"
plant src/base/clock.c "int planted_i(void) { return 0; }"
plant tools/main.c "__attribute__((constructor)) static void planted_j(void) { planted_g(); planted_i(); }"
plant scripts/tool_only.txt "planted_i gantry_now_ns planted_k: the first is one, libraries have the second, and there is no third"
python3 "$tmp/scripts/unreached.py" "$tmp" >"$tmp/out" 2>"$tmp/err" && die "nothing was found"
for what in planted_g planted_h; do
	has out ": function $what: only the tool reaches it"
done
for what in gantry_now_ns planted_k; do
	has out "scripts/tool_only.txt: $what: not something that only the tool reaches"
done
for what in "${wanted[@]}"; do
	has out ": $what: no product reaches it"
done
[ "$(wc -l <"$tmp/out")" = $((${#wanted[@]} + 4)) ] || { cat "$tmp/out"; die "more was found than was planted"; }
echo "the products reach all of it, and what is planted is found"
