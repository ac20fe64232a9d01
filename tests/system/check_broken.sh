#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# Every rule fails plugins that break its promise, two of them at least, and passes those that keep it in an unusual way.
# The plugin is tests/broken/simple_net.h; BROKEN chooses what is unusual.
. "$(dirname "$0")/lib.sh"
variants=$BUILD_DIR/broken/libnccl-net-broken_variants.so
sound=$BUILD_DIR/broken/libnccl-net-broken_none.so
versions="8 11" plugins="none none_stash none_eight"
[ -z "${GANTRY_SANITIZED:-}" ] || { versions=8; plugins="none_stash none_eight"; }

# Each line: a rule, and variants that it must fail; NAME@VERSION for one that only a later version shows.
broken="
table            no_test no_closesend init_crashes devices_unset promises_dmabuf
init-finalize    one_context@11 init_second@11
properties       maxcomms_unset many_recvs name_static name_freed@11
properties       props_few props_recvs props_ptr props_guid props_name_again props_pci_static props_one_thread
properties       devices_change
handle-size      handle_over handle_connect
handle-size      handle_repeats few_listeners
nonblocking      accept_blocks accept_impatient test_waits isend_waits
late-peer        impatient done_unset
late-peer        connect_gives_up accept_gives_up accept_counts recv_gives_up recv_gives_up_later send_gives_up
late-peer        idle_closes
null-request     request_unwritten null_but_sent
in-flight        few_requests few_sends
threads          reg_busy dereg_busy
threads          props_busy
ordering         overtake flip_bit keep_arrays
grouped-tags     ignore_tags last_tag_any
grouped-tags     tags_8bit tags_12bit tags_16bit tags_20bit group_short
recv-larger      clear_rest exact_sizes
size-mismatch    overrun truncate
zero-bytes       crash_empty drop_empty
test-sizes       posted_sizes no_sizes
test-sizes       sizes_arrival sizes_reversed sizes_last sizes_16bit sizes_sum send_sizes_group send_sizes_before
test-sizes       send_sizes_last
optional-recv    optional_elsewhere@11 optional_by_null@11
large            long_end odd_end
large            large_round large_middle large_wraps large_cut large_int@11
close-after-done close_drops close_forgets
close-in-flight  close_waits close_refuses
idle-sender      holds_all holds_large
peer-death       ignore_death ignore_idle_death ignore_late_death
leaks            leak_fd leak_thread leak_memory
leaks            leak_round leak_context@11 leak_listen leak_map leak_reg leak_accept
nccl-sizes       odd_end exact_sizes small_tags done_early
tags-ahead       tags_in_order ignore_tags
tags-ahead       tags_16bit test_in_order test_counts
bootstrap        sizes_always phandles_always@11
devices          second_device second_device@11
vdevice          fuse_lost@11 fuse_deaf@11 fuse_odd@11
comms            few_comms last_comm one_connect
comms            comms_16 comms_table accept_any pool_exhausted
contexts         finalize_blocks@11 finalize_busy@11 one_poster close_all close_all@11
contexts         swap_threads swap_rare swap_large two_posters finalize_all@11
registrations    few_mrs dereg_all
profiler         events_unstarted@11 events_left@11 events_no_handle@11
gpu-memory       gpu_refused@11 gpu_flush_error@11 gpu_flush_writes@11
collnet-table    coll_no_test@6 coll_no_close@12
collnet-properties coll_limit@12 coll_name@8
collnet-connect  coll_handle@8 coll_impatient@12 coll_no_comm@6
collnet-support  coll_support_error@6 coll_support_lies@12 coll_min_is_max@8
collnet-support  coll_max_signed@8 coll_min_unsigned@12 coll_long_signed@6 coll_saturates@6 coll_53bits@12
collnet-support  coll_float@8 coll_prod_half@10 coll_whole@12
collnet-allreduce coll_wrong@10 coll_overrun@6 coll_in_place@8 coll_done_unset@12
collnet-allgather coll_gather_order@8 coll_gather_base@12
collnet-reducescatter coll_scatter_base@12 coll_scatter_first@8
collnet-late     coll_late_error@12 coll_test_waits@6
collnet-death    coll_ignore_death@8 coll_death_done@12
collnet-close    coll_close_waits@12 coll_close_refuses@6
tuner-table      tuner_no_end@5 tuner_no_info@5 tuner_refuses@2
tuner-costs      tuner_none@5 tuner_nvls@5 tuner_negative@2 tuner_strict@3 tuner_constant@5 tuner_seven@3
tuner-costs      tuner_constant@7 tuner_chunk_empty@7 tuner_chunk_strict@7
tuner-agree      tuner_pid@5 tuner_random@2 tuner_chunk_pid@7
tuner-contexts   tuner_latest@2 tuner_counts@5 tuner_one_end@5 tuner_chunk_latest@7
profiler-init    prof_mask_error@5 prof_name@4 prof_no_end@5 prof_one@1
profiler-events  prof_stale@5 prof_stale_kernel@4 prof_args@5 prof_waits@1 prof_copies@6
profiler-parents prof_frees@1 prof_foreign@4 prof_null_parent@5
profiler-null    prof_null_stop@1 prof_null_state@5
profiler-threads prof_one_thread@1 prof_entered@5
many-messages    counter_wraps leak_message isend_waits_rarely
"
# Sound, and what a rule that is too strict would blame.
unusual="
table            late_table late_table@11
properties       speed_unknown two_devices
nonblocking      init_slow
init-finalize    init_once init_slow@11
in-flight        requests_strict
ordering         requests_strict send_sizes_unset late_table shy_recv
tags-ahead       shy_test
grouped-tags     shy_test
late-peer        connect_shakes
comms            connect_shakes
peer-death       death_oldest
threads          thread_bound
comms            thread_bound
contexts         thread_bound thread_bound@11
profiler         events@11
devices          two_devices two_devices@11
vdevice          fuses@11 fuse_refused@11
registrations    null_mr null_mr@11
gpu-memory       gpu@11
many-messages    long_ring
profiler-init    prof_refuses@5
profiler-events  prof_calls@5 prof_calls@1
"

[ -z "${GANTRY_SANITIZED:-}" ] || broken=$(grep -v 'many-messages\|crash\|leaks\|large' <<<"$broken")

# expected VERDICT RULE VARIANT: it has this verdict. What fails by waiting need not wait long.
expected() {
	local rule=$2 name=${3%@*} version=${3#*@} limit=2 out=$tmp/$2.$3
	[ "$version" != "$3" ] || version=8
	case $rule in leaks | many-messages) limit=20 ;; large) limit=10 ;; late-peer) limit=10 ;; collnet-*) limit=4 ;; esac
	[ "$1" = fail ] || limit=60
	BROKEN=$name "$gantry" check "$variants" --rule "$rule" --version "$version" --timeout $limit --retries 0 --device host \
		--json >"$out.out" 2>"$out.err"
	grep -q "\"verdict\": \"$1\"" "$out.out" || echo "$1 $rule $3" >>"$tmp/unexpected"
}

# One that never connects, accepts or completes costs seconds, most of which it waits: it is found out once, and again with
# limits three times as long.
never="never_connects never_accepts never_done"
since=$SECONDS
for name in $never; do
	(
		BROKEN=$name "$gantry" check "$variants" --table net --version 8 --timeout 6 >"$tmp/$name" 2>/dev/null
		echo $((SECONDS - since)) >"$tmp/$name.took"
	) &
done
# One that needs 4 s to connect fails a deadline of 3 s, and passes the second run.
for retries in 0 1; do
	BROKEN=tardy "$gantry" check "$variants" --rule ordering --version 8 --timeout 3 --retries $retries >"$tmp/tardy$retries" 2>/dev/null &
done
# They mostly wait: some at a time. Sanitizers look at the tool, for which every third will do.
n=0
while read -r verdict rule names; do
	for name in $names; do
		[ -z "${GANTRY_SANITIZED:-}" ] || [ $((n++ % 3)) = 0 ] || continue
		while [ "$(jobs -r | wc -l)" -ge 8 ]; do wait -n; done
		expected "$verdict" "$rule" "$name" &
	done
done < <(grep . <<<"$unusual" | sed 's/^/pass /'; grep . <<<"$broken" | sed 's/^/fail /')
wait
# Once more, alone: some count on how fast the machine is.
[ ! -e "$tmp/unexpected" ] || mv "$tmp/unexpected" "$tmp/again"
while read -r verdict rule name; do
	expected "$verdict" "$rule" "$name"
	[ ! -e "$tmp/unexpected" ] || fail "$rule, $name: not $verdict: $(cat "$tmp/$rule.$name.out" "$tmp/$rule.$name.err")"
	rm -f "$tmp/unexpected"
done < <(cat "$tmp/again" 2>/dev/null)

# Every rule has two plugins that it fails, but those that need what the plugin lacks.
for rule in $("$gantry" check --list | awk '{print $1}'); do
	case $rule in symbols | unpack | gin-* | rma-*) continue ;; esac # check_gin.sh
	[ -n "${GANTRY_SANITIZED:-}" ] || [ "$(grep "^$rule " <<<"$broken" | wc -w)" -ge 3 ] || fail "$rule: fewer than two"
done

# Lists of device type UNPACK: too long, and beyond their buffer.
for list in none count range; do
	GANTRY_TEST_LIST=$list "$gantry" check "$BUILD_DIR/fixtures/libnccl-net-unpack.so" --rule unpack --device host --timeout 4 \
		>"$tmp/out" 2>"$tmp/err"
	[ $? = $([ $list = none ]; echo $?) ] || fail "lists, $list: $(cat "$tmp/out" "$tmp/err")"
done

# A plugin that breaks one promise passes most rules.
BROKEN=ignore_tags "$gantry" check "$variants" --table net --version 8 --timeout 8 --json >"$tmp/tags" 2>/dev/null
[ $? -eq 1 ] || fail "ignore_tags: the exit status is not 1"
grep -v '^{"rule": .*}$' "$tmp/tags" && fail "lines that are not reports"
[ "$(grep -c '"verdict": "pass"' "$tmp/tags")" -ge 20 ] || fail "ignore_tags: $(cat "$tmp/tags")"

# What fills its table in init, takes no receive before the other side sends, or reports no sizes, is no stranger to the
# others that load plugins.
for name in late_table shy_recv no_sizes; do
	BROKEN=$name "$gantry" perf net --plugin "$variants" -b 1000 -e 64k -f 64 -n 20 --repeats 1 --depth 4 \
		>"$tmp/out" 2>"$tmp/err" && grep -q 'wrong bytes: 0; OK' "$tmp/out" ||
		fail "perf net with $name: $(cat "$tmp/out" "$tmp/err")"
done
# A registration may be NULL.
BROKEN=null_mr "$gantry" perf sendrecv --transport net --plugin "$variants" -b 256k -e 256k -n 4 --repeats 1 >"$tmp/out.comm" 2>&1 &&
	grep -q 'wrong bytes: 0; OK' "$tmp/out.comm" || fail "perf sendrecv with null_mr: $(cat "$tmp/out.comm")"
grep -q 'a receive says that 0 bytes came' "$tmp/err" || fail "perf net does not warn: $(cat "$tmp/err")"

# One that refuses the machine is a line and exit status 2.
for name in refuses no_devices; do
	BROKEN=$name "$gantry" check "$variants" --version 8 >"$tmp/out" 2>"$tmp/err"
	[ $? -eq 2 ] || fail "$name: the exit status is not 2"
	[ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q 'cannot be tested here' "$tmp/err" ||
		fail "$name: $(cat "$tmp/out" "$tmp/err")"
done
for name in $never; do
	case $name in
	never_connects) why='no connection could be made' ;;
	never_accepts) why='accept has never given a comm' ;;
	*) why='no message has ever arrived' ;;
	esac
	[ "$(grep -c "not run: $why" "$tmp/$name")" -ge 25 ] || fail "$name: $(cat "$tmp/$name")"
	[ "$(cat "$tmp/$name.took")" -lt 60 ] || fail "$name took $(cat "$tmp/$name.took") s"
done
# Which side runs out of time first depends on the machine.
grep -qE ' fail .*(accept still gave no comm|is not done after)' "$tmp/tardy0" || fail "without a second run: $(cat "$tmp/tardy0")"
grep -q ' pass .*second run' "$tmp/tardy1" || fail "with a second run: $(cat "$tmp/tardy1")"

rules=$("$gantry" check --list --table net | wc -l)
for v in $versions; do
	skipped=4 # vdevice, gpu-memory, unpack; before v10 also profiler
	[ "$v" -ge 11 ] && skipped=3
	# As it is; one that holds messages by tag and completes receives out of order; one with receives of eight buffers.
	for plugin in $plugins; do
		check_rules "$tmp/none" $((rules - skipped)) "$BUILD_DIR/broken/libnccl-net-broken_$plugin.so" --table net \
			--version "$v" --timeout 60 --late 500ms || fail "$plugin fails at v$v: $(cat "$tmp/none")"
		echo "$plugin: $passed of $rules rules pass at v$v"
	done
done
# sound TABLE VERSION [SKIPPED]
sound() {
	local n=$(($("$gantry" check --list --table "$1" | wc -l) - ${3:-0}))
	check_rules "$tmp/none" $n "$sound" --table "$1" --version "$2" --timeout 60 || fail "the sound $1: $(cat "$tmp/none")"
	echo "the sound $1: $passed rules pass at v$2"
}
sound collnet 6 2 # neither iallgather nor ireducescatter
sound collnet 12
for v in 2 3 5; do sound tuner $v; done
for v in 1 4 5; do sound profiler $v; done

# What is not a plugin, and wrong usage.
expect 2 "$gantry" check /nonexistent/libnccl-net-x.so
expect 2 "$gantry" check --rule nonsense x
"$gantry" check --list | grep -q '^grouped-tags ' || fail "--list does not name grouped-tags"

[ $failed = 0 ] && echo "ok"
exit $failed
