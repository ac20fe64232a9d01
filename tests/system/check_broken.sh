#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# Every rule fails plugins that break its promise, two of them at least, and passes those that keep it in an unusual way.
# The plugin is tests/broken/simple_net.h; BROKEN chooses what is unusual.
. "$(dirname "$0")/lib.sh"
variants=$BUILD_DIR/broken/libnccl-net-broken_variants.so
sound=$BUILD_DIR/broken/libnccl-net-broken_none.so
versions="8 11"
[ -z "${GANTRY_SANITIZED:-}" ] || versions=8

# Each line: a rule, and variants that it must fail; NAME@VERSION for one that only a later version shows.
broken="
table            no_test no_closesend init_crashes devices_unset promises_dmabuf
init-finalize    one_context@11 init_second@11
properties       maxcomms_unset many_recvs
handle-size      handle_over handle_connect
nonblocking      accept_blocks accept_impatient test_waits isend_waits
late-peer        impatient done_unset
null-request     request_unwritten null_but_sent
in-flight        few_requests few_sends
threads          reg_busy dereg_busy
ordering         overtake flip_bit keep_arrays
grouped-tags     ignore_tags last_tag_any
recv-larger      clear_rest exact_sizes
size-mismatch    overrun truncate
zero-bytes       crash_empty drop_empty
test-sizes       posted_sizes no_sizes
optional-recv    optional_elsewhere@11 optional_by_null@11
large            long_end odd_end
close-after-done close_drops close_forgets
close-in-flight  close_waits close_refuses
peer-death       ignore_death ignore_idle_death
leaks            leak_fd leak_thread leak_memory
nccl-sizes       odd_end exact_sizes small_tags
tags-ahead       tags_in_order ignore_tags
bootstrap        sizes_always phandles_always@11
devices          second_device second_device@11
comms            few_comms last_comm one_connect
contexts         finalize_blocks@11 finalize_busy@11
registrations    few_mrs dereg_all
profiler         events_unstarted@11 events_left@11 events_no_handle@11
many-messages    counter_wraps leak_message isend_waits_rarely
"
# Sound, and what a rule that is too strict would blame.
unusual="
table            late_table late_table@11
properties       speed_unknown
init-finalize    init_once
in-flight        requests_strict
ordering         requests_strict send_sizes_unset late_table
peer-death       death_oldest
profiler         events@11
devices          two_devices two_devices@11
"

[ -z "${GANTRY_SANITIZED:-}" ] || broken=$(grep -v 'many-messages\|crash\|leaks\|large' <<<"$broken")

# expected LINE VERDICT LIMIT: each variant of a line has this verdict.
expected() {
	local rule names name version
	read -r rule names <<<"$1"
	for name in $names; do
		version=${name#*@}
		[ "$version" != "$name" ] || version=8
		BROKEN=${name%@*} "$gantry" check "$variants" --rule "$rule" --version "$version" --timeout "$3" --json \
			>"$tmp/$rule.out" 2>"$tmp/$rule.err"
		grep -q "\"verdict\": \"$2\"" "$tmp/$rule.out" ||
			echo "$rule, $name: not $2: $(cat "$tmp/$rule.out" "$tmp/$rule.err")" >>"$tmp/unexpected"
	done
}

# They mostly wait: some at a time.
while read -r line; do
	while [ "$(jobs -r | wc -l)" -ge 4 ]; do wait -n; done
	case $line in close-in-flight* | peer-death*) limit=6 ;; leaks*) limit=60 ;; many*) limit=20 ;; *) limit=2 ;; esac
	expected "$line" fail $limit &
done < <(grep . <<<"$broken")
wait
while read -r line; do
	expected "$line" pass 60
done < <(grep . <<<"$unusual")
[ ! -e "$tmp/unexpected" ] || fail "$(cat "$tmp/unexpected")"

# Every rule has two plugins that it fails, but those that need what the plugin lacks.
for rule in $("$gantry" check --list | awk '{print $1}'); do
	case $rule in symbols | vdevice) continue ;; esac
	[ -n "${GANTRY_SANITIZED:-}" ] || [ "$(grep "^$rule " <<<"$broken" | wc -w)" -ge 3 ] || fail "$rule: fewer than two"
done

# A plugin that breaks one promise passes most rules.
BROKEN=ignore_tags "$gantry" check "$variants" --version 8 --timeout 8 --json >"$tmp/tags" 2>/dev/null
[ $? -eq 1 ] || fail "ignore_tags: the exit status is not 1"
grep -v '^{"rule": .*}$' "$tmp/tags" && fail "lines that are not reports"
[ "$(grep -c '"verdict": "pass"' "$tmp/tags")" -ge 20 ] || fail "ignore_tags: $(cat "$tmp/tags")"

# What fills its table in init, and what reports no sizes, is no stranger to the others that load plugins.
for name in late_table no_sizes; do
	BROKEN=$name "$gantry" perf net --plugin "$variants" -b 1000 -e 64k -f 64 -n 20 --repeats 1 --depth 4 \
		>"$tmp/out" 2>"$tmp/err" && grep -q 'wrong bytes: 0; OK' "$tmp/out" ||
		fail "perf net with $name: $(cat "$tmp/out" "$tmp/err")"
done
grep -q 'a receive says that 0 bytes came' "$tmp/err" || fail "perf net does not warn: $(cat "$tmp/err")"

# One that refuses the machine is a line and exit status 2; one that never connects costs seconds.
for name in refuses no_devices; do
	BROKEN=$name "$gantry" check "$variants" --version 8 >"$tmp/out" 2>"$tmp/err"
	[ $? -eq 2 ] || fail "$name: the exit status is not 2"
	[ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q 'cannot be tested here' "$tmp/err" ||
		fail "$name: $(cat "$tmp/out" "$tmp/err")"
done
since=$SECONDS
BROKEN=never_connects "$gantry" check "$variants" --version 8 --timeout 30 >"$tmp/out" 2>/dev/null
grep -q 'not run: no connection' "$tmp/out" || fail "never_connects: $(cat "$tmp/out")"
[ $((SECONDS - since)) -lt 25 ] || fail "never_connects took $((SECONDS - since)) s"

rules=$("$gantry" check --list | wc -l)
for v in $versions; do
	skipped=3 # vdevice; before v11 also contexts, before v10 profiler
	[ "$v" -ge 11 ] && skipped=1
	check_rules "$tmp/none" $((rules - skipped)) "$sound" --version "$v" --timeout 60 ||
		fail "the sound plugin fails at v$v: $(cat "$tmp/none")"
	echo "the sound plugin: $passed of $rules rules pass at v$v"
done

# What is not a plugin, and wrong usage.
expect 2 "$gantry" check /nonexistent/libnccl-net-x.so
expect 2 "$gantry" check --rule nonsense x
"$gantry" check --list | grep -q '^grouped-tags ' || fail "--list does not name grouped-tags"

[ $failed = 0 ] && echo "ok"
exit $failed
