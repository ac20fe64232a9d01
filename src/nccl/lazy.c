/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Libraries beside libc, opened when something of theirs is first called. This library is preloaded into whole process
 * trees: a shell must not load libcrypto for it. So functions of the same names stand here, hidden, and the core's calls
 * are resolved to them when it is linked. The compiler compares each with the prototype in the library's own header.
 *
 * Where a library is not there at run time its functions fail as they would fail for other reasons.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"

#if GANTRY_HAVE_OPENSSL
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#endif
#if GANTRY_HAVE_HWLOC
#include <hwloc.h>
#endif
#if GANTRY_HAVE_LIBMNL
#include <libmnl/libmnl.h>
#endif

/* Never closed. Two threads may both find it: it is the same. */
__attribute__((unused)) static void *find_function(const char *library, const char *name)
{
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL), *p = lib ? dlsym(lib, name) : NULL;

	if (!p)
		LOG_WARN(BASE, "%s of %s: %s", name, library, dlerror());
	return p;
}

/* A function with its parameters and arguments. Where the library is not there, `failed` is what it returns. */
#define LAZY_AS(library, type, name, params, call, failed)                                                             \
	type name params                                                                                               \
	{                                                                                                              \
		static type(*found) params;                                                                            \
		type(*f) params = load_acquire(&found);                                                                \
                                                                                                                       \
		if (!f) {                                                                                              \
			void *at = find_function(library, #name);                                                      \
                                                                                                                       \
			if (!at) {                                                                                     \
				errno = ENOENT;                                                                        \
				failed;                                                                                \
			}                                                                                              \
			memcpy(&f, &at, sizeof(f));                                                                    \
			store_release(&found, f);                                                                      \
		}                                                                                                      \
		call;                                                                                                  \
	}
#define LAZY(library, type, name, params, args, failed)                                                                \
	LAZY_AS(library, type, name, params, return f args, return failed)
#define LAZY_VOID(library, name, params, args) LAZY_AS(library, void, name, params, f args, return )

/* clang-format off */
#if GANTRY_HAVE_OPENSSL
#if OPENSSL_VERSION_NUMBER >= 0x30000000L
#define LIBCRYPTO "libcrypto.so.3"
#else
#define LIBCRYPTO "libcrypto.so.1.1"
#endif
#define CRYPTO(...) LAZY(LIBCRYPTO, __VA_ARGS__)
CRYPTO(const EVP_MD *, EVP_sha256, (void), (), NULL)
CRYPTO(unsigned char *, HMAC, (const EVP_MD *md, const void *key, int key_len, const unsigned char *data, size_t n, unsigned char *out, unsigned *out_len), (md, key, key_len, data, n, out, out_len), NULL)
CRYPTO(int, OPENSSL_init_crypto, (uint64_t what, const OPENSSL_INIT_SETTINGS *settings), (what, settings), 0)
#endif

#if GANTRY_HAVE_HWLOC
#define LIBHWLOC "libhwloc.so.15"
#define HWLOC(...) LAZY(LIBHWLOC, __VA_ARGS__)
HWLOC(int, hwloc_topology_init, (hwloc_topology_t *t), (t), -1)
HWLOC(int, hwloc_topology_load, (hwloc_topology_t t), (t), -1)
HWLOC(int, hwloc_topology_set_all_types_filter, (hwloc_topology_t t, enum hwloc_type_filter_e filter), (t, filter), -1)
HWLOC(int, hwloc_topology_set_io_types_filter, (hwloc_topology_t t, enum hwloc_type_filter_e filter), (t, filter), -1)
HWLOC(int, hwloc_topology_set_components, (hwloc_topology_t t, unsigned long flags, const char *name), (t, flags, name), -1)
HWLOC(int, hwloc_get_type_depth, (hwloc_topology_t t, hwloc_obj_type_t type), (t, type), -1)
HWLOC(hwloc_obj_t, hwloc_get_obj_by_depth, (hwloc_topology_t t, int depth, unsigned i), (t, depth, i), NULL)
HWLOC(int, hwloc_bitmap_isset, (hwloc_const_bitmap_t b, unsigned i), (b, i), 0)
HWLOC(int, hwloc_bitmap_intersects, (hwloc_const_bitmap_t a, hwloc_const_bitmap_t b), (a, b), 0)
HWLOC(int, hwloc_bitmap_weight, (hwloc_const_bitmap_t b), (b), 0)
HWLOC(int, hwloc_bitmap_first, (hwloc_const_bitmap_t b), (b), -1)
LAZY_VOID(LIBHWLOC, hwloc_topology_destroy, (hwloc_topology_t t), (t))
#endif

/* Without a socket none of the others is called. */
#if GANTRY_HAVE_LIBMNL
#define LIBMNL "libmnl.so.0"
#define MNL(...) LAZY(LIBMNL, __VA_ARGS__)
MNL(struct mnl_socket *, mnl_socket_open2, (int bus, int flags), (bus, flags), NULL)
MNL(int, mnl_socket_bind, (struct mnl_socket *s, unsigned groups, pid_t pid), (s, groups, pid), -1)
MNL(int, mnl_socket_close, (struct mnl_socket *s), (s), -1)
MNL(int, mnl_socket_get_fd, (const struct mnl_socket *s), (s), -1)
MNL(ssize_t, mnl_socket_sendto, (const struct mnl_socket *s, const void *p, size_t n), (s, p, n), -1)
MNL(ssize_t, mnl_socket_recvfrom, (const struct mnl_socket *s, void *p, size_t n), (s, p, n), -1)
MNL(int, mnl_socket_setsockopt, (const struct mnl_socket *s, int type, void *p, socklen_t n), (s, type, p, n), -1)
MNL(size_t, mnl_nlmsg_get_payload_len, (const struct nlmsghdr *m), (m), 0)
MNL(struct nlmsghdr *, mnl_nlmsg_put_header, (void *p), (p), NULL)
MNL(void *, mnl_nlmsg_put_extra_header, (struct nlmsghdr *m, size_t n), (m, n), NULL)
MNL(bool, mnl_nlmsg_ok, (const struct nlmsghdr *m, int n), (m, n), false)
MNL(struct nlmsghdr *, mnl_nlmsg_next, (const struct nlmsghdr *m, int *n), (m, n), NULL)
MNL(void *, mnl_nlmsg_get_payload, (const struct nlmsghdr *m), (m), NULL)
MNL(void *, mnl_nlmsg_get_payload_offset, (const struct nlmsghdr *m, size_t n), (m, n), NULL)
MNL(void *, mnl_nlmsg_get_payload_tail, (const struct nlmsghdr *m), (m), NULL)
MNL(uint16_t, mnl_attr_get_type, (const struct nlattr *a), (a), 0)
MNL(uint16_t, mnl_attr_get_payload_len, (const struct nlattr *a), (a), 0)
MNL(void *, mnl_attr_get_payload, (const struct nlattr *a), (a), NULL)
MNL(uint32_t, mnl_attr_get_u32, (const struct nlattr *a), (a), 0)
MNL(const char *, mnl_attr_get_str, (const struct nlattr *a), (a), NULL)
MNL(bool, mnl_attr_put_check, (struct nlmsghdr *m, size_t room, uint16_t type, size_t n, const void *p), (m, room, type, n, p), false)
MNL(struct nlattr *, mnl_attr_nest_start_check, (struct nlmsghdr *m, size_t room, uint16_t type), (m, room, type), NULL)
LAZY_VOID(LIBMNL, mnl_attr_nest_end, (struct nlmsghdr *m, struct nlattr *a), (m, a))
MNL(int, mnl_attr_validate, (const struct nlattr *a, enum mnl_attr_data_type type), (a, type), -1)
MNL(bool, mnl_attr_ok, (const struct nlattr *a, int n), (a, n), false)
MNL(struct nlattr *, mnl_attr_next, (const struct nlattr *a), (a), NULL)
#endif
/* clang-format on */
