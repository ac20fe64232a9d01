# SPDX-License-Identifier: Apache-2.0
# The verdict on the JSON lines of bench/sendrecv.sh: medians over the rounds, one line per requirement and size. Only
# the last run of the input counts; a line with "bench" begins one. Exit status 1 if any requirement is missed or a byte
# was wrong, 2 if there was nothing to judge. A measurement whose last line has a warning, because other processes or the
# hypervisor had the CPUs, is left out; if those are a third or more, nothing is judged: 77, unless a byte was wrong.
#
#   awk -f bench/lib.awk -f bench/sendrecv_verdict.awk bench/results/2025-01-31-aarch64-sendrecv.jsonl

# A value of a series at a size, beside those of the other rounds: for the time being until the measurement has ended.
function keep(series, b, what, value) {
	if (value == "")
		return
	held_key[++held] = series SUBSEP b SUBSEP what
	held_value[held] = value
}

# The measurement has ended, and counts or not.
function settle(counts, i, k) {
	for (i = 1; counts && i <= held; i++) {
		k = held_key[i]
		values[k, ++total[k]] = held_value[i]
	}
	held = 0
}

function median(series, b, what, k, n, i, j, t, v) {
	k = series SUBSEP b SUBSEP what
	n = total[k]
	if (!n)
		return ""
	for (i = 1; i <= n; i++)
		v[i] = values[k, i]
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && v[j - 1] > v[j]; j--) {
			t = v[j]
			v[j] = v[j - 1]
			v[j - 1] = t
		}
	return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
}

# The second of two medians by the first.
function ratio(a, b) {
	return a == "" || b == "" || b == 0 ? "" : a / b
}

function against(format, a, b) {
	return a == "" || b == "" ? "" : sprintf(format, a, b)
}

/"bench": "sendrecv"/ {
	split("", values)
	split("", total)
	split("", sizes)
	split("", n_of)
	wrong = held = runs = busy = 0
}

# Files of earlier days have no last lines: there the next first line ends a measurement.
/"machine":/ && !/"bytes":/ {
	settle(1)
}

/"wrong_bytes":/ {
	runs++
	if (word("warning") != "") {
		warning = word("warning")
		busy++
	}
	settle(word("warning") == "")
}

/"bytes":/ {
	s = word("series")
	b = field("bytes")
	wrong += field("wrong")
	if (!((s, b) in sizes))
		order[s, ++n_of[s]] = b
	sizes[s, b] = 1
	keep(s, b, "bw", s == "net" ? field("bw_gbs") : field("busbw_gbs"))
	keep(s, b, "memcpy", field("memcpy_gbs"))
	keep(s, b, "us", field("time_us"))
	keep(s, b, "flag", field("flag_us"))
	keep(s, b, "send", field("copies_send"))
	keep(s, b, "recv", field("copies_recv"))
}

function judge_net(i, b, mine, base) {
	for (i = 1; i <= n_of["net"]; i++) {
		b = order["net", i]
		mine = median("sr_net", b, "bw")
		base = median("net", b, "bw")
		judge("sendrecv over net / perf net", b, ratio(mine, base), 1, 0.9, "", against("%.2f / %.2f GB/s", mine, base))
	}
}

function judge_shm(pattern, s, i, b, mine, base) {
	s = "shm_" pattern
	for (i = 1; i <= n_of[s]; i++) {
		b = order[s, i]
		mine = median(s, b, "bw")
		base = median(s, b, "memcpy")
		judge("sendrecv over shm, " pattern " / memcpy", b, ratio(mine, base), 1, 0.5, 0.8, against("%.2f / %.2f GB/s", mine, base))
	}
}

function judge_latency(mine, base) {
	mine = median("shm_latency", 8, "us")
	base = median("shm_latency", 8, "flag")
	judge("shm latency, kernels / bare flag", 8, ratio(mine, base), -1, 3, "", against("%.3f / %.3f us", mine, base))
	mine = median("shm_calls", 8, "us")
	base = median("shm_calls", 8, "flag")
	judge("shm latency, with calls / bare flag", 8, ratio(mine, base), -1, 3, "", against("%.3f / %.3f us", mine, base))
}

# One copy less on each side than through a ring or a pool.
function judge_copies(mode, side, i, b, full, ptr) {
	for (i = 1; i <= n_of["copies_ptr"]; i++) {
		b = order["copies_ptr", i]
		full = median("copies_" mode, b, side)
		ptr = median("copies_ptr", b, side)
		judge("copies saved by ptr, net, " side ", to " mode, b, full == "" || ptr == "" ? "" : full - ptr, 0, 1, "", \
			against("%g - %g", full, ptr))
	}
}

END {
	if (!n_of["net"] && !n_of["shm_oneway"]) {
		print "nothing to judge: no lines of bench/sendrecv.sh"
		exit 2
	}
	settle(1)
	if (busy * 3 >= runs && busy) {
		printf "not judged: in %d of %d measurements the machine was busy, the last time %s; %d wrong bytes\n", busy, runs, \
			warning, wrong
		exit wrong ? 1 : 77
	}
	if (busy)
		printf "%d of %d measurements are left out: the machine was busy\n", busy, runs
	judge_net()
	judge_shm("oneway")
	judge_shm("ring")
	judge_latency()
	judge_copies("normal", "send")
	judge_copies("normal", "recv")
	judge_copies("offset", "send")
	judge_copies("offset", "recv")
	exit conclude(wrong)
}
