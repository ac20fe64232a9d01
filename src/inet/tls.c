/* SPDX-License-Identifier: Apache-2.0 */
#include "inet/tls.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/openssl.h"

size_t inet_tls_record_size(const uint8_t *m, size_t got)
{
	size_t n;

	if (got && (m[0] < 20 || m[0] > 23)) /* change_cipher_spec, alert, handshake, application_data */
		return 0;
	if (got < INET_TLS_HEADER)
		return INET_TLS_HEADER;
	n = (size_t)m[3] << 8 | m[4];
	return n && n <= INET_TLS_RECORD_MAX - INET_TLS_HEADER ? INET_TLS_HEADER + n : 0;
}

#if GANTRY_HAVE_OPENSSL

static const unsigned char suite[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */
static const char identity[] = "gantry";
static const char label[] = "EXPORTER-gantry-lane";

static SSL_CTX *shared; /* of all runs; stays until the process ends. NULL: libssl refuses */

struct inet_tls {
	SSL *ssl;
	BIO *in, *out; /* the SSL's */
	uint8_t psk[GANTRY_MAC_SIZE];
};

/* The pre-shared key in the form that libssl wants it; NULL: no memory. The caller owns it. */
static SSL_SESSION *psk_session(SSL *ssl)
{
	const struct gantry_openssl *o = gantry_openssl;
	const struct inet_tls *t = o->SSL_get_ex_data(ssl, 0);
	const SSL_CIPHER *cipher = o->SSL_CIPHER_find(ssl, suite);
	SSL_SESSION *s = o->SSL_SESSION_new();

	if (!s || !cipher || !o->SSL_SESSION_set1_master_key(s, t->psk, sizeof(t->psk)) ||
	    !o->SSL_SESSION_set_cipher(s, cipher) || !o->SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION)) {
		o->SSL_SESSION_free(s);
		return NULL;
	}
	return s;
}

static int use_psk(SSL *ssl, const EVP_MD *md, const unsigned char **ret_id, size_t *ret_size, SSL_SESSION **ret)
{
	(void)md; /* SHA-256: there is one suite */
	*ret = psk_session(ssl);
	*ret_id = (const unsigned char *)identity;
	*ret_size = strlen(identity);
	return *ret != NULL;
}

static int find_psk(SSL *ssl, const unsigned char *id, size_t size, SSL_SESSION **ret)
{
	*ret = size == strlen(identity) && memcmp(id, identity, size) == 0 ? psk_session(ssl) : NULL;
	return 1;
}

static void make_context(void)
{
	const struct gantry_openssl *o = gantry_openssl;
	SSL_CTX *ctx = o->SSL_CTX_new(o->TLS_method());

	if (!ctx)
		return;
	o->SSL_CTX_ctrl(ctx, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, NULL);
	o->SSL_CTX_set_psk_use_session_callback(ctx, use_psk);
	o->SSL_CTX_set_psk_find_session_callback(ctx, find_psk);
	o->SSL_CTX_clear_options(ctx, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
	o->SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
	/* Also where the system's configuration wants less, or something else. */
	if (o->SSL_CTX_ctrl(ctx, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL) &&
	    o->SSL_CTX_ctrl(ctx, SSL_CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION, NULL) &&
	    o->SSL_CTX_ctrl(ctx, SSL_CTRL_SET_GROUPS_LIST, 0, (void *)(uintptr_t) "X25519:P-256") &&
	    o->SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") && o->SSL_CTX_set_num_tickets(ctx, 0))
		shared = ctx;
	else
		o->SSL_CTX_free(ctx);
}

static bool set_up(struct inet_tls *t, bool client)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct gantry_openssl *o = gantry_openssl;

	pthread_once(&once, make_context);
	t->ssl = shared ? o->SSL_new(shared) : NULL;
	t->in = o->BIO_new(o->BIO_s_mem());
	t->out = o->BIO_new(o->BIO_s_mem());
	if (!t->ssl || !t->in || !t->out || !o->SSL_set_ex_data(t->ssl, 0, t)) {
		o->BIO_free(t->in);
		o->BIO_free(t->out);
		return false;
	}
	o->SSL_set_bio(t->ssl, t->in, t->out);
	if (client)
		o->SSL_set_connect_state(t->ssl);
	else
		o->SSL_set_accept_state(t->ssl);
	return true;
}

struct inet_tls *inet_tls_new(bool client, const uint8_t psk[GANTRY_MAC_SIZE])
{
	struct inet_tls *t = calloc(1, sizeof(*t));

	ASSERT(gantry_openssl);
	if (!t)
		return NULL;
	memcpy(t->psk, psk, sizeof(t->psk));
	gantry_openssl->ERR_clear_error();
	if (set_up(t, client))
		return t;
	inet_tls_free(t);
	return NULL;
}

void inet_tls_free(struct inet_tls *t)
{
	if (!t)
		return;
	gantry_openssl->SSL_free(t->ssl); /* wipes its secrets */
	explicit_bzero(t, sizeof(*t));
	free(t);
}

int inet_tls_input(struct inet_tls *t, const uint8_t *record, size_t n, char *why, size_t why_size)
{
	const struct gantry_openssl *o = gantry_openssl;
	const char *reason;
	int rc;

	o->ERR_clear_error();
	if (n && o->BIO_write(t->in, record, (int)n) != (int)n) {
		snprintf(why, why_size, "no memory");
		return -1;
	}
	rc = o->SSL_do_handshake(t->ssl);
	if (rc == 1) { /* psk_dhe_ke of TLS 1.3 and nothing less; any record after the last one is an error */
		if (o->SSL_session_reused(t->ssl) && o->SSL_version(t->ssl) == TLS1_3_VERSION &&
		    !o->BIO_ctrl_pending(t->in))
			return 1;
		snprintf(why, why_size, "TLS did not use the pre-shared key");
		return -1;
	}
	if (o->SSL_get_error(t->ssl, rc) == SSL_ERROR_WANT_READ)
		return 0;
	reason = o->ERR_reason_error_string(o->ERR_peek_last_error());
	snprintf(why, why_size, "%s", reason ? reason : "unknown cause");
	o->ERR_clear_error();
	return -1;
}

size_t inet_tls_output(struct inet_tls *t, uint8_t *out, size_t room)
{
	int n = gantry_openssl->BIO_read(t->out, out, (int)room);

	return n > 0 ? (size_t)n : 0;
}

bool inet_tls_export(struct inet_tls *t, const uint8_t *context, size_t context_size,
		     uint8_t ret_secrets[2][GANTRY_SEAL_SECRET])
{
	return gantry_openssl->SSL_export_keying_material(t->ssl, ret_secrets[0], 2 * GANTRY_SEAL_SECRET, label,
							  sizeof(label) - 1, context, context_size, 1) == 1;
}

#else

struct inet_tls *inet_tls_new(bool client, const uint8_t psk[GANTRY_MAC_SIZE])
{
	(void)client, (void)psk;
	return NULL;
}

void inet_tls_free(struct inet_tls *t)
{
	(void)t;
}

int inet_tls_input(struct inet_tls *t, const uint8_t *record, size_t n, char *why, size_t why_size)
{
	(void)t, (void)record, (void)n, (void)why, (void)why_size;
	return -1;
}

size_t inet_tls_output(struct inet_tls *t, uint8_t *out, size_t room)
{
	(void)t, (void)out, (void)room;
	return 0;
}

bool inet_tls_export(struct inet_tls *t, const uint8_t *context, size_t context_size,
		     uint8_t ret_secrets[2][GANTRY_SEAL_SECRET])
{
	(void)t, (void)context, (void)context_size, (void)ret_secrets;
	return false;
}

#endif
