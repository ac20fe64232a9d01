/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connecting side's parts: a connector (connect.c) is a connect() under way, and has attempts (attempt.c), each of
 * them one socket on its way to become a lane.
 */
#ifndef GANTRY_NET_TCP_CONNECT_H
#define GANTRY_NET_TCP_CONNECT_H

#include "net/tcp/engine.h"

enum attempt_state { ATTEMPT_WAITING, ATTEMPT_CONNECTING, ATTEMPT_WELCOME };

/* One socket on its way to become a lane. */
struct tcp_attempt {
	struct inet_source source;
	struct gantry_list node;
	struct tcp_connector *connector;
	int lane, candidate, rail;
	enum attempt_state state;
	uint64_t start_at, deadline; /* deadline: of TCP's own connecting; what follows has the connector's */
	uint32_t failures;
	struct inet_handshake shake;
};

/* attempt.c */
gantry_result tcp_attempt_add(struct tcp_connector *c, int lane, int candidate, uint64_t start_at);
void tcp_attempt_free(struct tcp_attempt *a) REQUIRES(loop_mu);
void tcp_attempt_start(struct tcp_attempt *a) REQUIRES(loop_mu);
struct gantry_addr tcp_attempt_target(const struct tcp_attempt *a);
/* connect.c: what an attempt came to. Each may free it, and others. */
void tcp_attempt_failed(struct tcp_attempt *a, int e) REQUIRES(loop_mu);
void tcp_attempt_welcomed(struct tcp_attempt *a) REQUIRES(loop_mu);
void tcp_connector_retry(struct tcp_connector *c, int e) REQUIRES(loop_mu); /* all of it, a little later */
void tcp_connector_fail(struct tcp_connector *c, gantry_result r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4))) REQUIRES(loop_mu);

#endif
