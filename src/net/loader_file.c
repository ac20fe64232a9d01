/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reasons. The dynamic linker's texts are kept, with two cases made plain: a
 * missing dependency reads as if the plugin itself were missing, and a library
 * for another processor is reported as "no such file".
 */
#include "net/loader_file.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "net/loader.h"

#if defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#elif defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#else
#define OUR_MACHINE EM_NONE
#endif

static const char *machine_name(unsigned int machine)
{
	switch (machine) {
	case EM_X86_64:
		return "x86_64";
	case EM_AARCH64:
		return "aarch64";
	case EM_386:
		return "i386";
	case EM_PPC64:
		return "ppc64";
	case EM_RISCV:
		return "riscv";
	default:
		return "another processor";
	}
}

/* The machine that an ELF file was made for; EM_NONE when it cannot be told. */
static unsigned int elf_machine(const char *file)
{
	Elf64_Ehdr h; /* e_machine is at the same place in 32-bit files */
	ssize_t n;
	int fd = open(file, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return EM_NONE;
	n = pread(fd, &h, sizeof(h), 0);
	close(fd);
	if (n < (ssize_t)offsetof(Elf64_Ehdr, e_version) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0)
		return EM_NONE;
	return h.e_machine;
}

void gantry_loader_explain_open(const char *file, const char *error, char *why, size_t size)
{
	size_t len = strlen(file);
	int is_path = strchr(file, '/') != NULL;
	unsigned int machine = is_path ? elf_machine(file) : EM_NONE;

	if (!error)
		error = "dlopen gave no reason";
	if (machine != EM_NONE && OUR_MACHINE != EM_NONE && machine != OUR_MACHINE)
		snprintf(why, size, "the library is for %s (ELF machine %u), this process is %s (dlopen: %s)",
			 machine_name(machine), machine, machine_name(OUR_MACHINE), error);
	else if (strstr(error, "cannot open shared object file") && strncmp(error, file, len) != 0)
		snprintf(why, size, "found, but a library that it needs is not: %s", error);
	else
		snprintf(why, size, "%s", error);
}

/* Appends the names of a family that the library exports, from version `first` to `last`. */
static void list_symbols(void *dl, const char *family, int first, int last, char *text, size_t size)
{
	char symbol[64];

	for (int v = first; v <= last; v++) {
		size_t len = strlen(text);

		snprintf(symbol, sizeof(symbol), "%s%d", family, v);
		if (dlsym(dl, symbol))
			snprintf(text + len, size - len, "%s%s", len ? " " : "", symbol);
	}
}

void gantry_loader_explain_symbols(void *dl, char *why, size_t size)
{
	char old[256] = "", new[256] = "", coll[256] = "";
	size_t len;

	list_symbols(dl, "ncclNet_v", 1, GANTRY_NET_VERSION_MAX, old, sizeof(old));
	list_symbols(dl, "ncclNetPlugin_v", 1, GANTRY_NET_VERSION_MIN - 1, old, sizeof(old));
	list_symbols(dl, "ncclNetPlugin_v", GANTRY_NET_VERSION_MAX + 1, GANTRY_NET_VERSION_MAX + 12, new, sizeof(new));
	list_symbols(dl, "ncclCollNetPlugin_v", 1, GANTRY_NET_VERSION_MAX + 12, coll, sizeof(coll));
	snprintf(why, size, "exports no ncclNetPlugin_v%d to _v%d", GANTRY_NET_VERSION_MIN, GANTRY_NET_VERSION_MAX);
	len = strlen(why);
	if (*old)
		snprintf(why + len, size - len, ", only older ones: %s", old);
	len = strlen(why);
	if (*new)
		snprintf(why + len, size - len, ", only newer ones: %s", new);
	len = strlen(why);
	if (*coll)
		snprintf(why + len, size - len, ", collNet tables: %s", coll);
	len = strlen(why);
	if (!*old && !*new && !*coll)
		snprintf(why + len, size - len, ", nor any other NCCL table: not a net plugin");
}
