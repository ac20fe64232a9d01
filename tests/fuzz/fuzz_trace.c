/* SPDX-License-Identifier: Apache-2.0 */
/* What `gantry trace` reads: a file that may be cut, damaged or made up becomes a reason, or a picture that is JSON. */
#include "script.h"
#include "trace/trace_set.h"

static int take_all(struct trace_set *set, const uint8_t *data, size_t size)
{
	struct script in = {data, data + size};
	struct json_doc doc = {0};
	int good = 1;
	size_t n;

	for (char *line; good && (line = script_line(&in, &n));) {
		good = json_parse(line, n, &doc) == 0 && doc.values[0].type == JSON_OBJECT && !trace_take(set, &doc);
		free(line);
	}
	json_free(&doc);
	return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct trace_set set = {0};
	struct json_doc doc = {0};
	char *text = NULL;
	size_t n = 0;
	FILE *f;

	if (take_all(&set, data, size)) {
		f = open_memstream(&text, &n);
		MUST(f);
		trace_write_chrome(&set, f);
		fclose(f);
		MUST(json_parse(text, n, &doc) == 0);
		json_free(&doc);
		free(text);
	}
	trace_free(&set);
	return 0;
}
