/* SPDX-License-Identifier: Apache-2.0 */
/* Plain TCP sockets over loopback, for peers that a test plays by hand. All of them are closed on exec. */
#ifndef GANTRY_TESTS_SOCKS_H
#define GANTRY_TESTS_SOCKS_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

/* 127.0.0.1 with this port. */
struct sockaddr_in lo_addr(int port);

/* The port in "host:port". */
int port_of(const char *address);

/* A socket that is bound there, to any port for 0, and does not listen yet. */
int lo_bound(int port, int *ret_port);

/* A socket that listens there. */
int lo_listen(int port, int *ret_port);

/* A port that was free a moment ago. */
int lo_free_port(void);

/* Blocking. dial returns -1 where nobody listens, the others fail then. */
int dial(const struct sockaddr_in *to);
int lo_dial(int port);
int dial_hard(const struct sockaddr_in *to);

/* Both ends of a connection, blocking. */
void lo_pair(int fd[2]);

/* All of it, or the test's failure. */
void send_all(int fd, const void *data, size_t n);
void recv_all(int fd, void *data, size_t n);

#endif
