/* The ledger on tracepoints (tp_btf or raw): what every kernel lets us count.
 *
 * ledger_queue     net_dev_queue(skb): handed to a device, before GSO and software checksums
 * ledger_xmit      net_dev_start_xmit(skb, dev): given to the driver, after both
 * ledger_receive   netif_receive_skb(skb): the receive core takes a packet over
 * ledger_busy      net_dev_xmit(skb, rc, dev, len): the driver refused it (rc is not 0): requeued
 * ledger_drop      kfree_skb(skb, location, reason)
 * ledger_backlog   netif_rx(skb): put on a CPU's backlog
 * ledger_resend    tcp_retransmit_skb(sk, skb)
 * ledger_to_user   skb_copy_datagram_iovec(skb, len): payload copied to user space
 * ledger_gro_in, ledger_gro_out   napi_gro_receive_entry(skb), napi_gro_receive_exit(ret)
 * ledger_sent      sock_send_length(sk, ret, flags): what a socket took of its user's bytes
 * ledger_read      sock_recv_length(sk, ret, flags): what it gave to its user
 *
 * detail of the first three: bit 0 stands for many segments (GSO), 1 an IP fragment, 2 longer than
 * the device's MTU, 3 made by this namespace's own socket, 4 not a later fragment, 5-6 the
 * transport (1 UDP, 2 TCP, 3 another), 7-8 checksum state (ip_summed), 9 a UDP datagram without a
 * checksum, 10 headers and segments were not read (NO_READS); 32-63 the device's MTU.
 * detail of the sockets' two: bit 0 the call failed, 1 the socket may send without copying
 * (SO_ZEROCOPY), 2 the reader asked for the whole length (MSG_TRUNC).
 */
#include "ledger.h"

#define GSO 1
#define FRAGMENT 2
#define OVER_MTU 4
#define LOCAL 8
#define FIRST 16
#define UNSUMMED 512
#define UNREAD 1024

#define FAILED 1
#define MAY_NOT_COPY 2
#define WHOLE_LENGTH 4
#define MSG_TRUNC 0x20

BPF_HASH(ledger, struct ledger_key, struct ledger_value, LEDGER_ENTRIES);
BPF_PERCPU_ARRAY(hits, u64, 16); /* by program; the last is what the full table lost */
BPF_STACK_TRACE(stacks, LEDGER_STACKS);

struct last {
	u64 skb;
	u64 device;
	u64 ns; /* inode */
	struct ledger_key gro;
};
BPF_PERCPU_ARRAY(lasts, struct last, 1);

BPF_ARRAY(gate, u32, 1);

static __always_inline int gate_open(void)
{
	int zero = 0;
	u32 *open = gate.lookup(&zero);

	return open && *open;
}

/* Counts a hit, which costs in any case; whether it is to be booked. */
static __always_inline int hit(int slot)
{
	u64 *count = hits.lookup(&slot);

	if (count)
		(*count)++;
	return gate_open();
}

static __always_inline void book(struct ledger_key *key, u64 bytes, u64 segments, u64 payload)
{
	struct ledger_value fresh = {};
	struct ledger_value *value = ledger.lookup_or_try_init(key, &fresh);

	if (!value) {
		hit(15);
		return;
	}
	__sync_fetch_and_add(&value->calls, 1);
	__sync_fetch_and_add(&value->bytes, bytes);
	__sync_fetch_and_add(&value->segments, segments);
	__sync_fetch_and_add(&value->payload, payload);
}

/* IP's view of the packet at `header`: flags into `detail`; the bytes behind the transport header.
 */
static __always_inline u32 look(void *header, u16 protocol, u32 length, u64 *detail)
{
	u8 ip[48] = {};
	u32 offset = 0, size;
	u8 transport;

	if (protocol != bpf_htons(0x0800) && protocol != bpf_htons(0x86dd))
		return 0;
	if (bpf_probe_read_kernel(ip, sizeof(ip), header))
		return 0;
	if (ip[0] >> 4 == 4) {
		size = (ip[0] & 15) * 4;
		transport = ip[9];
		offset = ((ip[6] & 0x1f) << 8 | ip[7]) * 8;
		if (offset || ip[6] & 0x20)
			*detail |= FRAGMENT;
	} else if (ip[0] >> 4 == 6) {
		size = 40;
		transport = ip[6];
		if (transport == 44) {
			size = 48;
			transport = ip[40];
			offset = (ip[42] << 8 | ip[43]) & 0xfff8;
			*detail |= FRAGMENT;
		}
	} else {
		return 0;
	}
	*detail |= (u64)(transport == 17 ? 1 : transport == 6 ? 2 : 3) << 5;
	if (!offset) {
		*detail |= FIRST;
		if (transport == 17) {
			u16 sum = 0;

			bpf_probe_read_kernel(&sum, 2, header + size + 6);
			if (!sum)
				*detail |= UNSUMMED;
			size += 8;
		} else if (transport == 6) {
			u8 words = 0;

			bpf_probe_read_kernel(&words, 1, header + size + 12);
			size += (words >> 4) * 4;
		}
	}
	return length > size ? length - size : 0;
}

/* Whether the namespace that owns `key`'s device also owns the socket, and this is its first
 * device. */
static __always_inline int is_local(void *skb, void *address, void *device, u32 inode)
{
	u32 owner = 0;
	void *sk = SKB(skb, void *, sk);
	void *net = 0;
	int zero = 0;
	struct last *last;
	int again;

	if (!sk || SKB(skb, u32, skb_iif))
		return 0;
	read_at(&net, sk, OFF_sock___sk_common_skc_net_net);
	if (net)
		read_at(&owner, net, OFF_net_ns_inum);
	if (owner != inode)
		return 0;
	last = lasts.lookup(&zero);
	if (!last)
		return 0;
	again = last->skb == (u64)address && last->device != (u64)device && last->ns == inode;
	if (!again) {
		last->skb = (u64)address;
		last->device = (u64)device;
		last->ns = inode;
	}
	return !again;
}

static __always_inline int hop(void *address, void *device, int place)
{
	struct ledger_key key = {.what = place, .stack = -1};
	u32 length, payload, segments, mtu = 0;
	u16 size = 0;
	void *header;

	if (!hit(place))
		return 0;
	OPEN_SKB(skb, address);
	if (!device)
		device = SKB(skb, void *, dev);
	if (!device)
		return 0;
	ledger_device(&key, device);
	read_at(&mtu, device, OFF_net_device_mtu);
	length = SKB(skb, u32, len);
	header =
	    SKB(skb, void *, data); /* where the receive core begins, the link's header is off */
	if (place != 2) {
		void *network = SKB(skb, void *, head) + SKB(skb, u16, network_header);

		if (network >= header && network - header < length) {
			length -= network - header;
			header = network;
		}
	}
#ifdef NO_READS
	if (!place && is_local(skb, address, device, key.inode))
		key.detail |= LOCAL;
	key.detail |= UNREAD | (u64)CHECKSUM_STATE(skb) << 7 | (u64)mtu << 32;
	book(&key, length, 1, 0);
	return 0;
#endif
	payload = look(header, SKB(skb, u16, protocol), length, &key.detail);
	segments = ledger_segments(skb, &size, payload);
	if (size)
		key.detail |= GSO;
	if ((size ? size + length - payload : length) > mtu)
		key.detail |= OVER_MTU;
	if (!place && is_local(skb, address, device, key.inode))
		key.detail |= LOCAL;
	key.detail |= (u64)CHECKSUM_STATE(skb) << 7 | (u64)mtu << 32;
	book(&key, length, segments, payload);
	return 0;
}

int ledger_queue(u64 *ctx)
{
	return hop((void *)ctx[0], 0, 0);
}

int ledger_xmit(u64 *ctx)
{
	return hop((void *)ctx[0], (void *)ctx[1], 1);
}

int ledger_receive(u64 *ctx)
{
	return hop((void *)ctx[0], 0, 2);
}

int ledger_busy(u64 *ctx)
{
	struct ledger_key key = {.what = 3, .stack = -1};

	if (!hit(3) || (int)ctx[1] == 0)
		return 0;
	key.detail = (u32)ctx[1];
	ledger_device(&key, (void *)ctx[2]);
	book(&key, (u32)ctx[3], 1, 0);
	return 0;
}

/* An event on an skb that has a device, or at least a socket. */
static __always_inline int event(void *address, struct ledger_key *key, u32 bytes)
{
	void *device, *sk, *net = 0;
	u16 size = 0;

	OPEN_SKB(skb, address);
	device = SKB(skb, void *, dev);
	sk = SKB(skb, void *, sk);
	if (device) {
		ledger_device(key, device);
	} else if (sk) {
		read_at(&net, sk, OFF_sock___sk_common_skc_net_net);
		if (net)
			ledger_net(key, net);
	}
	book(key, bytes ? bytes : SKB(skb, u32, len), ledger_segments(skb, &size, 0), 0);
	return 0;
}

int ledger_drop(u64 *ctx)
{
	struct ledger_key key = {.what = 4, .detail = (u32)ctx[2]};

	if (!hit(4))
		return 0;
	key.stack = stacks.get_stackid(ctx, LEDGER_STACK_FLAGS);
	return event((void *)ctx[0], &key, 0);
}

int ledger_backlog(u64 *ctx)
{
	struct ledger_key key = {.what = 5, .stack = -1};

	if (!hit(5))
		return 0;
	return event((void *)ctx[0], &key, 0);
}

int ledger_resend(u64 *ctx)
{
	struct ledger_key key = {.what = 6, .stack = -1};

	if (!hit(6))
		return 0;
	return event((void *)ctx[1], &key, 0);
}

/* skb->dev overlaps other things once the packet is in a socket's queue: the reader owns the copy.
 */
int ledger_to_user(u64 *ctx)
{
	struct ledger_key key = {.what = 7, .stack = -1};

	if (!hit(7))
		return 0;
	ledger_task(&key);
	book(&key, (u32)ctx[1], 1, (u32)ctx[1]);
	return 0;
}

int ledger_gro_in(u64 *ctx)
{
	int zero = 0;
	struct last *last = lasts.lookup(&zero);
	void *device = 0;

	if (!hit(8) || !last)
		return 0;
	__builtin_memset(&last->gro, 0, sizeof(last->gro));
	read_at(&device, (void *)ctx[0], OFF_sk_buff_dev);
	if (device)
		ledger_device(&last->gro, device);
	return 0;
}

int ledger_gro_out(u64 *ctx)
{
	int zero = 0;
	struct last *last = lasts.lookup(&zero);
	struct ledger_key key = {};

	if (!hit(9) || !last)
		return 0;
	key = last->gro;
	key.what = 8;
	key.stack = -1;
	key.detail = (u32)ctx[0];
	book(&key, 0, 1, 0);
	return 0;
}

/* What sockets of the network (AF_INET, AF_INET6, AF_PACKET) take from and give to user space. */
static __always_inline int user_copy(void *ctx, void *sk, s32 bytes, u64 detail, int slot)
{
	struct ledger_key key = {.what = slot, .detail = detail};
	u16 family = 0;
	void *net = 0;

	if (!hit(slot))
		return 0;
	read_at(&family, sk, OFF_sock___sk_common_skc_family);
	if (family != 2 && family != 10 && family != 17)
		return 0;
	if (bytes < 0) {
		key.detail |= FAILED;
		bytes = 0;
	}
	read_at(&net, sk, OFF_sock___sk_common_skc_net_net);
	if (net)
		ledger_net(&key, net);
	key.stack = stacks.get_stackid(ctx, LEDGER_STACK_FLAGS);
	book(&key, bytes, 1, bytes);
	return 0;
}

int ledger_sent(u64 *ctx)
{
	void *sk = (void *)ctx[0];
	u64 detail = 0;
#ifdef LEDGER_ZEROCOPY_BIT
	u64 flags = 0;

	read_at(&flags, sk, OFF_sock___sk_common_skc_flags);
	if (flags >> LEDGER_ZEROCOPY_BIT & 1)
		detail = MAY_NOT_COPY;
#endif
	return user_copy(ctx, sk, (s32)ctx[1], detail, 10);
}

/* A reader that polls and finds nothing is no event. */
int ledger_read(u64 *ctx)
{
	if ((s32)ctx[1] < 0)
		return 0;
	return user_copy(ctx, (void *)ctx[0], (s32)ctx[1],
			 (u32)ctx[2] & MSG_TRUNC ? WHOLE_LENGTH : 0, 11);
}
