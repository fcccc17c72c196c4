/* Hop probes on tracepoints: tp_btf (with DIRECT_LOADS) or raw tracepoints, from one source.
 *
 * hop_tx   net_dev_start_xmit(skb, dev): a device begins to transmit
 * hop_rx   netif_receive_skb(skb): the receive core takes a packet over
 * hop_gro  napi_gro_receive_entry(skb): a driver hands a packet to GRO
 *
 * Stacks of these programs stay below 64 bytes: from Linux 6.13 bigger ones are moved off the
 * kernel stack, and the frame address would say nothing.
 */
#include "hop.h"

BPF_PERCPU_ARRAY(hops, struct hop_cpu, 1);
BPF_HASH(owners, struct hop_owner_key, struct hop, 4096);

int hop_tx(u64 *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);

	if (!cpu)
		return 0;
	hop_push(cpu, (void *)ctx[1], hop_stack_pointer(cpu));
	cpu->hits[0]++;
#ifdef PROBE_READ
	if (cpu->want_stack) {
		bpf_probe_read_kernel(cpu->words, sizeof(cpu->words), (void *)cpu->sp);
		cpu->want_stack = 0;
	}
#endif
	return 0;
}

static inline void receive(struct hop_cpu *cpu, void *skb)
{
	void *device = 0;

	read_at(&device, skb, OFF_sk_buff_dev);
	if (!device)
		return;
	hop_receive(cpu, skb, device);
	if (!hop_passes_on(device))
		return;
	cpu->rx_state = HOP_LOST;
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
