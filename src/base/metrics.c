/* SPDX-License-Identifier: Apache-2.0 */
#include "base/metrics.h"

#include <stdlib.h>
#include <string.h>

enum kind { COUNTER, GAUGE };
enum unit { ONE, NS };

static const struct {
	enum kind kind;
	enum unit unit;
	const char *name, *help;
} families[GANTRY_METRICS] = {
#define M(id, kind, unit, name, help) [GANTRY_METRIC_##id] = {kind, unit, name, help},
#include "base/metrics.def"
#undef M
};

void gantry_metrics_free(struct gantry_metrics *m)
{
	free(m->samples);
	free(m->text);
	*m = (struct gantry_metrics){0};
}

/* Room for so many more bytes of text. 0: there is none. */
static int grow_text(struct gantry_metrics *m, size_t more)
{
	size_t room = m->text_room ? m->text_room : 4096;
	char *grown;

	while (room - m->len < more)
		room *= 2;
	if (room == m->text_room)
		return 1;
	grown = room <= UINT32_MAX ? realloc(m->text, room) : NULL;
	if (!grown) {
		m->failed = 1;
		return 0;
	}
	m->text = grown;
	m->text_room = room;
	if (!m->len)
		m->text[m->len++] = 0; /* the empty set */
	return 1;
}

/* In quotes a backslash, a quote and a newline are escaped. */
static char *escape(char *to, const char *value)
{
	for (; *value; value++) {
		if (*value == '\\' || *value == '"' || *value == '\n')
			*to++ = '\\';
		*to++ = *value == '\n' ? 'n' : *value;
	}
	return to;
}

uint32_t gantry_metrics_label(struct gantry_metrics *m, uint32_t base, const char *name, const char *value)
{
	size_t before = base ? strlen(m->text + base) : 0, name_len = strlen(name);
	uint32_t at;
	char *to;

	if (!grow_text(m, before + name_len + 2 * strlen(value) + 5))
		return base;
	at = (uint32_t)m->len;
	to = m->text + at;
	if (before) {
		memcpy(to, m->text + base, before);
		to += before;
		*to++ = ',';
	}
	memcpy(to, name, name_len);
	to += name_len;
	*to++ = '=';
	*to++ = '"';
	to = escape(to, value);
	*to++ = '"';
	*to++ = 0;
	m->len = (size_t)(to - m->text);
	return at;
}

uint32_t gantry_metrics_label_int(struct gantry_metrics *m, uint32_t base, const char *name, int64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%lld", (long long)value);
	return gantry_metrics_label(m, base, name, text);
}

void gantry_metrics_put(struct gantry_metrics *m, enum gantry_metric metric, uint32_t labels, uint64_t value)
{
	struct gantry_sample *grown;

	if (m->n == m->room) {
		grown = realloc(m->samples, (2 * m->room + 64) * sizeof(*grown));
		if (!grown) {
			m->failed = 1;
			return;
		}
		m->samples = grown;
		m->room = 2 * m->room + 64;
	}
	m->samples[m->n++] = (struct gantry_sample){.metric = metric, .labels = labels, .value = value};
}

static void write_sample(const struct gantry_metrics *m, const struct gantry_sample *s, FILE *f)
{
	fputs(families[s->metric].name, f);
	if (s->labels)
		fprintf(f, "{%s}", m->text + s->labels);
	if (families[s->metric].unit == NS)
		fprintf(f, " %llu.%09llu\n", (unsigned long long)(s->value / 1000000000),
			(unsigned long long)(s->value % 1000000000));
	else
		fprintf(f, " %llu\n", (unsigned long long)s->value);
}

/* A bucket for each metric, filled from the back, keeps the order in which samples came. */
void gantry_metrics_write(const struct gantry_metrics *m, FILE *f)
{
	uint32_t first[GANTRY_METRICS], *next = malloc((m->n + 1) * sizeof(*next));

	if (!next)
		return;
	for (int i = 0; i < GANTRY_METRICS; i++)
		first[i] = UINT32_MAX;
	for (size_t i = m->n; i-- > 0;) {
		next[i] = first[m->samples[i].metric];
		first[m->samples[i].metric] = (uint32_t)i;
	}
	for (int i = 0; i < GANTRY_METRICS; i++) {
		if (first[i] == UINT32_MAX)
			continue;
		fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", families[i].name, families[i].help, families[i].name,
			families[i].kind == COUNTER ? "counter" : "gauge");
		for (uint32_t k = first[i]; k != UINT32_MAX; k = next[k])
			write_sample(m, &m->samples[k], f);
	}
	free(next);
}
