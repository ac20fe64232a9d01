# SPDX-License-Identifier: Apache-2.0
# The verdict on the JSON lines of `gantry perf net --raw`: one line per requirement and size, against the ratios that
# the TCP plugin has to reach (issue 2, "Done when" 3). Only the last run of the input counts. Exit status 1 if any
# requirement is missed or a byte was wrong, 2 if there was nothing to judge. A run whose last line has a warning, because
# other processes or the hypervisor had the CPUs, is not judged, which is said: 77, unless a byte was wrong.
#
#   awk -f bench/lib.awk -f bench/verdict.awk bench/results/2025-01-31-aarch64.jsonl

/"machine":/ && !/"bytes":/ {
	lines = warning = ""
	missed = judged = wrong = 0
}

/"bytes":/ {
	b = field("bytes")
	bw = field("bw_ratio")
	wrong += field("wrong")
	if (b == 64)
		judge("message rate / raw", b, bw, 1, 3)
	if (b == 64)
		judge("one-way latency / raw", b, field("lat_ratio"), -1, 1.1, 0.8)
	if (b == 4096)
		judge("bandwidth / raw", b, bw, 1, 1)
	if (b == 65536 || b == 262144)
		judge("bandwidth / raw", b, bw, 1, 0.95)
	if (b >= 1048576)
		judge("bandwidth / raw", b, bw, 1, 1.3, 1.6)
	if (b == 1048576) {
		judge("calls that moved bytes / MiB, tx", b, field("syscalls_per_mib_tx"), -1, 4)
		judge("calls that moved bytes / MiB, rx", b, field("syscalls_per_mib_rx"), -1, 4)
		judge("all calls / MiB", b, field("calls_per_mib"), -1, 100)
	}
	judge("CPU seconds per GB / raw", b, field("cpu_ratio"), -1, 1)
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
	exit conclude(wrong)
}
