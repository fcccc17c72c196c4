/* Counts entries and returns of kernel functions: one slot a function and direction.
 *
 * The number of the slot is a constant that is replaced in the instructions before each load
 * (SLOT, see nsprof/collect/ladder/count.py), so that one compilation serves every function and no
 * helper call is needed to tell them apart. Nothing is read from the kernel, so one body serves as
 * fentry, fexit, kprobe and kretprobe.
 *
 * Defines: SLOTS.
 */
#include "kernel.h"

#define SLOT 0x4e535046

BPF_PERCPU_ARRAY(calls, u64, SLOTS);

int on_call(void *ctx)
{
	int slot = SLOT;
	u64 *count;

	asm volatile("" : "+r"(slot)); /* keeps the constant one whole instruction */
	count = calls.lookup(&slot);
	if (count)
		(*count)++;
	return 0;
}
