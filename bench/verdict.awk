# SPDX-License-Identifier: Apache-2.0
# The verdict on the JSON lines of `gantry perf net --raw`: one line per requirement and size, against the ratios that
# the TCP plugin has to reach (issue 2, "Done when" 3). Only the last run of the input counts. Exit status 1 if any
# requirement is missed or a byte was wrong, 2 if there was nothing to judge. A run whose last line has a warning, because
# other processes or the hypervisor had the CPUs, is not judged, which is said: 77, unless a byte was wrong.
#
#   awk -f bench/verdict.awk bench/results/2025-01-31-aarch64.jsonl

# The number at "key" of the flat object in $0, or "" if it is null or not there.
function field(key, at, text) {
	at = index($0, "\"" key "\":")
	if (!at)
		return ""
	text = substr($0, at + length(key) + 3)
	sub(/^ */, "", text)
	if (text !~ /^-?[0-9]/)
		return ""
	sub(/[,}].*/, "", text)
	return text + 0
}

# The string at "key" of the flat object in $0, or "" if it is null or not there.
function word(key, at, text) {
	at = index($0, "\"" key "\": \"")
	if (!at)
		return ""
	text = substr($0, at + length(key) + 5)
	sub(/".*/, "", text)
	return text
}

function size_name(b) {
	return b >= 1048576 ? b / 1048576 " MiB" : b >= 1024 ? b / 1024 " KiB" : b " B"
}

# sense: 1 if value must be at least limit, -1 at most. aim: "" or the value to strive for.
function judge(what, b, value, sense, limit, aim, verdict) {
	if (value == "")
		verdict = "not measured"
	else if (sense * value < sense * limit)
		verdict = "MISSED"
	else
		verdict = aim != "" && sense * value >= sense * aim ? "ok, aim reached" : "ok"
	if (verdict == "MISSED" || verdict == "not measured")
		missed++
	judged++
	lines = lines sprintf("%-34s %8s %10s   %s %-5s %-9s %s\n", what, size_name(b), value == "" ? "-" : \
		sprintf("%.3f", value), sense > 0 ? ">=" : "<=", limit, aim == "" ? "" : "(aim " aim ")", verdict)
}

/"machine":/ && !/"bytes":/ {
	lines = warning = ""
	missed = judged = wrong = 0
}

/"bytes":/ {
	b = field("bytes")
	bw = field("bw_ratio")
	wrong += field("wrong")
	if (b == 64)
		judge("message rate / raw", b, bw, 1, 3, "")
	if (b == 64)
		judge("one-way latency / raw", b, field("lat_ratio"), -1, 1.1, 0.8)
	if (b == 4096)
		judge("bandwidth / raw", b, bw, 1, 1, "")
	if (b == 65536 || b == 262144)
		judge("bandwidth / raw", b, bw, 1, 0.95, "")
	if (b >= 1048576)
		judge("bandwidth / raw", b, bw, 1, 1.3, 1.6)
	if (b == 1048576) {
		judge("calls that moved bytes / MiB, tx", b, field("syscalls_per_mib_tx"), -1, 4, "")
		judge("calls that moved bytes / MiB, rx", b, field("syscalls_per_mib_rx"), -1, 4, "")
		judge("all calls / MiB", b, field("calls_per_mib"), -1, 100, "")
	}
	judge("CPU seconds per GB / raw", b, field("cpu_ratio"), -1, 1, "")
}

/"wrong_bytes":/ {
	warning = word("warning")
}

END {
	if (!judged) {
		print "nothing to judge: no line of `gantry perf net --raw --json`"
		exit 2
	}
	if (warning != "") {
		printf "not judged: %s; %d wrong bytes\n", warning, wrong
		exit wrong ? 1 : 77
	}
	printf "%-34s %8s %10s   %s\n", "requirement", "size", "measured", "verdict"
	printf "%s", lines
	printf "%d of %d requirements met, %d wrong bytes\n", judged - missed, judged, wrong
	exit missed || wrong ? 1 : 0
}
