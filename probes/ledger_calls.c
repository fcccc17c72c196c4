/* The ledger on kernel functions: copies, checksums, segmentation, fragmentation, netfilter.
 *
 * Each body takes the function's arguments and stands on two rungs: traced_* on fentry or fexit,
 * probed_* on kprobe or kretprobe (x86-64, arm64). Which function it is, is a constant that is
 * replaced in the instructions before each load (see calls.c): its slot, from which follow its
 * counter of hits and `what`.
 *
 * skb0..skb2  the skb is argument 0..2; bytes are its length
 * indirect0   argument 0 points to an nft_pktinfo
 * len1, len2  argument 1 or 2 is the number of bytes; the namespace is the current task's
 * help        skb_checksum_help(skb): bytes are those summed
 * expand      pskb_expand_head(skb, nhead, ntail): bytes are those copied; detail: bits 0-15
 * headroom asked for, 16-31 headroom there was, 32 tailroom asked for, 33 the head is shared pull
 * __pskb_pull_tail(skb, delta): bytes are those copied into the head list        a returned list of
 * skbs: segments are those in the list, bytes their lengths together count       nothing is looked
 * at
 *
 * Defines: LEDGER_SLOTS, LEDGER_LOST, and those of ledger.h.
 */
#include "ledger.h"

#define SLOT 0x4e535046
#define FIRST_FUNCTION 100
#define LIST_MAX 128

BPF_HASH(ledger, struct ledger_key, struct ledger_value, LEDGER_ENTRIES);
BPF_PERCPU_ARRAY(hits, u64, LEDGER_SLOTS);
BPF_STACK_TRACE(stacks, LEDGER_STACKS);

static __always_inline void count(int slot)
{
	u64 *value = hits.lookup(&slot);

	if (value)
		(*value)++;
}

static __always_inline void begin(void *ctx, struct ledger_key *key)
{
	int slot = SLOT;

	asm volatile("" : "+r"(slot)); /* keeps the constant one whole instruction */
	key->what = FIRST_FUNCTION + slot;
	count(slot);
	key->stack = stacks.get_stackid(ctx, LEDGER_STACK_FLAGS);
}

static __always_inline void book(struct ledger_key *key, u64 bytes, u64 segments)
{
	struct ledger_value fresh = {};
	struct ledger_value *value = ledger.lookup_or_try_init(key, &fresh);

	if (!value) {
		count(LEDGER_LOST);
		return;
	}
	__sync_fetch_and_add(&value->calls, 1);
	__sync_fetch_and_add(&value->bytes, bytes);
	__sync_fetch_and_add(&value->segments, segments);
}

/* Reads an skb and whose it is: its device's namespace, else its socket's, else the task's. */
static __always_inline int open_skb(void *address, struct ledger_skb *skb, struct ledger_key *key)
{
	void *device, *sk, *net = 0;

	if (bpf_probe_read_kernel(skb, sizeof(*skb), address))
		return 0;
	device = SKB(skb, void *, dev);
	sk = SKB(skb, void *, sk);
	if (device) {
		ledger_device(key, device);
	} else if (sk) {
		bpf_probe_read_kernel(&net, 8, sk + OFF_sock___sk_common_skc_net_net);
		if (net)
			ledger_net(key, net);
	} else {
		ledger_task(key);
	}
	return 1;
}

static __always_inline int on_skb(void *ctx, void *address)
{
	struct ledger_skb skb = {};
	struct ledger_key key = {};
	u16 size = 0;

	begin(ctx, &key);
	if (open_skb(address, &skb, &key))
		book(&key, SKB(&skb, u32, len), ledger_segments(&skb, &size, 0));
	return 0;
}

static __always_inline int on_indirect(void *ctx, void *info)
{
	void *address = 0;

#ifdef OFF_nft_pktinfo_skb
	bpf_probe_read_kernel(&address, 8, info + OFF_nft_pktinfo_skb);
#else
	bpf_probe_read_kernel(&address, 8,
			      info); /* its first member, in a module whose types are apart */
#endif
	return on_skb(ctx, address);
}

static __always_inline int on_len(void *ctx, u64 bytes)
{
	struct ledger_key key = {};

	begin(ctx, &key);
	ledger_task(&key);
	book(&key, (u32)bytes, 1);
	return 0;
}

static __always_inline int on_count(void *ctx)
{
	struct ledger_key key = {};

	begin(ctx, &key);
	ledger_task(&key);
	book(&key, 0, 1);
	return 0;
}

static __always_inline int on_help(void *ctx, void *address)
{
	struct ledger_skb skb = {};
	struct ledger_key key = {};
	u32 headroom;

	begin(ctx, &key);
	if (!open_skb(address, &skb, &key))
		return 0;
	headroom = SKB(&skb, u64, data) - SKB(&skb, u64, head);
	book(&key, SKB(&skb, u32, len) - (SKB(&skb, u16, csum_start) - headroom), 1);
	return 0;
}

static __always_inline int on_expand(void *ctx, void *address, u64 headroom, u64 tailroom)
{
	struct ledger_skb skb = {};
	struct ledger_key key = {};
	u32 had;
	u32 references = 0;
	void *info;

	begin(ctx, &key);
	if (!open_skb(address, &skb, &key))
		return 0;
	info = SKB(&skb, void *, head) + SKB(&skb, u32, end);
	bpf_probe_read_kernel(&references, 4, info + OFF_skb_shared_info_dataref);
	had = SKB(&skb, u64, data) - SKB(&skb, u64, head);
	key.detail = (headroom & 0xffff) | (u64)(had & 0xffff) << 16;
	if ((int)tailroom > 0)
		key.detail |= 1ULL << 32;
	if ((references & 0xffff) > 1)
		key.detail |= 1ULL << 33;
	book(&key, SKB(&skb, u32, tail), 1); /* what lies before the tail is copied */
	return 0;
}

static __always_inline int on_pull(void *ctx, void *address, u64 delta)
{
	struct ledger_skb skb = {};
	struct ledger_key key = {};

	begin(ctx, &key);
	if (open_skb(address, &skb, &key))
		book(&key, (u32)delta, 1);
	return 0;
}

static __always_inline int on_list(void *ctx, void *address)
{
	struct ledger_skb skb = {};
	struct ledger_key key = {};
	u64 bytes = 0;
	u32 segments = 0, length;
	void *next = address;

	begin(ctx, &key);
	if (!address || (u64)address >= (u64)-4095)
		return 0; /* none needed, or an error */
	if (!open_skb(address, &skb, &key))
		return 0;
	for (int i = 0; i < LIST_MAX; i++) {
		if (!next)
			break;
		length = 0;
		bpf_probe_read_kernel(&length, 4, next + OFF_sk_buff_len);
		bytes += length;
		segments++;
		bpf_probe_read_kernel(&next, 8, next + OFF_sk_buff_next);
	}
	book(&key, bytes, segments);
	return 0;
}

#if defined(__aarch64__)
#define REGISTER(ctx, n) (*(u64 *)((void *)(ctx) + 8 * (n)))
#define RESULT(ctx) REGISTER(ctx, 0)
#else /* struct pt_regs of x86-64, in words: di 14, si 13, dx 12, ax 10 */
#define REGISTER(ctx, n) (*(u64 *)((void *)(ctx) + 8 * (14 - (n))))
#define RESULT(ctx) (*(u64 *)((void *)(ctx) + 80))
#endif
#define ARGUMENT(ctx, n) (*(u64 *)((void *)(ctx) + 8 * (n)))

int traced_skb0(void *ctx)
{
	return on_skb(ctx, (void *)ARGUMENT(ctx, 0));
}
int probed_skb0(void *ctx)
{
	return on_skb(ctx, (void *)REGISTER(ctx, 0));
}
int traced_skb1(void *ctx)
{
	return on_skb(ctx, (void *)ARGUMENT(ctx, 1));
}
int probed_skb1(void *ctx)
{
	return on_skb(ctx, (void *)REGISTER(ctx, 1));
}
int traced_skb2(void *ctx)
{
	return on_skb(ctx, (void *)ARGUMENT(ctx, 2));
}
int probed_skb2(void *ctx)
{
	return on_skb(ctx, (void *)REGISTER(ctx, 2));
}
int traced_indirect0(void *ctx)
{
	return on_indirect(ctx, (void *)ARGUMENT(ctx, 0));
}
int probed_indirect0(void *ctx)
{
	return on_indirect(ctx, (void *)REGISTER(ctx, 0));
}
int traced_len1(void *ctx)
{
	return on_len(ctx, ARGUMENT(ctx, 1));
}
int probed_len1(void *ctx)
{
	return on_len(ctx, REGISTER(ctx, 1));
}
int traced_len2(void *ctx)
{
	return on_len(ctx, ARGUMENT(ctx, 2));
}
int probed_len2(void *ctx)
{
	return on_len(ctx, REGISTER(ctx, 2));
}
int traced_count(void *ctx)
{
	return on_count(ctx);
}
int probed_count(void *ctx)
{
	return on_count(ctx);
}
int traced_help(void *ctx)
{
	return on_help(ctx, (void *)ARGUMENT(ctx, 0));
}
int probed_help(void *ctx)
{
	return on_help(ctx, (void *)REGISTER(ctx, 0));
}
int traced_expand(void *ctx)
{
	return on_expand(ctx, (void *)ARGUMENT(ctx, 0), ARGUMENT(ctx, 1), ARGUMENT(ctx, 2));
}
int probed_expand(void *ctx)
{
	return on_expand(ctx, (void *)REGISTER(ctx, 0), REGISTER(ctx, 1), REGISTER(ctx, 2));
}
int traced_pull(void *ctx)
{
	return on_pull(ctx, (void *)ARGUMENT(ctx, 0), ARGUMENT(ctx, 1));
}
int probed_pull(void *ctx)
{
	return on_pull(ctx, (void *)REGISTER(ctx, 0), REGISTER(ctx, 1));
}
/* fexit: the result stands behind the three arguments of __skb_gso_segment. */
int traced_list(void *ctx)
{
	return on_list(ctx, (void *)ARGUMENT(ctx, 3));
}
int probed_list(void *ctx)
{
	return on_list(ctx, (void *)RESULT(ctx));
}
