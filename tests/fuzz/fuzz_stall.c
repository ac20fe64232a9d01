/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `gantry stall` reads: JSON lines that may be cut, damaged or made up. The reader stays within its text, and
 * whatever reports come of it, the verdict ends and names a rank of the communicator or nobody.
 */
#include "script.h"
#include "stall/stall_set.h"

static void check_values(const struct json_doc *doc, const char *text, size_t length)
{
	for (size_t i = 0; i < doc->n; i++) {
		const struct json_value *v = &doc->values[i];

		MUST(v->next < doc->n && v->first < doc->n);
		MUST(!v->next || v->next > i);
		MUST(!v->first || v->first > i);
		MUST(!v->text || (v->text > text && v->text <= text + length));
	}
}

static void judge_all(const struct stall_set *set)
{
	struct stall_verdict v;

	stall_judge_processes(set, &v);
	MUST(v.rank >= -1 && *v.text && v.votes >= 0 && v.votes <= v.reports);
	for (size_t i = 0; i < set->ncomms; i++) {
		if (!set->comms[i].nreports || set->comms[i].nranks > 4096)
			continue;
		stall_judge(set, i, &v);
		MUST(v.rank >= -1 && v.rank < set->comms[i].nranks);
		MUST(*v.text && v.votes >= 0 && v.votes <= v.reports);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script in = {data, data + size};
	struct stall_set set = {0};
	struct json_doc doc = {0};
	size_t n;

	for (char *line; (line = script_line(&in, &n));) {
		if (json_parse(line, n, &doc) == 0) {
			check_values(&doc, line, n);
			if (doc.values[0].type == JSON_OBJECT)
				stall_take(&set, &doc);
		}
		free(line);
	}
	judge_all(&set);
	stall_free(&set);
	json_free(&doc);
	return 0;
}
