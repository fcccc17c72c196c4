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

BPF_TABLE_PUBLIC("percpu_array", int, struct hop_cpu, hops, 1);

int hop_tx(u64 *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);

	if (!cpu)
		return 0;
	hop_push(cpu, (void *)ctx[1], hop_stack_pointer(cpu));
	cpu->hits[0]++;
	return 0;
}

static __always_inline void *skb_device(void *skb)
{
	void *device = 0;

	read_at(&device, skb, OFF_sk_buff_dev);
	return device;
}

int hop_rx(u64 *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);

	if (!cpu)
		return 0;
	void *skb = (void *)ctx[0];
	void *device = skb_device(skb);
	if (!device)
		return 0;
	hop_receive(cpu, skb, device);
	cpu->hits[1]++;
	return 0;
}

int hop_gro(u64 *ctx)
{
	int zero = 0;
	struct hop_cpu *cpu = hops.lookup(&zero);

	if (!cpu)
		return 0;
	void *skb = (void *)ctx[0];
	void *device = skb_device(skb);
	if (!device)
		return 0;
	hop_receive(cpu, skb, device);
	cpu->hits[2]++;
	return 0;
}
