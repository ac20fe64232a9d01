# SPDX-License-Identifier: Apache-2.0
# For the verdicts of bench/: fields of JSON lines, and the lines about requirements that are met or missed.

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

# sense: 1 if value must be at least limit, -1 at most, 0 exactly. aim: "" or the value to strive for.
function judge(what, b, value, sense, limit, aim, detail, verdict, must) {
	must = sense > 0 ? ">=" : sense < 0 ? "<=" : "=="
	if (value == "")
		verdict = busy ? "not judged" : "not measured"
	else if ((sense && sense * value < sense * limit) || (!sense && value != limit))
		verdict = "MISSED"
	else
		verdict = aim != "" && sense * value >= sense * aim ? "ok, aim reached" : "ok"
	if (verdict == "MISSED" || verdict == "not measured")
		missed++
	judged++
	lines = lines sprintf("%-42s %8s %9s   %s %-5s %-10s %-16s %s\n", what, size_name(b), value == "" ? "-" : sprintf("%.3f", value), \
		must, limit, aim == "" ? "" : "(aim " aim ")", verdict, detail)
}

# What was judged; its exit status.
function conclude(wrong) {
	printf "%-42s %8s %9s   %s\n", "requirement", "size", "measured", "verdict"
	printf "%s", lines
	printf "%d of %d requirements met, %d wrong bytes\n", judged - missed, judged, wrong
	return missed || wrong ? 1 : 0
}
