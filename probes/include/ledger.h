/* The ledger: what packets pay for, counted in one table keyed by namespace, device, event and
 * caller.
 *
 * An event's meaning is its number (`what`, see nsprof/collect/ledger/names.py) and its `detail`,
 * whose bits each program documents. With DIRECT_LOADS (tp_btf) typed pointers are followed by
 * plain loads; heads and shared infos are no typed pointers on any rung and always take the helper.
 * NO_READS leaves them out where the helper is refused (lockdown=confidentiality): then packets
 * have no segments, fragments and payload, and rows say so by the bit UNREAD where it matters.
 *
 * Nothing is booked unless the gate is open: it opens when all probes are attached and closes
 * before the first is detached, so that all of them count the same window.
 */
#ifndef NSPROF_LEDGER_H
#define NSPROF_LEDGER_H

#include "kernel.h"

struct ledger_key {
	u64 cookie;
	u32 inode;
	u32 ifindex;
	u32 what;
	s32 stack; /* id in `stacks`, or -1 */
	u64 detail;
};

struct ledger_value {
	u64 calls;
	u64 bytes;
	u64 segments;
	u64 payload; /* bytes behind the transport header */
};

/* What is read of an skb, in one go: everything up to `users`. */
struct ledger_skb {
	u64 words[LEDGER_SKB_WORDS];
};

#ifdef DIRECT_LOADS
#define OPEN_SKB(skb, address) void *skb = (address)
#else
#define OPEN_SKB(skb, address)                                                                     \
	struct ledger_skb skb##_copy = {};                                                         \
	struct ledger_skb *skb = &skb##_copy;                                                      \
	if (bpf_probe_read_kernel(skb, sizeof(*skb), (address)))                                   \
	return 0
#endif

#define SKB(skb, type, member) (*(type *)((void *)(skb) + OFF_sk_buff_##member))

#define CHECKSUM_STATE(skb)                                                                        \
	((*(u8 *)((void *)(skb) + LEDGER_SUMMED_BYTE) >> LEDGER_SUMMED_SHIFT) & 3)

/* The namespace of a device or socket, into the key. */
static __always_inline void ledger_net(struct ledger_key *key, void *net)
{
	netns_of(net, &key->cookie, &key->inode);
}

static __always_inline void ledger_device(struct ledger_key *key, void *device)
{
	void *net = 0;

	read_at(&key->ifindex, device, OFF_net_device_ifindex);
	read_at(&net, device, OFF_net_device_nd_net_net);
	if (net)
		ledger_net(key, net);
}

/* The current task's namespace: right for copies from and to user space, nobody's in softirq. */
static __always_inline void ledger_task(struct ledger_key *key)
{
#ifdef NO_READS
	netns_of_task((void *)bpf_get_current_task_btf(), &key->cookie, &key->inode);
#else
	void *task = (void *)bpf_get_current_task();
	void *nsproxy = 0;
	void *net = 0;

	bpf_probe_read_kernel(&nsproxy, 8, task + OFF_task_struct_nsproxy);
	if (!nsproxy)
		return;
	bpf_probe_read_kernel(&net, 8, nsproxy + OFF_nsproxy_net_ns);
	if (!net)
		return;
	bpf_probe_read_kernel(&key->inode, 4, net + OFF_net_ns_inum);
#ifdef OFF_net_net_cookie
	bpf_probe_read_kernel(&key->cookie, 8, net + OFF_net_net_cookie);
#endif
#endif
}

/* How many segments of the wire an skb stands for; `size` becomes their payload, 0 for a plain one.
 */
static __always_inline u32 ledger_segments(void *skb, u16 *size, u32 payload)
{
	u16 gso[2] = {}; /* gso_size, gso_segs */
#ifndef NO_READS
	void *info = SKB(skb, void *, head) + SKB(skb, u32, end);

	bpf_probe_read_kernel(gso, 4, info + OFF_skb_shared_info_gso_size);
#endif
	*size = gso[0];
	if (!gso[0])
		return 1;
	if (gso[1])
		return gso[1];
	return payload ? (payload + gso[0] - 1) / gso[0] : 1;
}

#endif
