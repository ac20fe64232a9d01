/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libssl and libcrypto for encryption, opened on first use. A process that does not encrypt never loads them: the
 * plugin and the drop-in run inside other programs' processes, which may have copies of their own. If a copy of the
 * same name is already loaded, that copy is used. The prototypes are those of the library's headers.
 */
#ifndef GANTRY_BASE_OPENSSL_H
#define GANTRY_BASE_OPENSSL_H

#include "gantry/result.h"

#if GANTRY_HAVE_OPENSSL

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>

/* clang-format off */
#define GANTRY_OPENSSL_FUNCTIONS(F) \
	F(OPENSSL_init_crypto) F(ERR_clear_error) F(ERR_peek_last_error) F(ERR_reason_error_string) \
	F(EVP_CIPHER_CTX_new) F(EVP_CIPHER_CTX_free) F(EVP_CIPHER_CTX_ctrl) F(EVP_CipherInit_ex) F(EVP_CipherUpdate) \
	F(EVP_CipherFinal_ex) F(EVP_aes_128_gcm) F(EVP_chacha20_poly1305) \
	F(BIO_new) F(BIO_free) F(BIO_s_mem) F(BIO_read) F(BIO_write) F(BIO_ctrl_pending) \
	F(TLS_method) F(SSL_CTX_new) F(SSL_CTX_free) F(SSL_CTX_ctrl) F(SSL_CTX_set_ciphersuites) F(SSL_CTX_set_options) \
	F(SSL_CTX_clear_options) F(SSL_CTX_set_num_tickets) \
	F(SSL_CTX_set_psk_use_session_callback) F(SSL_CTX_set_psk_find_session_callback) \
	F(SSL_new) F(SSL_free) F(SSL_set_bio) F(SSL_set_ex_data) F(SSL_get_ex_data) F(SSL_set_connect_state) \
	F(SSL_set_accept_state) F(SSL_do_handshake) F(SSL_get_error) F(SSL_session_reused) F(SSL_version) \
	F(SSL_CIPHER_find) F(SSL_SESSION_new) F(SSL_SESSION_free) F(SSL_SESSION_set1_master_key) F(SSL_SESSION_set_cipher) \
	F(SSL_SESSION_set_protocol_version) F(SSL_export_keying_material)
/* clang-format on */

struct gantry_openssl {
#define GANTRY_OPENSSL_FIELD(name) __typeof__(name) *name;
	GANTRY_OPENSSL_FUNCTIONS(GANTRY_OPENSSL_FIELD)
#undef GANTRY_OPENSSL_FIELD
};

/* NULL: it cannot be opened; gantry_openssl_load has logged the reason. */
extern const struct gantry_openssl *gantry_openssl;

#endif

/* Opens it, once; ERR_UNSUPPORTED names what is missing. Call it before gantry_openssl is used. */
gantry_result gantry_openssl_load(void);

#endif
