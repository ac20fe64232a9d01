/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The profiler callback that foreign plugins get: what they may call it with. Catches: a start without a handle that is
 * believed, a stop of what never started or of what another profiler left there, data that is read though its layout is
 * not known.
 */
#include <stdlib.h>

#include "base/event.h"
#include "base/param.h"
#include "base/trace.h"
#include "net/plugin_events.h"
#include "test.h"

enum { MOST = 64, CONN = 0x7ffffff, SOCKET_V1 = 2 << 16 | 1, IB_V1 = 1 << 16 | 1 };

static struct gantry_event events[MOST];

static size_t plugin_events(void)
{
	size_t n = gantry_event_snapshot(events, MOST), kept = 0;

	for (size_t i = 0; i < n; i++)
		if (events[i].kind == GANTRY_EV_PLUGIN)
			events[kept++] = events[i];
	return kept;
}

#define CALLBACK(...) CHECK_EQ(gantry_plugin_event(__VA_ARGS__), ncclSuccess)

/* Without a trace nothing is looked at. */
TEST(check_off)
{
	int anything = 0;
	void *event = &anything;

	CALLBACK(&event, ncclProfilerNetEventStart, &anything, SOCKET_V1, &anything);
	CALLBACK(&event, ncclProfilerNetEventStop, NULL, SOCKET_V1, NULL);
	CHECK(event == &anything);
	CHECK_EQ(plugin_events(), 0);
}

TEST(check_on)
{
	struct gantry_net_note note = {.conn = CONN, .step = UINT32_MAX};
	ncclProfilerNetIbDescr_v1_t ib = {.qp = {.length = 1ull << 40}};
	ncclProfilerNetSockDescr_v1_t sock = {.sock = {.length = 12345}};
	char other;
	void *event = &other, *second = NULL;

	CALLBACK(&event, ncclProfilerNetEventStart, &note, SOCKET_V1, &sock);
	CALLBACK(&second, ncclProfilerNetEventStart, &note, IB_V1, &ib);
	CHECK(event && event != &other && second && second != event);
	note = (struct gantry_net_note){0, 0}; /* the message is over, and its events are not */
	CALLBACK(&event, ncclProfilerNetEventUpdate, NULL, SOCKET_V1, &sock);
	CALLBACK(&event, ncclProfilerNetEventStop, NULL, SOCKET_V1, NULL);
	CALLBACK(&second, ncclProfilerNetEventUpdateAndStop, NULL, IB_V1, &ib);
	CHECK_EQ(plugin_events(), 5);
	for (int i = 0; i < 5; i++)
		CHECK_EQ(events[i].a, CONN);
	CHECK_EQ(events[0].b >> 32, UINT32_MAX);
	CHECK_EQ(events[0].c, 12345);
	CHECK_EQ(events[1].c, 1ull << 40);
	CHECK_EQ(events[2].b, (uint32_t)events[0].b);
	CHECK_EQ(events[2].c, 12345 | GANTRY_EV_OP_CUT);
	CHECK_EQ(events[3].c, GANTRY_EV_OP_END);
	CHECK_EQ(events[4].b, (uint32_t)events[1].b);
	CHECK_EQ(events[4].c, 1ull << 40 | GANTRY_EV_OP_END);
}

/* None of these is an event, and no data is read. */
TEST(check_strange)
{
	struct gantry_net_note note = {1, 2};
	char one = 1;
	void *event = &one, *none = NULL;
	size_t before = plugin_events();

	CALLBACK(&event, ncclProfilerNetEventStart, NULL, SOCKET_V1, NULL);
	CHECK(event == NULL);
	CALLBACK(&event, ncclProfilerNetEventStop, NULL, SOCKET_V1, NULL);
	event = &one; /* of some other profiler */
	CALLBACK(&event, ncclProfilerNetEventStop, NULL, SOCKET_V1, NULL);
	CALLBACK(&none, ncclProfilerNetEventUpdateAndStop, NULL, SOCKET_V1, NULL);
	CALLBACK(NULL, ncclProfilerNetEventStart, &note, SOCKET_V1, NULL);
	CHECK_EQ(plugin_events(), before);
	CALLBACK(&event, ncclProfilerNetEventStart, &note, 3 << 16 | 1, &one); /* whose data */
	CALLBACK(&event, ncclProfilerNetEventStop, NULL, 2 << 16 | 2, &one);   /* which version */
	CHECK_EQ(plugin_events(), before + 2);
	CHECK_EQ(events[before].c, 0);
	CHECK_EQ(events[before + 1].c, GANTRY_EV_OP_END);
}

int main(void)
{
	unsetenv("GANTRY_TRACE");
	CHECK_OK(gantry_params_load(1));
	gantry_trace_begin();
	check_off();
	setenv("GANTRY_TRACE", "/nowhere/%r", 1);
	CHECK_OK(gantry_params_load(1));
	gantry_trace_begin();
	check_on();
	check_strange();
	return 0;
}
