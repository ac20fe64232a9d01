#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# Rules on GIN and RMA: each fails plugins that break its promise and passes the sound plugin at every version.
# The plugin is tests/broken/simple_gin.h; BROKEN chooses what is unusual. The other rules: check_broken.sh.
. "$(dirname "$0")/lib.sh"
variants=$BUILD_DIR/broken/libnccl-net-broken_variants.so
sound=$BUILD_DIR/broken/libnccl-net-broken_none.so

# Each line: a rule, and variants that it must fail at the version behind @.
broken="
gin-table        gin_no_test@12 gin_no_create@13 gin_no_put@11
rma-table        gin_no_promises@16
gin-properties   gin_type@11 gin_recvs@12
rma-properties   gin_type@14 gin_gpu@17
gin-connect      gin_impatient@11 gin_null_context@11 gin_no_comm@13 gin_handle_over@12
rma-connect      gin_impatient@16
gin-missing      gin_connect_early@11
rma-missing      gin_connect_early@17
gin-handles      gin_handle_high@12 gin_gh_high@13
rma-handles      gin_handle_high@14
gin-memory       gin_memory_few@11
rma-memory       gin_memory_small@15
gin-put          gin_flip@11 gin_overrun@12 gin_offset@13 gin_large@11 gin_null@12 gin_drop_alone@13
rma-put          gin_overrun@14 gin_offset@17 gin_large@16
gin-order        gin_signal_early@11 gin_overtake@12
rma-order        gin_overtake@14 gin_signal_early@17
gin-source       gin_early_done@11
rma-source       gin_early_done@16
gin-signals      gin_inc_value@11 gin_add_one@12 gin_add_32@13 gin_add_twice@11
rma-signals      gin_inc_value@13 gin_add_32@17
gin-shared       gin_lost@12
rma-shared       gin_lost@15
gin-reset        gin_mirror@11
rma-reset        gin_mirror@13
gin-self         gin_self@11 gin_self_signal@12
rma-self         gin_self_signal@14
gin-in-flight    gin_few@11 gin_some@12
rma-in-flight    gin_few@13 gin_more@15
gin-nonblocking  gin_blocks@11 gin_test_waits@13
rma-nonblocking  gin_blocks@17
gin-contexts     gin_one_context@12 gin_context_lost@13
rma-contexts     gin_one_context@14 gin_context_lost@17
gin-get          gin_get_to@13 gin_get_from@13
rma-get          gin_get_to@16 gin_get_early@14
gin-flush        gin_flush_never@13 gin_flush_error@13 gin_get_early@13
rma-flush        gin_flush_never@15
gin-register     gin_reg_reuse@11 gin_reg_busy@12
rma-register     gin_reg_reuse@14
gin-comms        gin_global@11 gin_close_all@13
rma-comms        gin_global@17
gin-close        gin_close_waits@11 gin_dereg_refuses@12 gin_close_crashes@13
rma-close        gin_dereg_refuses@17
gin-death        gin_death_done@11 gin_death_silent@13
rma-death        gin_death_done@14
gin-finalize     gin_init_once@11 gin_finalize_null@11 gin_finalize_reads@11
rma-finalize     gin_init_once@17
"
# Sound, and what a rule that is too strict would blame.
unusual="
rma-order        gin_weak_first@14
gin-flush        gin_flush_null@13
"
# Left out, with the reason.
skipped="
gin-put          gin_refuses@11 gin_no_device@12 gin_no_host@13 gin_gpu@11
rma-put          gin_no_host@17
rma-get          gin_no_get@14
rma-table        gin_no_device@15
"

# expected VERDICT RULE VARIANT@VERSION
expected() {
	local limit=4 out=$tmp/$2.$3
	case $2 in *-missing) limit=8 ;; *-close) limit=14 ;; esac
	[ "$1" = fail ] || limit=60
	BROKEN=${3%@*} "$gantry" check "$variants" --rule "$2" --version "${3#*@}" --timeout $limit --retries 0 --json \
		>"$out.out" 2>"$out.err"
	grep -q "\"verdict\": \"$1\"" "$out.out" || echo "$1 $2 $3" >>"$tmp/unexpected"
}

# They spin and wait: some at a time. Sanitizers look at the tool, for which every third will do.
n=0
while read -r verdict rule names; do
	for name in $names; do
		[ -z "${GANTRY_SANITIZED:-}" ] || [ $((n++ % 3)) = 0 ] || continue
		while [ "$(jobs -r | wc -l)" -ge 4 ]; do wait -n; done
		expected "$verdict" "$rule" "$name" &
	done
done < <(grep . <<<"$unusual" | sed 's/^/pass /'; grep . <<<"$skipped" | sed 's/^/skip /'; grep . <<<"$broken" | sed 's/^/fail /')
wait
# Once more, alone: some count on how fast the machine is.
[ ! -e "$tmp/unexpected" ] || mv "$tmp/unexpected" "$tmp/again"
while read -r verdict rule name; do
	expected "$verdict" "$rule" "$name"
	[ ! -e "$tmp/unexpected" ] || fail "$rule, $name: not $verdict: $(cat "$tmp/$rule.$name.out" "$tmp/$rule.$name.err")"
	rm -f "$tmp/unexpected"
done < <(cat "$tmp/again" 2>/dev/null)

for table in gin rma; do
	for rule in $("$gantry" check --list --table $table | awk '{print $1}'); do
		grep -q "^$rule " <<<"$broken" || fail "$rule: no plugin that it fails"
	done
done

# sound TABLE VERSION SKIPPED
sound() {
	local rules n
	rules=$("$gantry" check --list --table "$1" | wc -l)
	n=$((rules - $3))
	check_rules "$tmp/none" $n "$sound" --table "$1" --version "$2" --timeout 60 || fail "the sound $1: $(cat "$tmp/none")"
	echo "the sound $1: $passed of $rules rules pass at v$2"
}
sound gin 11 3 # one context, no gets
sound gin 13 0
sound rma 17 0
if [ -z "${GANTRY_SANITIZED:-}" ]; then
	sound gin 12 2
	for v in 13 14 15 16; do sound rma $v 0; done
fi

[ $failed = 0 ] && echo "ok"
exit $failed
