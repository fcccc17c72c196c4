/* Hop probes. One logic for every rung: a rung only says where the packet is found.
 *
 * hop_tx   a device begins to transmit: net_dev_start_xmit(skb, dev), dev_hard_start_xmit(skb, dev,
 * ...) hop_rx   the receive core takes a packet over: netif_receive_skb(skb),
 *          __netif_receive_skb_one_core(skb, ...); hop_rx_list: __netif_receive_skb_list_core(head,
 * ...) hop_gro  a driver hands a packet to GRO: napi_gro_receive_entry(skb); hop_gro_call:
 *          napi_gro_receive(napi, skb)
 *
 * Those take their arguments from an array of words (tp_btf with DIRECT_LOADS, raw tracepoints,
 * fentry); those named hop_*_regs from the registers at a function's entry (kprobes).
 *
 * Those named hop_*_name know the device's name only, from the record of a classic tracepoint
 * (TX_LOC and so on: where in it the name's place is told).
 *
 * Stacks of these programs stay below 64 bytes: from Linux 6.13 bigger ones are moved off the
 * kernel stack, and the frame address would say nothing.
 */
#include "hop.h"

BPF_PERCPU_ARRAY(hops, struct hop_cpu, 1);
BPF_HASH(owners, struct hop_owner_key, struct hop, 4096);

/* Once, when asked to: see nsprof/collect/hop/probes.py. */
static __always_inline void copy_stack(struct hop_cpu *cpu)
{
#ifdef PROBE_READ
	if (cpu->want_stack) {
		bpf_probe_read_kernel(cpu->words, sizeof(cpu->words), (void *)cpu->sp);
		cpu->want_stack = 0;
	}
#endif
}

int hop_tx(u64 *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);

	if (!cpu)
		return 0;
	hop_push(cpu, (void *)ctx[1], hop_stack_pointer(cpu));
	cpu->hits[0]++;
	copy_stack(cpu);
	return 0;
}

#if defined(PROBE_READ) && !defined(DIRECT_LOADS)
/* The stack pointer at the function's entry is in the registers: nothing of it needs to be
 * measured. */
int hop_tx_regs(struct pt_regs *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);

	if (!cpu)
		return 0;
	hop_push(cpu, (void *)PT_REGS_PARM2(ctx), PT_REGS_SP(ctx));
	cpu->hits[0]++;
	return 0;
}
#endif

static inline void receive(struct hop_cpu *cpu, void *skb)
{
	void *device = 0;

	read_at(&device, skb, OFF_sk_buff_dev);
	if (!device)
		return;
	hop_receive(cpu, skb, device);
	if (!hop_passes_on(cpu, device)) {
		hop_may_be_for_vlan(cpu, skb, device);
		return;
	}
	cpu->rx_state = HOP_LOST;
#if defined(PROBE_READ) && defined(OFF_netdev_adjacent_list)
	if (hop_moves_to_bond(cpu, skb, device))
		return;
#endif
#ifdef PROBE_READ
	cpu->rx_key.address = hop_link_address(skb, 0);
	struct hop *owner = owners.lookup(&cpu->rx_key);
	if (owner) {
		cpu->rx = *owner;
		cpu->rx_state = HOP_MOVED;
	}
#endif
}

int hop_rx(u64 *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);

	if (!cpu)
		return 0;
	receive(cpu, (void *)ctx[0]);
	cpu->hits[1]++;
	return 0;
}

int hop_gro(u64 *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);

	if (!cpu)
		return 0;
	receive(cpu, (void *)ctx[0]);
	cpu->hits[2]++;
	return 0;
}

#if defined(PROBE_READ) && !defined(DIRECT_LOADS)
/* The list's first packet stands for all of it: they came in together, as a rule by one device. */
int hop_rx_list(u64 *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);
	void *skb = 0;

	if (!cpu)
		return 0;
	probe_read_at(&skb, (void *)ctx[0],
		      0); /* list_head.next; an sk_buff begins with its list_head */
	if (skb && (u64)skb != ctx[0])
		receive(cpu, skb);
	cpu->hits[1]++;
	return 0;
}

int hop_gro_call(u64 *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);

	if (!cpu)
		return 0;
	receive(cpu, (void *)ctx[1]);
	cpu->hits[2]++;
	return 0;
}

/* __netif_receive_skb_core(&skb, ...) */
int hop_rx_regs(struct pt_regs *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);
	void *skb = 0;

	if (!cpu)
		return 0;
	probe_read_at(&skb, (void *)PT_REGS_PARM1(ctx), 0);
	if (skb)
		receive(cpu, skb);
	cpu->hits[1]++;
	return 0;
}

int hop_gro_regs(struct pt_regs *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);

	if (!cpu)
		return 0;
	receive(cpu, (void *)PT_REGS_PARM2(ctx));
	cpu->hits[2]++;
	return 0;
}
#endif

#if defined(TX_LOC) && defined(PROBE_READ)
/* The record of a classic tracepoint: a 32-bit word at `loc` says at which of its bytes the
 * device's name begins (low half; its length is in the high half). Behind its fixed fields a
 * program may read by the helper only. */
static __always_inline int name_of(void *ctx, u32 loc, u64 name[2])
{
	u32 place = *(volatile u32 *)(ctx + loc);
	u64 record = (u64)ctx;

	name[0] = name[1] = 0;
	return bpf_probe_read_kernel(name, 16, (void *)(record + (place & 0xffff)));
}

int hop_tx_name(void *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);
	u64 name[2];

	if (!cpu)
		return 0;
	cpu->hits[0]++;
	if (name_of(ctx, TX_LOC, name))
		return 0;
	hop_of_name(name[0], name[1], &hop_begin(cpu, hop_stack_pointer(cpu))->at);
	copy_stack(cpu);
	return 0;
}

static __always_inline void receive_named(struct hop_cpu *cpu, const u64 name[2])
{
	hop_of_name(name[0], name[1], &cpu->rx);
	cpu->rx_state = HOP_NAMED;
	cpu->rx_flags = HOP_PORT; /* may be one: no more is known */
	cpu->depth = 0;
}

int hop_rx_name(void *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);
	u64 name[2];

	if (!cpu)
		return 0;
	cpu->hits[1]++;
	if (!name_of(ctx, RX_LOC, name))
		receive_named(cpu, name);
	return 0;
}

#ifdef GRO_LOC
int hop_gro_name(void *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);
	u64 name[2];

	if (!cpu)
		return 0;
	cpu->hits[2]++;
	if (!name_of(ctx, GRO_LOC, name))
		receive_named(cpu, name);
	return 0;
}
#endif
#endif
