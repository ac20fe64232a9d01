/*
 * `gantry doctor`: whether devmem TCP would work, for every NIC and every GPU (the host's memory where there is none).
 * The questions are those of net/devmem/detect.c; nothing is changed. And --undo-devmem, which puts back what a crashed
 * process has left on a NIC.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/param.h"
#include "device/device.h"
#include "doctor.h"
#include "inet/nic.h"
#include "net/devmem/detect.h"
#include "net/devmem/session.h"

static const char section[] = "devmem";
enum { GPUS_MAX = 16, UNPACK_KERNEL = 1 /* the index of GANTRY_UNPACK's choice */ };

/* That a machine has no such NIC is nothing to mend, unless it was asked for. */
static enum doctor_level level_of(enum devmem_verdict v, int wanted)
{
	return v == DEVMEM_NO ? (wanted ? DOCTOR_WARN : DOCTOR_NOTE) : v == DEVMEM_UNKNOWN ? DOCTOR_NOTE : DOCTOR_OK;
}

static void say_step(struct doctor *d, const char *of, const struct devmem_step *step, int wanted)
{
	char name[64];

	snprintf(name, sizeof(name), "%s%s%s", of, *of ? ": " : "", step->name);
	doctor_say(d, section, name, level_of(step->verdict, wanted), devmem_verdict_name(step->verdict), step->reason,
		   step->advice);
}

static const char *device_name(const struct gantry_device *dev, char *buf, size_t len)
{
	if (dev->kind == GANTRY_DEVICE_CUDA)
		snprintf(buf, len, "gpu %d", dev->index);
	else
		snprintf(buf, len, "host");
	return buf;
}

/* One NIC and one device. What does not depend on the one is said only with the first of the other. */
static void examine(struct doctor *d, const char *nic, const struct gantry_device *dev, int first_nic, int first_dev)
{
	const struct gantry_params *p = gantry_params();
	struct devmem_wish w = {
		.nic = nic, .device = dev, .configure = p->devmem_configure, .daemon = p->devmem_helper};
	struct devmem_step steps[DEVMEM_QUESTIONS];
	struct devmem_sys *sys = devmem_sys_new();
	int wanted = p->unpack == UNPACK_KERNEL, can;
	char of[32], name[64], why[512] = "payload can land in its memory", verdict[640];

	if (!sys)
		return;
	can = devmem_detect(sys, &w, 0, steps);
	devmem_sys_free(sys);
	device_name(dev, of, sizeof(of));
	for (int i = 0; i < DEVMEM_QUESTIONS; i++) {
		int of_kernel = i == DEVMEM_ASK_OPTION || i == DEVMEM_ASK_FAMILY || i == DEVMEM_ASK_PEER ||
				i == DEVMEM_ASK_RUNTIME;

		if (of_kernel && first_nic && first_dev)
			say_step(d, "", &steps[i], wanted);
		else if (i == DEVMEM_ASK_EXPORT && first_nic)
			say_step(d, of, &steps[i], wanted);
		else if (!of_kernel && i != DEVMEM_ASK_EXPORT && first_dev)
			say_step(d, nic, &steps[i], wanted && i != DEVMEM_ASK_SEND);
	}
	for (int i = DEVMEM_QUESTIONS - 1; !can && i >= 0; i--)
		if (steps[i].verdict == DEVMEM_NO && i != DEVMEM_ASK_SEND)
			snprintf(why, sizeof(why), "%s: %s", steps[i].name, steps[i].reason);
	snprintf(name, sizeof(name), "%s to %s", nic, of);
	snprintf(verdict, sizeof(verdict), "%s%s%s", can ? name : nic, can ? "" : ": ", can ? "" : why);
	doctor_can(d, DOCTOR_DEVMEM, can, verdict);
	doctor_say(d, section, name, can ? DOCTOR_OK : level_of(DEVMEM_NO, wanted), can ? "usable" : "not usable", why,
		   can ? "" : "GANTRY_UNPACK=emulated tries the same path without such a NIC; docs/devmem.md");
}

/* Is it worth a look? Those that are up and lead somewhere; any that was named. */
static int candidate(const struct doctor *d, const struct gantry_nic *nic)
{
	if (d->ifname)
		return gantry_nic_pattern_match(d->ifname, nic->name);
	return (nic->flags & IFF_UP) && !nic->is_loopback && !nic->is_bridge_like;
}

static void examine_nics(struct doctor *d, const struct gantry_nic_list *list, const struct gantry_device *dev,
			 int first_dev)
{
	int said = 0;

	for (int i = 0; i < list->count; i++)
		if (candidate(d, &list->nics[i]))
			examine(d, list->nics[i].name, dev, !said++, first_dev);
	if (!said && !d->ifname)
		examine(d, "lo", dev, 1, first_dev);
}

static void say_leftovers(struct doctor *d)
{
	char names[16][IFNAMSIZ];
	int n = devmem_journal_nics(names, 16);

	for (int i = 0; i < n; i++) {
		struct devmem_before *before = calloc(1, sizeof(*before));
		struct devmem_journal j;

		if (before && devmem_journal_init(&j, names[i]) == 0 && devmem_journal_load(&j, before))
			doctor_say(
				d, section, names[i], DOCTOR_NOTE, "changed",
				"header split, features or RSS are set up by a process that is bound, or that crashed",
				"gantry doctor --undo-devmem puts back what nobody uses");
		free(before);
	}
}

void doctor_devmem(struct doctor *d)
{
	struct gantry_nic_list *list = calloc(1, sizeof(*list));
	char why[256];
	int gpus = gantry_device_cuda_count(why, sizeof(why)), opened = 0;
	struct gantry_device *dev;

	if (!list || gantry_nic_scan(list) != GANTRY_OK) {
		free(list);
		return;
	}
	for (int i = 0; i < gpus && i < GPUS_MAX; i++) {
		if (gantry_device_cuda(i, &dev) != GANTRY_OK)
			continue;
		examine_nics(d, list, dev, !opened++);
		gantry_device_close(dev);
	}
	if (!opened && gantry_device_host(&dev) == GANTRY_OK) {
		examine_nics(d, list, dev, 1);
		gantry_device_close(dev);
	}
	say_leftovers(d);
	gantry_nic_list_free(list);
	free(list);
}

void doctor_undo_devmem(struct doctor *d)
{
	char names[16][IFNAMSIZ], text[256];
	int n = devmem_journal_nics(names, 16), done = 0;

	for (int i = 0; i < n; i++) {
		struct devmem_sys *sys = devmem_sys_new();
		int dead = sys ? devmem_undo_stale(sys, names[i], text, sizeof(text)) : 0;

		devmem_sys_free(sys);
		if (!dead)
			continue;
		done++;
		doctor_say(d, section, names[i], dead < 0 ? DOCTOR_FAIL : DOCTOR_OK, dead < 0 ? "in part" : "put back",
			   text, dead < 0 ? "run it as root; the log has what was refused" : "");
	}
	if (!done)
		doctor_say(d, section, "undo", DOCTOR_OK, "nothing to do", "no dead process has left a NIC changed",
			   "");
}
