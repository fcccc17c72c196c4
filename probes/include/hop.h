/* Hop context: for which namespace and device this CPU works on a packet. One logic for every rung.
 *
 * Entries are made where a packet changes hands and never taken back by an exit probe. Whether one
 * still holds is seen from the stack: a transmission is over when the stack has unwound past it, so
 * each entry carries the stack pointer it was made at, and what lies deeper than the present one is
 * dead. (The reader checks the sampled stack's frames besides: see nsprof/collect/hop/context.py.)
 * Nothing is counted up and down, so nothing drifts when a probe is skipped.
 */
#ifndef NSPROF_HOP_H
#define NSPROF_HOP_H

#include "kernel.h"

#define HOP_NESTING 4
#define HOP_STACK_WORDS 128
#define HOP_STACK_SHIFT                                                                            \
	14 /* stacks are 16 KiB and aligned so: task stacks and the irq stack never share one */

struct hop {
	u64 cookie;
	u32 inode;
	u32 ifindex;
};

struct hop_tx {
	struct hop at;
	u64 sp;
};

/* PLAIN: the packet stays with the device it came in on. MOVED: a receive handler gave it to
 * another device (macvlan, bond), which `rx` is. LOST: likewise, but to which is not known.
 * MAY_MOVE: a program on the device's ingress (tc) or its VLAN's tag may move it. NAMED: `rx` holds
 * a device's name and nothing else. Flags beside these: PORT, the device is a bridge's port, so
 * that a bridge's work can be its; UP, a bridge has handed the packet up, and when that returns its
 * work is that of `port` again.
 */
enum hop_rx_state {
	HOP_NONE = 0,
	HOP_PLAIN = 1,
	HOP_MOVED = 2,
	HOP_LOST = 3,
	HOP_MAY_MOVE = 4,
	HOP_NAMED = 5,
	HOP_UP = 0x20,
	HOP_PORT = 0x40
};

/* Who owns what comes in on a device whose handler passes packets on by their destination address.
 */
struct hop_owner_key {
	u64 device;
	u64 address; /* destination MAC address */
};

struct hop_cpu {
	struct hop rx;
	u64 rx_skb;
	struct hop_owner_key rx_key;
	u32 rx_state;
	u32 rx_flags; /* HOP_PORT, HOP_UP or 0 */
	u32 depth;
	u32 pad;
	struct hop port; /* of the last reception by a bridge's port, and its packet */
	u64 port_skb;
	u64 live; /* what hop_find_live() found */
	u64 innermost;
	u64 found;
	u64 sp;
	u64 reach; /* how far above its probe's frame a transmission's own frame begins; measured at
		      load */
	u64 frame_low;	/* dev_hard_start_xmit's code: while a transmission runs, the word at its
			   entry's sp + reach - 8 is a return address into it */
	u64 frame_high; /* 0: that word says nothing on this rung */
	u64 want_stack; /* copy the stack to `words` at the next transmission */
	u64 bridge_handler; /* br_handle_frame, 0 without bridges; not a define, since it differs
			       from boot to boot */
	u64 tx_named;	    /* transmissions hold a device's name and nothing else */
	struct hop_tx tx[HOP_NESTING];
	u64 hits[4];
	u64 words[HOP_STACK_WORDS];
};

/* Where the calling program's frame lies on the kernel stack. The address passes through memory
 * because the verifier allows no arithmetic on what it knows to be a pointer; LLVM 14 has no
 * __builtin_frame_address for BPF. */
static __always_inline u64 hop_stack_pointer(struct hop_cpu *cpu)
{
	u64 local;

	*(volatile u64 *)&cpu->sp = (u64)&local;
	return *(volatile u64 *)&cpu->sp;
}

/* A slot by number; the empty assembly keeps the compiler from dropping the mask, which the
 * verifier wants to see. */
static __always_inline struct hop_tx *hop_slot(struct hop_cpu *cpu, u32 number)
{
	u64 at = number;

	asm volatile("" : "+r"(at));
	at &= HOP_NESTING - 1;
	return &cpu->tx[at];
}

static __always_inline void hop_of_device(void *device, struct hop *hop)
{
	void *net = 0;

	read_at(&net, device, OFF_net_device_nd_net_net);
	if (net) {
		netns_of(net, &hop->cookie, &hop->inode);
	} else {
		hop->cookie = 0;
		hop->inode = 0;
	}
	read_at(&hop->ifindex, device, OFF_net_device_ifindex);
}

/* A transmission begins at stack pointer `sp`; the caller says on which device. */
static __always_inline struct hop_tx *hop_begin(struct hop_cpu *cpu, u64 sp)
{
	u32 depth = cpu->depth;

	/* What was begun as deep or deeper has returned; another stack's entries are another
	 * life's. */
#pragma unroll
	for (int i = 0; i < HOP_NESTING; i++) {
		if (depth == 0)
			break;
		u64 top = hop_slot(cpu, depth - 1)->sp;
		if (top > sp && (top ^ sp) >> HOP_STACK_SHIFT == 0)
			break;
		depth--;
	}
	if (depth >= HOP_NESTING)
		depth = HOP_NESTING - 1; /* deeper than kept: the innermost counts */
	struct hop_tx *tx = hop_slot(cpu, depth);
	tx->sp = sp;
	cpu->depth = depth + 1;
	return tx;
}

static __always_inline void hop_push(struct hop_cpu *cpu, void *device, u64 sp)
{
	hop_of_device(device, &hop_begin(cpu, sp)->at);
}

/* A device's name (IFNAMSIZ) instead of its identity: all that a classic tracepoint's record has.
 */
static __always_inline void hop_of_name(u64 first, u64 second, struct hop *hop)
{
	u64 ends = (first - 0x0101010101010101ULL) & ~first & 0x8080808080808080ULL;

	if (ends) { /* what lies behind the end is an earlier record's */
		first &= ((ends & -ends) >> 7) - 1;
		second = 0;
	} else {
		ends = (second - 0x0101010101010101ULL) & ~second & 0x8080808080808080ULL;
		if (ends)
			second &= ((ends & -ends) >> 7) - 1;
	}
	hop->cookie = first;
	*(u64 *)&hop->inode = second;
}

#ifdef PROBE_READ
/* The destination (offset 0) or source (offset 6) address of a packet's link header; 0 when it has
 * none. */
static __always_inline u64 hop_link_address(void *skb, u32 offset)
{
	u64 address = 0;
	u64 head = 0;
	u16 header = 0;

	probe_read_at(&head, skb, OFF_sk_buff_head);
	probe_read_at(&header, skb, OFF_sk_buff_mac_header);
	if (head && header != 0xffff)
		bpf_probe_read_kernel(&address, 6, (void *)head + header + offset);
	return address;
}

static __always_inline u64 hop_device_address(void *device)
{
	u64 address = 0;
	u64 where = 0;

	probe_read_at(&where, device, OFF_net_device_dev_addr);
	if (where)
		bpf_probe_read_kernel(&address, 6, (void *)where);
	return address;
}

/* As hop_of_device(), of a device that was found through memory and not through a typed pointer. */
static __always_inline void hop_of_found(void *device, struct hop *hop)
{
	void *net = 0;

	probe_read_at(&net, device, OFF_net_device_nd_net_net);
	if (!net)
		return;
	probe_read_at(&hop->inode, net, OFF_net_ns_inum);
#ifdef OFF_net_net_cookie
	probe_read_at(&hop->cookie, net, OFF_net_net_cookie);
#endif
	probe_read_at(&hop->ifindex, device, OFF_net_device_ifindex);
}
#endif

/* Whether the packet has a VLAN's tag, beside it or still inside of it. Before 5.18 the protocol of
 * a tag that was taken off stays: then the packet is asked in vain. */
static __always_inline int hop_is_tagged(void *skb)
{
	u16 tag = 0, protocol = 0;

	read_at(&tag, skb, OFF_sk_buff_vlan_proto);
	read_at(&protocol, skb, OFF_sk_buff_protocol);
	return tag || protocol == 0x0081 ||
	       protocol == 0xa888; /* ETH_P_8021Q, 8021AD; big-endian */
}

/* A packet with a tag that came in by a device with VLANs: the receive core gives it to the VLAN's
 * device, which may be another namespace's. Bridges' ports have VLANs for their own use. */
static __always_inline void hop_may_be_for_vlan(struct hop_cpu *cpu, void *skb, void *device)
{
#ifdef OFF_net_device_vlan_info
	u64 vlans = 0;

	read_at(&vlans, device, OFF_net_device_vlan_info);
	if (vlans && !(cpu->rx_flags & HOP_PORT) && hop_is_tagged(skb))
		cpu->rx_state = HOP_MAY_MOVE;
#endif
}

#if defined(PROBE_READ) && defined(OFF_netdev_adjacent_list)
/* The bond that a device is a slave of (IFF_SLAVE in include/uapi/linux/if.h; a master comes first
 * in the list of uppers, net/core/dev.c), 0 without. Its handler takes every packet to the bond,
 * whoever it is for. */
static __always_inline void *hop_bond_of(void *device)
{
	void *entry = 0, *upper = 0;
	u32 flags = 0;
	u8 master = 0;

	read_at(&flags, device, OFF_net_device_flags);
	if (!(flags & 0x800))
		return 0;
	probe_read_at(&entry, device, OFF_net_device_adj_list_upper);
	if (!entry || entry == device + OFF_net_device_adj_list_upper)
		return 0;
	entry -= OFF_netdev_adjacent_list;
	probe_read_at(&master, entry, OFF_netdev_adjacent_master);
	probe_read_at(&upper, entry, OFF_netdev_adjacent_dev);
	return master ? upper : 0;
}

/* The packet goes on with the slave's bond, which may be a bridge's port. */
static __always_inline int hop_moves_to_bond(struct hop_cpu *cpu, void *skb, void *device)
{
	void *bond = hop_bond_of(device);
	u64 handler = 0;

	if (!bond)
		return 0;
	hop_of_found(bond, &cpu->rx);
	cpu->rx_key.device = (u64)bond;
	cpu->rx_state = HOP_MOVED;
#ifdef OFF_net_device_vlan_info
	probe_read_at(&handler, bond, OFF_net_device_vlan_info);
	if (handler && hop_is_tagged(skb))
		cpu->rx_state = HOP_MAY_MOVE;
#endif
	probe_read_at(&handler, bond, OFF_net_device_rx_handler);
	if (handler && handler == cpu->bridge_handler) {
		cpu->rx_state = HOP_MOVED;
		cpu->rx_flags = HOP_PORT;
		cpu->port = cpu->rx;
		cpu->port_skb = cpu->rx_skb;
	}
	return 1;
}
#endif

/* Whether a receive handler passes this device's packets on to others. A bridge does, too, but
 * hands them to the receive core again, whose probe then runs again. */
static __always_inline int hop_passes_on(struct hop_cpu *cpu, void *device)
{
	u64 handler = 0;

	read_at(&handler, device, OFF_net_device_rx_handler);
	if (handler && handler == cpu->bridge_handler) {
		cpu->rx_flags = HOP_PORT;
		cpu->port = cpu->rx;
		cpu->port_skb = cpu->rx_skb;
		return 0;
	}
	cpu->rx_flags = cpu->rx_skb == cpu->port_skb ? HOP_UP : 0;
	return handler != 0;
}

static __always_inline int hop_has_ingress_program(void *device)
{
	u64 program = 0;

#ifdef OFF_net_device_tcx_ingress
	read_at(&program, device, OFF_net_device_tcx_ingress);
#elif defined(OFF_net_device_miniq_ingress)
	read_at(&program, device, OFF_net_device_miniq_ingress);
#endif
	return program != 0;
}

/* The receive core takes over a packet of `device`. */
static __always_inline void hop_receive(struct hop_cpu *cpu, void *skb, void *device)
{
	hop_of_device(device, &cpu->rx);
	cpu->rx_skb = (u64)skb;
	cpu->rx_key.device = (u64)device;
	cpu->rx_state = hop_has_ingress_program(device) ? HOP_MAY_MOVE : HOP_PLAIN;
	cpu->depth = 0; /* receiving never happens inside a transmission */
}

/* Whether the interrupted stack (its pointer `sp`) may still be inside of a transmission: it has
 * not unwound past it. */
static __always_inline int hop_not_passed(struct hop_cpu *cpu, struct hop_tx *tx, u64 sp)
{
	return tx->sp + cpu->reach >= sp && (tx->sp ^ sp) >> HOP_STACK_SHIFT == 0;
}

/* The transmissions that the interrupted stack is still inside of: their number (0: none) into
 * `live`, the innermost one's slot, counted from 1, into `innermost`.
 *
 * By the stack pointer alone, others' frames may stand where a returned one's were, inside or
 * around the present one. So each one's return address is looked for. Where none is found (another
 * tracer has moved the frames), the stack pointer decides, and the reader's count of frames against
 * this one.
 *
 * The results pass through the table, so that all paths look alike to the verifier behind them. */
static __always_inline void hop_find_live(struct hop_cpu *cpu, u64 sp)
{
	u64 depth = cpu->depth;

#pragma unroll
	for (int i = 0; i < HOP_NESTING; i++) {
		if (depth == 0 || hop_not_passed(cpu, hop_slot(cpu, depth - 1), sp))
			break;
		depth--;
	}
#ifdef PROBE_READ
	u64 range = cpu->frame_high - cpu->frame_low;
	u64 found = 0;
	u64 last = 0;

	*(volatile u64 *)&cpu->live = depth;
#pragma unroll
	for (u64 i = 0; i < HOP_NESTING; i++) {
		u64 top = cpu->tx[i].sp;
		u64 word = 0;

		bpf_probe_read_kernel(&word, sizeof(word), (void *)(top + cpu->reach - 8));
		word -= cpu->frame_low + 1;
		/* All by arithmetic, 1 for yes: each branch would double the verifier's work. */
		u64 yes = (~word & (word - range)) >> 63;	    /* a return address into it */
		yes &= (((top ^ sp) >> HOP_STACK_SHIFT) - 1) >> 63; /* on this stack */
		yes &= (i - *(volatile u64 *)&cpu->live) >> 63;	    /* not passed */
		*(volatile u64 *)&cpu->found = yes;
		yes = *(volatile u64 *)&cpu->found;
		found += yes;
		last += yes * (i + 1 - last);
	}
	u64 any = (0 - found) >> 63;

	*(volatile u64 *)&cpu->innermost = depth + any * (last - depth);
	*(volatile u64 *)&cpu->live = depth + any * (found - depth);
#else
	*(volatile u64 *)&cpu->innermost = depth;
	*(volatile u64 *)&cpu->live = depth;
#endif
}

#endif
